"""`llmkube controller`: keep the status of Models and InferenceServices true, as a process of its own."""

import datetime
import random
from functools import partial
from typing import Any

import click
import structlog
import trio

from llmkube.base.logs import configure_logging
from llmkube.cli.cluster import find_config
from llmkube.cli.config import ControllerConfig, load
from llmkube.cli.host import default_host_name
from llmkube.cli.options import HELP, guarded, settings_options
from llmkube.cli.running import Stop, open_service_nursery, run_until_signal
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.client import open_client

log = structlog.get_logger()


@click.command("controller", context_settings=HELP)
@settings_options(ControllerConfig)
@guarded
def controller(**flags: Any) -> None:
    """Keep the status of Models and InferenceServices true."""
    config = load("controller", ControllerConfig, flags)
    configure_logging(config.log_level)
    assert config.state_dir is not None, "load() decides it"
    cluster, _ = find_config(config.kubeconfig, config.context, config.state_dir)
    settings = ControllerSettings(
        namespace=config.namespace,
        lease_namespace=config.lease_namespace,
        host_accelerators=frozenset(config.accelerator),
        identity=default_host_name(),
    )
    rng = random.Random()  # noqa: S311 (jitter, no secret)

    async def serve(_stop: Stop) -> None:
        async with open_client(cluster) as client, open_service_nursery() as tasks:
            await tasks.start(partial(run_controller, client, settings, utcnow=_utcnow, rng=rng))
            log.info("controller started", apiServer=cluster.server)
            await trio.sleep_forever()

    trio.run(run_until_signal, serve, log.info)


def _utcnow() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
