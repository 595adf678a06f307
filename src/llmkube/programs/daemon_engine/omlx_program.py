"""The program that an agent starts for a service on oMLX: python -m llmkube.programs.daemon_engine.omlx_program --help.

It borrows the oMLX of the host's owner where that has the model's folder, and never ends that one.
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
from llmkube.programs.daemon_engine.omlx_api import OmlxApi
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
    """What answers at the address of the owner's oMLX.

    Attributes:
        url: The address.
        answers: Whether anything listens there.
        error: Why it was not understood; "" when it was.
        is_omlx: Whether it looks like oMLX.
        status: What it has refused our questions with; 0 when it has not.
        folders: Where its models are, with links followed; "" of each of which it does not say.
    """

    url: str
    answers: bool = True
    error: str = ""
    is_omlx: bool = True
    status: int = 0
    folders: Collection[str] = ()


def choose(owner: OwnerServer, folder: str) -> tuple[bool, str]:
    """Return whether the oMLX that runs serves the model in this folder, whose links are followed, and why or why not.

    An oMLX that runs is used if it has the folder among its models. It reads its folders when it starts, and takes a
    new one by its own pages alone, which no key of an API opens.

    Raises:
        NoDaemonError: It is not used, and none of our own may be started beside it.
    """
    if not owner.answers:
        return False, f"no oMLX runs at {owner.url}"
    if not owner.is_omlx:
        return False, f"what answers at {owner.url} does not answer as oMLX does"
    if owner.status in (401, 403):
        reason = f"the oMLX at {owner.url} asks for a key: to have it used, name a file with the key by --omlx-key-file"
        return False, reason
    if owner.error:  # it may have models in memory of which nothing can be told
        raise NoDaemonError(f"{owner.error}; no second one is started beside it")
    if folder in owner.folders:
        return True, f"the oMLX at {owner.url} has the model"
    if owner.folders and not any(owner.folders):
        return False, f"the oMLX at {owner.url} does not say where its models are: it is too old to be used"
    reason = f"the oMLX at {owner.url} does not have the model: to have it used, add the folder above {folder} to its"
    return False, f"{reason} model folders"


DEFAULT_PORT: Final = 8000
PORT_VARIABLE: Final = "OMLX_PORT"
"""oMLX's own."""

KEY_FILE_VARIABLE: Final = "LLMKUBE_OMLX_KEY_FILE"
START_VARIABLE: Final = "LLMKUBE_OMLX_STARTUP_SECONDS"

_MOST_PORT: Final = 65535


@attrs.frozen(kw_only=True)
class Options(FrontOptions):
    """What to serve, and how.

    Attributes:
        model: The folder of the model.
        program: oMLX's own program.
        daemon: Where the owner's oMLX would be.
        key_file: Holds the key that that one asks for; None where it asks for none.
        start_seconds: Until one of our own has to answer.
    """

    model: Path
    program: str = "omlx"
    daemon: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    key_file: Path | None = None
    start_seconds: float = START_SECONDS


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the command line and the agent's variables; exits with 2 and one line when they cannot be honoured."""
    parser = front_parser("omlx-engine", "One model of an oMLX, served as llama-server serves one.")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model", metavar="FOLDER")
    parser.add_argument("--omlx", default="omlx", help="program to start where no oMLX has the model")
    given = parser.parse_args(argv)
    service_of(parser, given)
    port, seconds = environ.get(PORT_VARIABLE, "").strip(), environ.get(START_VARIABLE, "").strip()
    if port and not (port.isdecimal() and 0 < int(port) <= _MOST_PORT):
        parser.error(f"{PORT_VARIABLE}={port}: write a port, such as {DEFAULT_PORT}")
    try:
        start_seconds = float(seconds or START_SECONDS)
    except ValueError:
        parser.error(f"{START_VARIABLE}={seconds}: write seconds, such as {START_SECONDS:g}")
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
    """What of the world a test replaces.

    Attributes:
        key: What the owner's oMLX asks for; "" where none was given.
        resolve: Returns a path with its links followed.
    """

    key: str = attrs.field(default="", repr=False)
    resolve: Callable[[str], Awaitable[str]] = resolve_links


@asynccontextmanager
async def open_model(options: Options, deps: OmlxDependencies) -> AsyncIterator[OmlxModel]:
    """Have a server during the block, and the model in it.

    Raises:
        NoDaemonError: There is none, and none can be started.
    """
    folder = await deps.resolve(str(options.model))
    theirs = OmlxApi(deps.client, options.daemon, deps.key)
    is_used, reason = choose(await probe_owner(theirs, deps.resolve), folder)
    async with AsyncExitStack() as stack:
        server = Server(options.daemon, key=deps.key)
        if is_used:
            log.info(reason, then="it is used, and stays when this engine ends")
        else:
            log.info(reason, then="one of our own is started for this engine")
            server = await stack.enter_async_context(deps.starter())
        api = OmlxApi(deps.client, server.url, server.key)
        yield OmlxModel(api, server.port, folder, deps.table, options.embeds, deps.resolve, server=server.pid)


async def probe_owner(api: OmlxApi, resolve: Callable[[str], Awaitable[str]] = resolve_links) -> OwnerServer:
    """Return what answers at the address of the owner's oMLX; the folders of its models with links followed."""
    try:
        if not await api.is_omlx():
            return OwnerServer(url=api.url, is_omlx=False)
        entries = await api.models()
    except DaemonError as error:
        return OwnerServer(url=api.url, answers=not error.gone, error=str(error), status=error.status)
    return OwnerServer(url=api.url, folders=[await resolve(entry.path) for entry in entries])


serve: Final = partial(serve_model, open_model)
"""Serves the model until a stop (`serve_model`)."""


async def _run(options: Options, key: str, keys: frozenset[str], stop: Stop) -> bool:
    for folder in await trio.to_thread.run_sync(remove_abandoned, abandon_on_cancel=True):
        log.info("removed what a killed engine has left", folder=str(folder))
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
    """Return the key in a file: its first line; blocks.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds none, or something that no header can carry.
    """
    key = path.read_text("utf-8").strip().partition("\n")[0].strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"{path} holds no key")
    return key


def main() -> None:
    """Serve what the command line says."""
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
