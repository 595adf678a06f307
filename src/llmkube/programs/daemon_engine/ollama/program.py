"""The program that an agent starts for a service on Ollama.

python -m llmkube.programs.daemon_engine.ollama.program --help

It borrows the server that answers at OLLAMA_HOST, and never ends that one.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.programs.daemon_engine.model_lock import OpenLock, locks_in, unshared
from llmkube.programs.daemon_engine.ollama.daemon_api import DaemonApi
from llmkube.programs.daemon_engine.ollama.daemon_process import OllamaProgram
from llmkube.programs.daemon_engine.ollama.model import OllamaModel
from llmkube.programs.daemon_engine.ollama.options import Options, parse
from llmkube.programs.daemon_engine.ollama.weights import weights_of
from llmkube.programs.daemon_engine.ollama.witness import Witness
from llmkube.programs.daemon_engine.processes import ProcessTable, ThisMachine
from llmkube.programs.daemon_engine.server_process import NoStarter, Starter, borrowed_or_own
from llmkube.programs.daemon_engine.serving import free_port, kept, run_program, serve_model
from llmkube.programs.program import Stop
from llmkube.supervisor.host.processes import OWNER_VARIABLE


@attrs.frozen
class Outside:
    """What of the world a test replaces.

    Attributes:
        client: The way to Ollama.
        table: The processes of this machine.
        starter: Starts a server where none answers.
        open_lock: Tells who else uses a model.
    """

    client: HttpClient
    table: ProcessTable
    starter: Starter
    open_lock: OpenLock = unshared


@asynccontextmanager
async def opened_model(options: Options, outside: Outside) -> AsyncIterator[OllamaModel]:
    """Have a server during the block, and the model in it.

    Raises:
        NoDaemonError: There is none, and none can be started.
    """
    api = DaemonApi(outside.client, options.daemon)
    async with borrowed_or_own("Ollama", api.url, api.version, outside.starter) as server:
        api = DaemonApi(outside.client, server.url)
        witness = Witness(api, server.port, options.store_name, outside.table, server.pid)
        yield OllamaModel(witness, weights_of(options), options.embeds)


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


async def _run(options: Options, keys: frozenset[str], stop: Stop) -> bool:
    async with open_sockets() as sockets, open_http_client(sockets.connect, max_idle_per_origin=64) as client:
        starter = OllamaProgram(options.program, DaemonApi(client, options.daemon), await free_port())
        locks = locks_in(os.environ.get(OWNER_VARIABLE, ""))
        return await serve(options, keys, Outside(client, ThisMachine(), starter, locks), stop)


def main() -> None:
    """Serve what the command line says."""
    options = parse(sys.argv[1:], os.environ)
    run_program("ollama", options, partial(_run, options))


if __name__ == "__main__":
    main()
