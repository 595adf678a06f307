"""Run our own `omlx serve` with one model, and with its own port, key and folder for everything that it writes.

oMLX saves the settings of its command line, by default in `~/.omlx`: another folder leaves those of the host's owner
unchanged.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.programs.daemon_engine.omlx_api import NAME, OmlxApi
from llmkube.programs.daemon_engine.server import NoDaemonError, Server, ServerCommand

PREFIX: Final = "llmkube-omlx-own-"
"""Differs from the prefix of earlier releases, which do not lock their folders."""

_TRIES: Final = 5


@attrs.frozen
class OwnFolder:
    """The locked folder of our own oMLX. The kernel releases a dead front's lock, and a later front removes the folder.

    All methods block.

    Attributes:
        path: Path of the folder, accessible only to this user.
    """

    path: Path
    _fd: int

    def remove(self) -> None:
        """Remove the folder with its content, and release the lock; links are removed, but not their targets."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def create_own_folder() -> OwnFolder:
    """Create and lock a new folder.

    Raises:
        OSError: It cannot be created or locked.
    """
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        if (fd := _lock_folder(path)) is not None:
            return OwnFolder(path, fd)
        # Between the two steps, another front has taken it for an abandoned one.
    raise OSError(errno.ENOLCK, f"no folder in {tempfile.gettempdir()} can be locked; set TMPDIR to another disk")


def remove_abandoned() -> tuple[Path, ...]:
    """Remove this user's folders whose fronts are dead, and return them; other files of such a name are not touched."""
    return tuple(_remove_abandoned_in(Path(tempfile.gettempdir())))


def _remove_abandoned_in(parent: Path) -> Iterator[Path]:
    for path in parent.glob(f"{PREFIX}*"):
        if (fd := _lock_folder(path)) is not None:
            OwnFolder(path, fd).remove()
            yield path


def _lock_folder(path: Path) -> int | None:
    """Lock a folder and return its descriptor; None if it is not ours, is locked by another front, or is gone."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == stat.S_IRWXU:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(status, path.lstat()):
                    return fd
        except OSError:
            pass
        os.close(fd)
    return None


START_SECONDS: Final = 120.0
"""Limit until our own server answers: it imports MLX, and macOS scans each of its files once."""

_REMOVE_SECONDS: Final = 2.0
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+")


@attrs.frozen
class OmlxProgram:
    """Run oMLX's program for one model.

    Attributes:
        program: Name or path of the program.
        model: Folder of the model.
        api: API client, to be used with the server's URL.
        port: A free port on loopback.
        embeds: Whether the model only computes embeddings.
        context: Limit of tokens for a prompt and its response; 0 for oMLX's default.
        start_seconds: Limit until it answers.
        environ: The environment to inherit.
    """

    program: str
    model: Path
    api: OmlxApi
    port: int
    embeds: bool = False
    context: int = 0
    start_seconds: float = START_SECONDS
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Server]:
        """Run the server during the block; stop it afterwards, and remove everything that it has written.

        Raises:
            NoDaemonError: It does not start, or its folder cannot be created.
        """
        key = secrets.token_urlsafe(24)
        try:
            own_folder = await trio.to_thread.run_sync(self.create_folder)
        except OSError as error:
            raise NoDaemonError(f"cannot create a folder for LLMKube's own oMLX: {error.strerror or error}") from error
        folder = own_folder.path
        try:
            server = Server(f"http://127.0.0.1:{self.port}", key=key)
            inherited = {name: value for name, value in self.environ.items() if not name.startswith("OMLX_")}
            command = ServerCommand(
                name=NAME,
                argv=self.command_line(folder),
                # In the environment, because other users can see the command line.
                environ={**inherited, "OMLX_API_KEY": key, "OMLX_HF_CACHE_ENABLED": "false"},
                server=server,
                answers=attrs.evolve(self.api, url=server.url, key=key).models,
                start_seconds=self.start_seconds,
            )
            async with command.running() as running:
                yield running
        finally:
            with trio.move_on_after(_REMOVE_SECONDS, shield=True):
                await trio.to_thread.run_sync(own_folder.remove, abandon_on_cancel=True)

    def command_line(self, folder: Path) -> tuple[str, ...]:
        """Return the command line of our own server with its folder."""
        return (
            *(self.program, "serve", "--model-dir", str(folder / "models"), "--base-path", str(folder / "base")),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            # Its prompt cache may take a tenth of the disk, and would be removed with the service.
            "--no-cache",
            # Each further request would take the memory of a context, which the agent has not reserved.
            *("--max-concurrent-requests", "1"),
        )

    def create_folder(self) -> OwnFolder:
        """Create the folder of a server, with a link to the model and settings; blocks.

        Raises:
            OSError: It cannot be created.
        """
        own_folder = create_own_folder()
        folder = own_folder.path
        (folder / "models").mkdir()
        (folder / "base").mkdir()
        (folder / "models" / link_name(self.model, embeds=self.embeds)).symlink_to(self.model.absolute())
        if self.context:
            sampling = {"max_context_window": self.context, "max_context_window_policy": self.context}
            settings = json.dumps({"version": "1.0", "sampling": sampling})
            (folder / "base" / "settings.json").write_text(settings, "utf-8")
        return own_folder


def link_name(model: Path, *, embeds: bool) -> str:
    """Return the name of the link to a model, by which oMLX may recognize embedding models.

    It is the folder's name, unless that name would mark the model wrongly.
    """
    name = _NOT_IN_NAMES.sub("-", model.name).strip(".-") or "model"
    if embeds:
        return name if "embed" in name.lower() else f"{name}-embedding"
    return "model" if re.search(r"embed|rerank", name, re.IGNORECASE) else name
