"""`llmkube controller`: run the controller, which serves Models in pods and updates their status."""

import os
import random
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import UserError
from llmkube.base.http.egress import RULES_VARIABLE, Egress
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.probes import run_probes
from llmkube.base.times import utcnow
from llmkube.base.units import parse_bytes
from llmkube.cli.target_cluster import find_config
from llmkube.controller.health import ControllerHealth
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import Allowance, ControllerSettings, WorkloadSettings
from llmkube.k8s.client import open_client
from llmkube.programs.config import PER_SERVICE, ControllerConfig, load
from llmkube.programs.host_name import default_host_name
from llmkube.programs.options import command, settings_options
from llmkube.programs.program import Stop, freeze_heap, open_optional_port, open_service_nursery, run_until_signal
from llmkube.runtimes.container.gpu import parse_gpu_resources
from llmkube.runtimes.container.images import Images
from llmkube.runtimes.registry import parse_image_overrides
from llmkube.weights.address_policy import parse_networks

EVERY_ADDRESS: Final = None
"""The kubelet and Prometheus connect to the pod's address, which is IPv6 only in some clusters."""

log = structlog.get_logger()


@command("controller")
@settings_options(ControllerConfig)
def controller(**flags: Any) -> None:
    """Serve Models in the cluster's pods and update the status of Models and InferenceServices."""
    config = load("controller", ControllerConfig, flags)
    configure_logging(config.log_level)
    cluster, _ = find_config(config.kubeconfig, config.context, config.state_dir)
    settings = ControllerSettings(
        namespace=config.namespace,
        lease_namespace=config.lease_namespace,
        host_accelerators=frozenset(config.accelerator),
        identity=default_host_name(),
        workloads=workload_settings(config),
    )
    rng = random.Random()  # noqa: S311 (jitter, no secret)

    async def serve(_stop: Stop) -> None:
        registry = CollectorRegistry()
        # A standby replica is ready as well: a rollout that waited for it to become the leader would never finish,
        # because the old leader exits only when its successor is ready.
        health = ControllerHealth()
        run = partial(run_controller, utcnow=utcnow, rng=rng, registry=registry, health=health)

        async with (
            open_loop_watchdog() as loop_watchdog,
            open_optional_port(config.port, "--port", EVERY_ADDRESS) as probes,
            open_client(cluster) as client,
            open_service_nursery() as tasks,
        ):
            registry.register(loop_watchdog)
            if probes is not None:
                await tasks.start(run_probes, health.ready, registry, probes.listeners)
            await tasks.start(run, client, settings)
            freeze_heap()
            log.info("controller started", apiServer=cluster.server)
            await trio.sleep_forever()

    trio.run(run_until_signal, serve, log.info)


def workload_settings(config: ControllerConfig) -> WorkloadSettings | None:
    """Return the settings for pods; None if no image is set, as for a cluster without nodes.

    Raises:
        UserError: A setting is invalid; the message names its flag.
    """
    if not config.image:
        return None
    parse_bytes(config.cache_size, field="--cache-size")
    parse_networks(config.allow_private_sources)
    return WorkloadSettings(
        image=config.image,
        image_pull_secrets=config.image_pull_secret,
        cache_per_service=config.cache_mode == PER_SERVICE,
        cache_size=config.cache_size,
        cache_storage_class=config.cache_storage_class,
        cache_access_mode=config.cache_access_mode,
        fs_group=config.cache_fs_group or None,
        host_paths=config.host_path,
        allow=frozenset(map(Allowance, config.allow)),
        priority_classes=config.allow_priority_class,
        hub_endpoint=config.hub_endpoint,
        private_sources=config.allow_private_sources,
        ca_config_map=config.ca_config_map,
        proxies=_pod_proxies(config.proxy, os.environ),
        traces=_trace_variables(os.environ),
        priority_class_prefix=config.priority_class_prefix,
        shared_gpu_selector=_pairs(config.shared_gpu_node, "--shared-gpu-node"),
        monitor_labels=_pairs(config.monitor_label, "--monitor-label"),
        look_seconds=config.look_seconds,
        prune_cache=config.prune_cache,
        drain_container=config.drain_container,
        images=Images(parse_image_overrides(_pairs(config.engine_image, "--engine-image")), config.image_registry),
        gpu_resources=parse_gpu_resources(_pairs(config.gpu_resource, "--gpu-resource")),
    )


def _pod_proxies(rules: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the proxies of pods.

    Raises:
        UserError: One cannot be used, or has a password, which all readers of pods would see.
    """
    egress = Egress.of(rules, None, environ)
    if any("@" in url for url in egress.proxy_urls()):
        fix = "use a proxy that admits this cluster's addresses without one"
        raise UserError(
            f"the password of a proxy would be readable in every pod; {fix}", field="--proxy or HTTPS_PROXY"
        )
    return {**egress.variables, **({RULES_VARIABLE: ",".join(rules)} if rules else {})}


def _trace_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return OpenTelemetry's variables for routers, which are those of the controller.

    Raises:
        UserError: One has a password, which all readers of pods would see.
    """
    found = {name: value for name, value in environ.items() if name.startswith("OTEL_") and value}
    for name, value in found.items():
        if name.endswith("_HEADERS") or "@" in value:
            fix = "use a collector that admits the routers without one"
            raise UserError(f"a credential of a collector would be readable in every router's pod; {fix}", field=name)
    return dict(sorted(found.items()))


def _pairs(given: Iterable[str], flag: str) -> dict[str, str]:
    """Parse KEY=VALUE pairs.

    Raises:
        UserError: A text is not KEY=VALUE; the message names the flag.
    """
    pairs = [text.partition("=") for text in given]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise UserError(f"{flag} takes KEY=VALUE, not {key!r}")
    return {key: value for key, _, value in pairs}
