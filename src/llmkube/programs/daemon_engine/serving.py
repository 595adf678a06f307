"""Serve one model of a daemon until a stop, and free its memory; shared by the programs of all daemons.

```
serve
└ the daemon                    borrowed, or ours: stopped last
  └ requests                    cancelled first at a stop, so that the daemon stops computing for them
    └ keeper                    until a stop, or until it gives up
then: unload, and check that the memory is free
```
"""

import argparse
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError, first_leaf
from llmkube.base.http.client import HttpClient
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.programs.daemon_engine.front import handler_of, judge_of
from llmkube.programs.daemon_engine.keeper import Adapter, Counters, Keeper
from llmkube.programs.daemon_engine.model_lock import OpenLock, lock_opener
from llmkube.programs.daemon_engine.server import ProcessTable, Starter, no_server
from llmkube.programs.program import LOOPBACK, Stop, open_service_nursery, raise_descriptor_limit, run_until_signal
from llmkube.runtimes.plan import UNLOAD_LEFT


@attrs.frozen(kw_only=True)
class FrontOptions:
    """Options of a front.

    Attributes:
        alias: Name of the model for clients.
        host: Address to listen on.
        port: Port to listen on.
        keys: File with the clients' keys; None if no key is required.
        embeds: Whether only embeddings are served.
        context: Limit of tokens for a prompt and its response; 0 for the daemon's default.
        only_unloads: Serve nothing, and only unload the model that a killed engine has left loaded.
    """

    alias: str
    host: str = "127.0.0.1"
    port: int
    keys: Path | None = None
    embeds: bool = False
    context: int = 0
    only_unloads: bool = False


def front_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for the `FrontOptions` and `--service`."""
    parser = argparse.ArgumentParser(name, description=description, allow_abbrev=False)
    parser.add_argument("--alias", required=True, help="name of the model for clients")
    parser.add_argument("--service", required=True, help="service of the model", metavar="NAMESPACE/NAME")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    keys = "file with the API keys of clients, one per line"
    parser.add_argument("--api-key-file", dest="keys", type=Path, help=keys, metavar="FILE")
    parser.add_argument("--embedding", dest="embeds", action="store_true", help="serve embeddings only")
    context = "context in tokens (0: the daemon's own default)"
    parser.add_argument("--ctx-size", dest="context", type=int, default=0, help=context, metavar="CTX_SIZE")
    only = "only unload the model that a killed engine has left loaded, and exit"
    parser.add_argument(UNLOAD_LEFT, dest="only_unloads", action="store_true", help=only)
    return parser


def front_fields(given: argparse.Namespace) -> dict[str, Any]:
    """Return the parsed values for `FrontOptions`, as keyword arguments."""
    return {each.name: getattr(given, each.name) for each in attrs.fields(FrontOptions)}


def service_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[str, str]:
    """Return namespace and name of `--service`; exit with 2 and one line if one of them is missing."""
    namespace, slash, name = given.service.partition("/")
    if not (namespace and slash and name):
        parser.error(f"--service {given.service}: use NAMESPACE/NAME")
    return namespace, name


def read_keys(path: Path) -> frozenset[str]:
    """Return the keys in a file in the format of llama-server's flag; blocks.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has no key: with an empty list, an engine would need none.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    keys = frozenset(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"{path} contains no key")
    return keys


DRAIN_SECONDS: Final = 0.5
"""Drain time of requests at a stop, which is short because the agent drains before it sends SIGTERM."""

log = structlog.get_logger()


@asynccontextmanager
async def kept(manager: AbstractAsyncContextManager[Adapter], open_lock: OpenLock) -> AsyncIterator[Keeper]:
    """Open a model and its lock for the block, and yield the keeper.

    Args:
        manager: Opens the model in its daemon.
        open_lock: Opens the model's lock.

    Raises:
        LLMKubeError: There is no daemon, or the lock cannot be used.
    """
    async with manager as adapter, open_lock(adapter.lock_key) as lock:
        yield Keeper(adapter, Counters(), lock)


@attrs.frozen
class Dependencies:
    """Dependencies that tests replace.

    Attributes:
        client: HTTP client for the daemon.
        table: The process table of this machine.
        starter: Starts a server if none is borrowed.
        open_lock: Opens the lock of a model.
    """

    client: HttpClient
    table: ProcessTable
    starter: Starter
    open_lock: OpenLock = attrs.field(default=lock_opener(""), kw_only=True)


OptionsT = TypeVar("OptionsT", bound=FrontOptions)
DependenciesT = TypeVar("DependenciesT", bound=Dependencies)


async def serve_model(
    open_model: Callable[[OptionsT, DependenciesT], AbstractAsyncContextManager[Adapter]],
    options: OptionsT,
    keys: frozenset[str],
    deps: DependenciesT,
    stop: Stop,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> bool:
    """Serve a model until a stop; return whether its memory is free afterwards.

    With `only_unloads` nothing is served: only the model that a killed engine has left is unloaded.

    Args:
        open_model: Opens the model in its daemon for a block.
        options: Options of the front.
        keys: Keys of the clients; empty if no key is required.
        deps: Dependencies that tests replace.
        stop: Requests an orderly stop.
        task_status: Started with the port once it listens.

    Raises:
        LLMKubeError: The model cannot be served; it is unloaded in this case as well.
    """
    if options.only_unloads:
        deps = attrs.evolve(deps, starter=no_server)
    manager = kept(open_model(options, deps), deps.open_lock)
    if options.only_unloads:
        async with manager as keeper:
            return await keeper.unload_leftover()
    async with AsyncExitStack() as stack:
        listeners = await open_listeners(options.host, options.port, field="--port")
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        keeper = await stack.enter_async_context(manager)
        released = False
        try:
            async with open_sockets() as sockets, open_service_nursery() as servers:
                handler = handler_of(keeper, deps.client, options.alias, keeper.counters, embeds=options.embeds)
                run = partial(
                    run_server, handler, sockets.listen(listeners), limits=Limits(drain_seconds=DRAIN_SECONDS)
                )
                await servers.start(partial(run, judge=judge_of(keys)))
                task_status.started(listeners[0].socket.getsockname()[1])
                with stop.scope():
                    await keeper.run()
        finally:
            released = await keeper.unload()  # noqa: ASYNC102 - it shields itself, with a deadline
    return released


async def free_port() -> int:
    """Return a free port of the loopback address."""
    [listener] = await trio.open_tcp_listeners(0, host=LOOPBACK)
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


def run_program(name: str, options: FrontOptions, run: Callable[[frozenset[str], Stop], Awaitable[bool]]) -> None:
    """Serve as a process; exit with 1 if that is impossible, or if the memory is not freed.

    Args:
        name: Prefix of the error line in which the agent finds why an engine has exited.
        options: Options of the front.
        run: Serves with these keys until a stop; returns whether the memory is free.
    """
    configure_logging("info")
    keys: frozenset[str] = frozenset()
    if options.keys is not None and not options.only_unloads:
        try:
            keys = read_keys(options.keys)
        except (OSError, ValueError) as error:
            sys.exit(f"--api-key-file {options.keys}: {error}")
    raise_descriptor_limit()
    try:
        released = trio.run(run_until_signal, partial(run, keys), log.info)
    except* LLMKubeError as group:
        sys.exit(f"{name}: {first_leaf(group)}")  # its own line, in which the agent finds why the engine has exited
    sys.exit(1 if released is False else 0)
