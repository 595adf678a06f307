"""The program that an agent starts for a service on oMLX: python -m llmkube.programs.daemon_engine.omlx_program --help.

It borrows the oMLX of the host's owner if that has the model's folder, and never stops that server.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
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
    PORT_VARIABLE,
    START_VARIABLE,
    OmlxApi,
)
from llmkube.programs.daemon_engine.omlx_model import OmlxModel, resolve_links
from llmkube.programs.daemon_engine.omlx_server import START_SECONDS, OmlxProgram, remove_abandoned
from llmkube.programs.daemon_engine.server import DaemonError, NoDaemonError, ProcessTable, Server
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
        starter = OmlxProgram(
            options.program,
            options.model,
            OmlxApi(client, options.daemon),
            await free_port(),
            options.embeds,
            options.context,
            options.start_seconds,
        )
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
