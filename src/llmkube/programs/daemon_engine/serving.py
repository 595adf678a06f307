"""Serves one model of a daemon until a stop, and gives its memory back: what the programs of all daemons share.

```
serve
└ the daemon                    borrowed, or ours: ends last
  └ requests                    end first at a stop, so that the daemon stops what it computes for them
    └ keeper                    until a stop, or until it gives up
then: unload, and look whether the memory is back
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
    """What clients reach.

    Attributes:
        alias: The name that they know.
        host: Where to listen.
        port: The port.
        keys: The file with the keys that clients show; None when none is asked for.
        embeds: Whether it serves embeddings, and nothing else.
        context: Tokens that a prompt and its answer may have; 0 for what the daemon has by itself.
        only_unloads: Whether nothing is served: what a killed one has left is unloaded, and that is all.
    """

    alias: str
    host: str = "127.0.0.1"
    port: int
    keys: Path | None = None
    embeds: bool = False
    context: int = 0
    only_unloads: bool = False


def front_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser that knows these options, `--service`, and the context."""
    parser = argparse.ArgumentParser(name, description=description, allow_abbrev=False)
    parser.add_argument("--alias", required=True, help="name that clients know")
    parser.add_argument("--service", required=True, help="whose model it is", metavar="NAMESPACE/NAME")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    keys = "keys that clients must show, one per line"
    parser.add_argument("--api-key-file", dest="keys", type=Path, help=keys, metavar="FILE")
    parser.add_argument("--embedding", dest="embeds", action="store_true", help="serve embeddings and nothing else")
    context = "context in tokens (0: the daemon's own default)"
    parser.add_argument("--ctx-size", dest="context", type=int, default=0, help=context, metavar="CTX_SIZE")
    only = "only unload what a killed one has left, and end"
    parser.add_argument(UNLOAD_LEFT, dest="only_unloads", action="store_true", help=only)
    return parser


def front_fields(given: argparse.Namespace) -> dict[str, Any]:
    """Return what was said of `FrontOptions`, as its keywords."""
    return {each.name: getattr(given, each.name) for each in attrs.fields(FrontOptions)}


def service_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[str, str]:
    """Return namespace and name of `--service`; exits with 2 and one line when it has not both."""
    namespace, slash, name = given.service.partition("/")
    if not (namespace and slash and name):
        parser.error(f"--service {given.service}: write NAMESPACE/NAME")
    return namespace, name


def read_keys(path: Path) -> frozenset[str]:
    """Return the keys of a file, as llama-server's flag reads them; blocks.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no key: an engine with an empty list would let all in.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    keys = frozenset(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"{path} holds no key")
    return keys


DRAIN_SECONDS: Final = 0.5
"""For answers under way at a stop: the agent has let requests end before it sends TERM."""

log = structlog.get_logger()


@asynccontextmanager
async def kept(manager: AbstractAsyncContextManager[Adapter], open_lock: OpenLock) -> AsyncIterator[Keeper]:
    """Have the keeper of a model during the block, and its part in the model's lock.

    Args:
        manager: Has the daemon run during the block.
        open_lock: Tells who else uses the model.

    Raises:
        LLMKubeError: There is no daemon, or the lock cannot be used.
    """
    async with manager as adapter, open_lock(adapter.lock_key) as lock:
        yield Keeper(adapter, Counters(), lock)


@attrs.frozen
class Dependencies:
    """What of the world a test replaces.

    Attributes:
        client: The way to the daemon.
        table: The processes of this machine.
        starter: Starts a server where none is borrowed.
        open_lock: Tells who else uses a model.
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
    """Serve the model until a stop; return whether its memory is back then.

    With `only_unloads` nothing is served: what an engine that was killed has left is unloaded.

    Args:
        open_model: Has the daemon run during the block, and the model in it.
        options: What clients reach.
        keys: What they have to show.
        deps: What of the world it uses.
        stop: Ends it, in order.
        task_status: Told the port once it listens.

    Raises:
        LLMKubeError: It cannot be served; the model is unloaded then, too.
    """
    if options.only_unloads:
        deps = attrs.evolve(deps, starter=no_server)
    manager = kept(open_model(options, deps), deps.open_lock)
    if options.only_unloads:
        async with manager as keeper:
            return await keeper.unload_left()
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
    """Return a port of the loopback address at which nothing listens now."""
    [listener] = await trio.open_tcp_listeners(0, host=LOOPBACK)
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


def run_program(name: str, options: FrontOptions, run: Callable[[frozenset[str], Stop], Awaitable[bool]]) -> None:
    """Serve, as a process; exit with 1 when that is not possible, or when memory is not given back.

    Args:
        name: What the line begins with by which the agent reads why an engine has ended.
        options: What clients reach.
        run: Serves with these keys until a stop; returns whether the memory is back.
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
        sys.exit(f"{name}: {first_leaf(group)}")  # a line of its own: the agent reads why an engine has ended
    sys.exit(1 if released is False else 0)
