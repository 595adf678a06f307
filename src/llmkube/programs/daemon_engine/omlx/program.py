"""The program that an agent starts for a service on oMLX: python -m llmkube.programs.daemon_engine.omlx.program --help.

It borrows the oMLX of the host's owner where that has the model's folder, and never ends that one.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.programs.daemon_engine.daemon_http import DaemonError
from llmkube.programs.daemon_engine.model_lock import OpenLock, locks_in, unshared
from llmkube.programs.daemon_engine.omlx.choosing import Found, Whose, choose
from llmkube.programs.daemon_engine.omlx.daemon_api import DaemonApi
from llmkube.programs.daemon_engine.omlx.daemon_process import OmlxProgram
from llmkube.programs.daemon_engine.omlx.model import OmlxModel, followed
from llmkube.programs.daemon_engine.omlx.options import Options, parse
from llmkube.programs.daemon_engine.omlx.own_folder import remove_abandoned
from llmkube.programs.daemon_engine.processes import ProcessTable, ThisMachine
from llmkube.programs.daemon_engine.server_process import NoDaemonError, NoStarter, Server, Starter
from llmkube.programs.daemon_engine.serving import free_port, kept, run_program, serve_model
from llmkube.programs.program import Stop
from llmkube.supervisor.host.processes import OWNER_VARIABLE

log = structlog.get_logger()


@attrs.frozen
class Outside:
    """What of the world a test replaces.

    Attributes:
        client: The way to oMLX.
        table: The processes of this machine.
        starter: Starts one of our own.
        key: What the owner's oMLX asks for; "" where none was given.
        follow: Returns a path with its links followed.
        open_lock: Tells who else uses a model.
    """

    client: HttpClient
    table: ProcessTable
    starter: Starter
    key: str = attrs.field(default="", repr=False)
    follow: Callable[[str], Awaitable[str]] = followed
    open_lock: OpenLock = unshared


@asynccontextmanager
async def opened_model(options: Options, outside: Outside) -> AsyncIterator[OmlxModel]:
    """Have a server during the block, and the model in it.

    Raises:
        NoDaemonError: There is none, and none can be started.
    """
    folder = await outside.follow(str(options.model))
    theirs = DaemonApi(outside.client, options.daemon, outside.key)
    choice = choose(await look_for(theirs, outside.follow), folder)
    if choice.whose is Whose.NONE:
        raise NoDaemonError(choice.why)
    async with AsyncExitStack() as stack:
        server = Server(options.daemon, key=outside.key)
        if choice.whose is Whose.THEIRS:
            log.info(choice.why, then="it is used, and stays when this engine ends")
        else:
            log.info(choice.why, then="one of our own is started for this engine")
            server = await stack.enter_async_context(outside.starter.started())
        api = DaemonApi(outside.client, server.url, server.key)
        yield OmlxModel(api, server.port, folder, outside.table, options.embeds, outside.follow, server=server.pid)


async def look_for(api: DaemonApi, follow: Callable[[str], Awaitable[str]] = followed) -> Found:
    """Return what answers at the address of the owner's oMLX; the folders of its models with links followed."""
    try:
        if not await api.is_omlx():
            return Found(url=api.url, is_omlx=False)
        entries = await api.models()
    except DaemonError as error:
        return Found(url=api.url, answers=not error.gone, error=str(error), status=error.status)
    return Found(url=api.url, folders=[await follow(entry.path) for entry in entries])


async def serve(
    options: Options,
    keys: frozenset[str],
    outside: Outside,
    stop: Stop,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> bool:
    """Serve the model until a stop; arguments and errors are those of `serve_model`."""
    if options.only_unloads:
        outside = attrs.evolve(outside, starter=NoStarter())
    opened = kept(opened_model(options, outside), outside.open_lock)
    return await serve_model(options, keys, outside.client, opened, stop, task_status=task_status)


async def _run(options: Options, key: str, keys: frozenset[str], stop: Stop) -> bool:
    for left in await trio.to_thread.run_sync(remove_abandoned, abandon_on_cancel=True):
        log.info("removed what a killed engine has left", folder=str(left))
    async with open_sockets() as sockets, open_http_client(sockets.connect, max_idle_per_origin=64) as client:
        starter = OmlxProgram(options, DaemonApi(client, options.daemon), await free_port())
        locks = locks_in(os.environ.get(OWNER_VARIABLE, ""))
        outside = Outside(client, ThisMachine(), starter, key, open_lock=locks)
        return await serve(options, keys, outside, stop)


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
