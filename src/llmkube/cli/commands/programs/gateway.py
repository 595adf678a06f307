"""`llmkube gateway`: one OpenAI-compatible address for the InferenceServices of a cluster."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.http.dial import Connect
from llmkube.base.log import configure_logging
from llmkube.cli.commands.router.routing_file import load_routing
from llmkube.cli.commands.router.serve import BUDGETS, serve_routes
from llmkube.cli.target_cluster import find_config
from llmkube.cli.view.page_facts import page_facts
from llmkube.k8s.client import open_client
from llmkube.programs.config import GatewayConfig, load
from llmkube.programs.gateway.gateway import GatewaySettings, ResolvePolicy, open_gateway
from llmkube.programs.options import command, settings_options
from llmkube.programs.program import Stop, raise_descriptor_limit, run_until_signal
from llmkube.router.auth.key_files import stamp_of
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.proxy.router import Router
from llmkube.router.traces import Traces

log: Final = structlog.get_logger()


@command("gateway")
@settings_options(GatewayConfig)
def gateway(**flags: Any) -> None:
    """Serve a cluster's InferenceServices at one address, with keys.

    Requests name a service by its name, or as NAMESPACE/NAME. The pods of a service share its requests by what they
    have cached and by their load. --policy adds the rules, budgets and backends of a ModelRouter.
    """
    config = load("gateway", GatewayConfig, flags)
    configure_logging(config.log_level)
    raise_descriptor_limit()
    trio.run(run_until_signal, partial(_serve, config), log.info)


async def _serve(config: GatewayConfig, stop: Stop) -> None:
    cluster, _ = find_config(config.kubeconfig, config.context, config.state_dir)

    @asynccontextmanager
    async def open_routes(
        connect: Connect, registry: CollectorRegistry, traces: Traces | None
    ) -> AsyncIterator[Router]:
        rng = random.Random()  # noqa: S311 (jitter, weights, names of requests: no secret)
        opened = partial(open_gateway, connect=connect, registry=registry, rng=rng, traces=traces)
        async with open_client(cluster) as client, opened(client, settings_of(config)) as router:
            yield router

    await serve_routes(config, open_routes, stop)


def settings_of(config: GatewayConfig) -> GatewaySettings:
    """Return the settings of the front door."""
    further: dict[str, Any] = {}
    if (file := config.policy) is not None:
        logged: set[str] = set()

        def read_policy(resolve: ResolvePolicy) -> RoutingConfig:
            found = load_routing(str(file), resolve, keys_folder=str(config.keys_dir), needs_backends=False)
            found.log_new(logged)
            return found.config

        further = {"read_policy": read_policy, "policy_stamp": lambda: stamp_of(file)}
    return GatewaySettings(
        namespaces=config.namespace,
        keys_folder=config.keys_dir,
        anonymous=config.allow_anonymous,
        egress=config.egress(),
        budgets_folder=config.state_dir / BUDGETS,
        https_proxy_pages=config.https_proxy_pages,
        describe=page_facts,
        **further,
    )
