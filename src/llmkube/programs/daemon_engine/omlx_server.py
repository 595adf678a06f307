"""An `omlx serve` of our own: at a port of its own, with one model, a key of its own and a folder for all it writes.

oMLX keeps what its command line says, in `~/.omlx` unless it is given another folder: so the settings of the host's
owner stay as they are.
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
"""Not that of earlier releases, which hold no lock of theirs."""

_TRIES: Final = 5


@attrs.frozen
class OwnFolder:
    """The folder of an oMLX of ours, held by its lock; the kernel drops a dead front's, and a later front removes it.

    All of it blocks.

    Attributes:
        path: Where it is; for this user alone.
    """

    path: Path
    _fd: int

    def remove(self) -> None:
        """Remove it with all that is in it, and let it go; a link in it is removed, and not what it leads to."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def create_own_folder() -> OwnFolder:
    """Make one.

    Raises:
        OSError: It cannot be made.
    """
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        if (fd := _lock_folder(path)) is not None:
            return OwnFolder(path, fd)
        # Another front has taken it for an abandoned one, in the moment between the two steps.
    raise OSError(errno.ENOLCK, f"no folder in {tempfile.gettempdir()} can be locked; set TMPDIR to another disk")


def remove_abandoned() -> tuple[Path, ...]:
    """Remove the folders whose fronts are dead, and return them: of this user, and never what only is called so."""
    return tuple(_remove_abandoned_in(Path(tempfile.gettempdir())))


def _remove_abandoned_in(parent: Path) -> Iterator[Path]:
    for path in parent.glob(f"{PREFIX}*"):
        if (fd := _lock_folder(path)) is not None:
            OwnFolder(path, fd).remove()
            yield path


def _lock_folder(path: Path) -> int | None:
    """Return the lock of a folder; None if it is not ours, is another front's, or has gone."""
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
"""Until one of our own answers: it imports MLX, and macOS looks at each file of it once."""

_REMOVE_SECONDS: Final = 2.0
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+")


@attrs.frozen
class OmlxProgram:
    """Starts oMLX's own program for one model.

    Attributes:
        program: Its name or path.
        model: The folder of the model.
        api: The way to servers.
        port: A free one on loopback.
        embeds: Whether the model computes embeddings alone.
        context: Tokens that a prompt and its answer may have; 0 for what oMLX has by itself.
        start_seconds: Until it has to answer.
        environ: The environment that it inherits.
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
        """Run one during the block; end it afterwards, and remove what it has written.

        Raises:
            NoDaemonError: It does not start, or there is no place for its folder.
        """
        key = secrets.token_urlsafe(24)
        try:
            own_folder = await trio.to_thread.run_sync(self.create_folder)
        except OSError as error:
            raise NoDaemonError(f"no folder can be made for an oMLX of our own: {error.strerror or error}") from error
        folder = own_folder.path
        try:
            server = Server(f"http://127.0.0.1:{self.port}", key=key)
            inherited = {name: value for name, value in self.environ.items() if not name.startswith("OMLX_")}
            command = ServerCommand(
                name=NAME,
                argv=self.command_line(folder),
                # In the environment, which other users do not see; a command line they do.
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
        """Return how one of our own is started, with its folder."""
        return (
            self.program,
            "serve",
            "--model-dir",
            str(folder / "models"),
            "--base-path",
            str(folder / "base"),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            # Its cache of prompts may take a tenth of the disk, and would be gone with the service.
            "--no-cache",
            # Each further one would take a context's memory more than the agent has promised.
            "--max-concurrent-requests",
            "1",
        )

    def create_folder(self) -> OwnFolder:
        """Make the folder of one: a link to the model, and settings; blocks.

        Raises:
            OSError: It cannot be made.
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
    """Return what a model is called: oMLX tells embedding models from others by their names, where their files do not.

    A name that says nothing of that is the folder's own.
    """
    name = _NOT_IN_NAMES.sub("-", model.name).strip(".-") or "model"
    if embeds:
        return name if "embed" in name.lower() else f"{name}-embedding"
    return "model" if re.search(r"embed|rerank", name, re.IGNORECASE) else name
