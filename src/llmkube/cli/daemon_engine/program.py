"""The program that an agent starts for a service on Ollama: python -m llmkube.cli.daemon_engine.program --help.

```
serve
└ the server of Ollama          borrowed, or ours: ends last
  └ requests                    end first at a stop, so that Ollama stops what it computes for them
    └ keeper                    until a stop, or until it gives up
then: unload, and look whether the memory is back
```
"""

import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError, innermost
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.cli.daemon_engine.counters import Counters
from llmkube.cli.daemon_engine.daemon_api import DaemonApi
from llmkube.cli.daemon_engine.daemon_process import OllamaProgram, Starter, borrowed_or_own
from llmkube.cli.daemon_engine.front import handler_of, judge_of
from llmkube.cli.daemon_engine.keeper import Keeper
from llmkube.cli.daemon_engine.options import Options, parse, read_keys
from llmkube.cli.daemon_engine.weights import weights_of
from llmkube.cli.daemon_engine.witness import ProcessTable, ThisMachine, Witness
from llmkube.cli.program import LOOPBACK, Stop, open_service_nursery, raise_descriptor_limit, run_until_signal

DRAIN_SECONDS: Final = 0.5
"""For answers under way at a stop: the agent has let requests end before it sends TERM."""

log = structlog.get_logger()


@attrs.frozen
class Outside:
    """What of the world a test replaces.

    Attributes:
        client: The way to Ollama.
        table: The processes of this machine.
        starter: Starts a server where none answers.
    """

    client: HttpClient
    table: ProcessTable
    starter: Starter


async def serve(
    options: Options,
    keys: frozenset[str],
    outside: Outside,
    stop: Stop,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> bool:
    """Serve the model until a stop; return whether its memory is back then.

    Args:
        options: What to serve.
        keys: What clients have to show.
        outside: The world.
        stop: Ends it, in order.
        task_status: Told the port once it listens.

    Raises:
        LLMKubeError: It cannot be served; the model is unloaded then, too.
    """
    async with AsyncExitStack() as stack:
        listeners = await open_listeners(options.host, options.port, field="--port")
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        api = DaemonApi(outside.client, options.daemon)
        server = await stack.enter_async_context(
            borrowed_or_own(api, int(options.daemon.rpartition(":")[2]), outside.starter)
        )
        counters = Counters()
        witness = Witness(
            DaemonApi(outside.client, server.url), server.port, options.store_name, outside.table, server.pid
        )
        keeper = Keeper(witness, weights_of(options), counters, options.embeds)
        back = False
        try:
            async with open_sockets() as sockets, open_service_nursery() as servers:
                handler = handler_of(keeper, outside.client, options.alias, counters, embeds=options.embeds)
                run = partial(
                    run_server, handler, sockets.listen(listeners), limits=Limits(drain_seconds=DRAIN_SECONDS)
                )
                await servers.start(partial(run, judge=judge_of(keys)))
                task_status.started(listeners[0].socket.getsockname()[1])
                with stop.here():
                    await keeper.run()
        finally:
            back = await keeper.unload()  # noqa: ASYNC102 - it shields itself, with a deadline
    return back


async def _run(options: Options, keys: frozenset[str], stop: Stop) -> bool:
    async with open_sockets() as sockets, open_http_client(sockets.connect, max_idle_per_origin=64) as client:
        starter = OllamaProgram(options.program, DaemonApi(client, options.daemon), await _free_port())
        return await serve(options, keys, Outside(client, ThisMachine(), starter), stop)


async def _free_port() -> int:
    [listener] = await trio.open_tcp_listeners(0, host=LOOPBACK)
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


def main() -> None:
    """Serve what the command line says; exit with 1 when that is not possible, or when memory is not given back."""
    configure_logging("info")
    options = parse(sys.argv[1:], os.environ)
    keys: frozenset[str] = frozenset()
    if options.keys is not None:
        try:
            keys = read_keys(options.keys)
        except (OSError, ValueError) as error:
            sys.exit(f"--api-key-file {options.keys}: {error}")
    raise_descriptor_limit()
    try:
        back = trio.run(run_until_signal, partial(_run, options, keys), log.info)
    except* LLMKubeError as group:
        sys.exit(f"ollama: {innermost(group)}")  # a line of its own: the agent reads why an engine has ended
    sys.exit(1 if back is False else 0)


if __name__ == "__main__":
    main()
