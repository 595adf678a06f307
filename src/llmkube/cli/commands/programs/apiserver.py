"""`llmkube apiserver`: the embedded API server alone."""

import shlex
from typing import Any

import click
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.programs.api_server import open_server
from llmkube.programs.config import ApiServerConfig, load
from llmkube.programs.options import command, settings_options
from llmkube.programs.program import Stop, raise_descriptor_limit, run_until_signal
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import SERVER_LOCK

log = structlog.get_logger()


@command("apiserver")
@settings_options(ApiServerConfig)
def apiserver(**flags: Any) -> None:
    """Run the embedded API server alone, for an agent and a controller in separate processes."""
    config = load("apiserver", ApiServerConfig, flags)
    configure_logging(config.log_level)
    with hold_state_dir(config.state_dir, SERVER_LOCK) as state_dir:

        async def serve(stop: Stop) -> None:
            registry = CollectorRegistry()
            async with (
                open_loop_watchdog() as loop_watchdog,
                open_server(state_dir, config.port, field="--port", registry=registry) as server,
            ):
                registry.register(loop_watchdog)
                with stop.scope():
                    command = f"export KUBECONFIG={shlex.quote(str(server.kubeconfig))}"
                    click.echo(f"Kubernetes API on {server.url}\n\n  {command}\n")
                    await trio.sleep_forever()

        raise_descriptor_limit()
        trio.run(run_until_signal, serve, log.info)
