"""The program that an agent starts for a service on oMLX: python -m llmkube.programs.daemon_engine.omlx_program --help.

It borrows the oMLX of the host's owner if that has the model's folder, and never stops that server.
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
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.programs.daemon_engine.model_lock import lock_opener
from llmkube.programs.daemon_engine.omlx_api import (
    DEFAULT_PORT,
    KEY_FILE_VARIABLE,
    NAME,
    PORT_VARIABLE,
    START_VARIABLE,
    OmlxApi,
)
from llmkube.programs.daemon_engine.omlx_model import OmlxModel, resolve_links
from llmkube.programs.daemon_engine.server import DaemonError, NoDaemonError, ProcessTable, Server, ServerCommand
from llmkube.programs.daemon_engine.serving import (
    Dependencies,
    FrontOptions,
    free_port,
    front_fields,
    front_parser,
    run_program,
    serve_model,
    service_of,
)
from llmkube.programs.program import Stop
from llmkube.supervisor.host.processes import OWNER_VARIABLE

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
        options: Options of the front.
        api: API client, to be used with the server's URL.
        port: A free port on loopback.
        environ: The environment to inherit.
    """

    options: "Options"
    api: OmlxApi
    port: int
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
                start_seconds=self.options.start_seconds,
            )
            async with command.running() as running:
                yield running
        finally:
            with trio.move_on_after(_REMOVE_SECONDS, shield=True):
                await trio.to_thread.run_sync(own_folder.remove, abandon_on_cancel=True)

    def command_line(self, folder: Path) -> tuple[str, ...]:
        """Return the command line of our own server with its folder."""
        folders = ("--model-dir", str(folder / "models"), "--base-path", str(folder / "base"))
        return (
            *(self.options.program, "serve", *folders),
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
        own_folder, model, context = create_own_folder(), self.options.model, self.options.context
        folder = own_folder.path
        (folder / "models").mkdir()
        (folder / "base").mkdir()
        (folder / "models" / link_name(model, embeds=self.options.embeds)).symlink_to(model.absolute())
        if context:
            sampling = {"max_context_window": context, "max_context_window_policy": context}
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


@attrs.frozen(kw_only=True)
class OwnerServer:
    """The server at the address of the owner's oMLX.

    Attributes:
        answers: Whether anything listens there.
        error: Error of a failed query; empty if there was none.
        is_omlx: Whether it looks like oMLX.
        status: HTTP status of a refusal; 0 if there was none.
        folders: Folders of its models, with links resolved; empty for each that it does not report.
    """

    url: str
    answers: bool = True
    error: str = ""
    is_omlx: bool = True
    status: int = 0
    folders: Collection[str] = ()


def choose(owner: OwnerServer, folder: str) -> tuple[bool, str]:
    """Return whether to use the running oMLX for the model in this folder (with links resolved), and the reason.

    A running oMLX is used if it has the folder among its models. It reads its folders when it starts; a new one can
    be added only on its admin pages, which accept no API key.

    Raises:
        NoDaemonError: It cannot be used, and our own must not be started next to it.
    """
    if not owner.answers:
        return False, f"no oMLX runs at {owner.url}"
    if not owner.is_omlx:
        return False, f"the server at {owner.url} is not oMLX"
    if owner.status in (401, 403):
        reason = f"the oMLX at {owner.url} requires a key: to use it, set --omlx-key-file to a file with the key"
        return False, reason
    if owner.error:  # it may have models in memory that cannot be listed
        raise NoDaemonError(f"{owner.error}; no second server is started next to it")
    if folder in owner.folders:
        return True, f"the oMLX at {owner.url} has the model"
    if owner.folders and not any(owner.folders):
        return False, f"the oMLX at {owner.url} does not report the folders of its models: it is too old to be used"
    reason = f"the oMLX at {owner.url} does not have the model: to use it, add the parent folder of {folder} to its"
    return False, f"{reason} model folders"


_MAX_PORT: Final = 65535


@attrs.frozen(kw_only=True)
class Options(FrontOptions):
    """Options of the program.

    Attributes:
        model: Folder of the model.
        program: oMLX's program.
        daemon: URL of the owner's oMLX.
        key_file: File with the key of the owner's oMLX; None if it requires none.
        start_seconds: Limit until our own server answers.
    """

    model: Path
    program: str = "omlx"
    daemon: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    key_file: Path | None = None
    start_seconds: float = START_SECONDS


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse the command line and the agent's variables; on an error, print one line and exit with 2."""
    parser = front_parser("omlx-engine", "Serve one model of oMLX with llama-server's API.")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model", metavar="FOLDER")
    parser.add_argument("--omlx", default="omlx", help="program to start if no oMLX has the model")
    given = parser.parse_args(argv)
    service_of(parser, given)
    port, seconds = environ.get(PORT_VARIABLE, "").strip(), environ.get(START_VARIABLE, "").strip()
    if port and not (port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        parser.error(f"{PORT_VARIABLE}={port}: set a port, such as {DEFAULT_PORT}")
    try:
        start_seconds = float(seconds or START_SECONDS)
    except ValueError:
        parser.error(f"{START_VARIABLE}={seconds}: set a number, such as {START_SECONDS:g}")
    key_file = environ.get(KEY_FILE_VARIABLE, "")
    return Options(
        **front_fields(given),
        model=given.model,
        program=given.omlx,
        daemon=f"http://127.0.0.1:{port or DEFAULT_PORT}",
        key_file=Path(key_file) if key_file else None,
        start_seconds=start_seconds,
    )


log = structlog.get_logger()


@attrs.frozen
class OmlxDependencies(Dependencies):
    """Dependencies that tests replace.

    Attributes:
        key: Key for the owner's oMLX; empty if none was given.
        resolve: Returns a path with links resolved.
    """

    key: str = attrs.field(default="", repr=False)
    resolve: Callable[[str], Awaitable[str]] = resolve_links


@asynccontextmanager
async def open_model(options: Options, deps: OmlxDependencies) -> AsyncIterator[OmlxModel]:
    """Borrow or start a server for the block, and yield the model in it.

    Raises:
        NoDaemonError: No server can be used, and none can be started.
    """
    folder = await deps.resolve(str(options.model))
    theirs = OmlxApi(deps.client, options.daemon, deps.key)
    is_used, reason = choose(await probe_owner(theirs, deps.resolve), folder)
    async with AsyncExitStack() as stack:
        server = Server(options.daemon, key=deps.key)
        if is_used:
            log.info(reason, then="it is used, and keeps running when this engine exits")
        else:
            log.info(reason, then="LLMKube starts its own for this engine")
            server = await stack.enter_async_context(deps.starter())
        api = OmlxApi(deps.client, server.url, server.key)
        yield OmlxModel(api, server.port, folder, deps.table, options.embeds, deps.resolve, server=server.pid)


async def probe_owner(api: OmlxApi, resolve: Callable[[str], Awaitable[str]] = resolve_links) -> OwnerServer:
    """Return the server at the address of the owner's oMLX, with the folders of its models."""
    try:
        if not await api.is_omlx():
            return OwnerServer(url=api.url, is_omlx=False)
        entries = await api.models()
    except DaemonError as error:
        return OwnerServer(url=api.url, answers=not error.gone, error=str(error), status=error.status)
    return OwnerServer(url=api.url, folders=[await resolve(entry.path) for entry in entries])


serve: Final = partial(serve_model, open_model)
"""Serve the model until a stop (`serve_model`)."""


async def _run(options: Options, key: str, keys: frozenset[str], stop: Stop) -> bool:
    for folder in await trio.to_thread.run_sync(remove_abandoned, abandon_on_cancel=True):
        log.info("folder of a killed engine removed", folder=str(folder))
    async with open_sockets() as sockets, open_http_client(sockets.connect, max_idle_per_origin=64) as client:
        starter = OmlxProgram(options, OmlxApi(client, options.daemon), await free_port())
        locks = lock_opener(os.environ.get(OWNER_VARIABLE, ""))
        deps = OmlxDependencies(client, ProcessTable(), starter.started, key, open_lock=locks)
        return await serve(options, keys, deps, stop)


def read_key(path: Path) -> str:
    """Return the key in the first line of a file; blocks.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has no key, or one that is invalid in a header.
    """
    key = path.read_text("utf-8").strip().partition("\n")[0].strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"{path} contains no key of printable ASCII characters; write the key on its first line")
    return key


def main() -> None:
    """Serve the model of the command line."""
    options = parse(sys.argv[1:], os.environ)
    key = ""
    if options.key_file is not None:
        try:
            key = read_key(options.key_file)
        except (OSError, ValueError) as error:
            sys.exit(f"omlx: --omlx-key-file: {error}")
    run_program("omlx", options, partial(_run, options, key))


if __name__ == "__main__":
    main()
