"""`llmkube apiserver`, and the embedded API server as `llmkube up` opens it: with our kinds in it from the start."""

import contextlib
import gc
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import click
import httpx  # noqa: ASYNC127 (the project's settled choice)
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.server import open_api_server
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.cli.options import HELP, guarded, settings_options
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.programs.config.api_server_config import ApiServerConfig
from llmkube.programs.config.tables import load
from llmkube.programs.program import LOOPBACK, Stop, raise_descriptor_limit, run_until_signal
from llmkube.programs.state_dir import held_state_dir
from llmkube.programs.state_lock import SERVER
from llmkube.runtimes.container.plugins import extend_crds, find_installed

log = structlog.get_logger()


@attrs.frozen
class Server:
    """A running API server, and a client for it within this process."""

    url: str
    kubeconfig: Path
    client: Client


@contextlib.asynccontextmanager
async def open_server(
    state_dir: Path, port: int, *, field: str, registry: CollectorRegistry | None = None
) -> AsyncIterator[Server]:
    """Run the API server for as long as the block; Models and InferenceServices are known to it when the block begins.

    Args:
        state_dir: Holds everything that it keeps.
        port: TCP port on the loopback address; 0 takes a free one.
        field: The flag that an error about the port names.
        registry: What its `/metrics` shows; None for no such path.

    Raises:
        PortTakenError: Another program listens on the port.
    """
    async with (
        open_api_server(state_dir, host=LOOPBACK, port=port, port_field=field, registry=registry) as running,
        open_transport(running.handler) as transport,
        # In memory: our own calls need no TLS, and go on when the certificate is renewed.
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,  # noqa: S113 (callers')
    ):
        await running.server.ensure(extend_crds(all_crds(), find_installed().runtimes))
        gc.freeze()  # what is there by now stays: looking at it again in each full collection takes 150 ms
        yield Server(running.url, running.kubeconfig, Client(http))


@click.command("apiserver", context_settings=HELP)
@settings_options(ApiServerConfig)
@guarded
def apiserver(**flags: Any) -> None:
    """Run the embedded API server alone, for an agent and a controller that run as processes of their own."""
    config = load("apiserver", ApiServerConfig, flags)
    configure_logging(config.log_level)
    assert config.state_dir is not None, "load() decides it"
    with held_state_dir(config.state_dir, SERVER) as state_dir:

        async def serve(stop: Stop) -> None:
            registry = CollectorRegistry()
            async with (
                open_loop_watchdog() as loop_watchdog,
                open_server(state_dir, config.port, field="--port", registry=registry) as server,
            ):
                registry.register(loop_watchdog)
                with stop.here():
                    command = f"export KUBECONFIG={shlex.quote(str(server.kubeconfig))}"
                    click.echo(f"Kubernetes API on {server.url}\n\n  {command}\n")
                    await trio.sleep_forever()

        raise_descriptor_limit()
        trio.run(run_until_signal, serve, log.info)
