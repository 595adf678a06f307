"""`llmkube router -f FILE`: run a router with a port for clients and one for its operator."""

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import UserError
from llmkube.base.http.dial import Connect
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.probes import LIMITS as PROBE_LIMITS
from llmkube.base.times import utcnow
from llmkube.cli.commands.router.routing_file import load_routing
from llmkube.programs.config import ListenerConfig, RouterConfig
from llmkube.programs.program import (
    LOOPBACK,
    Port,
    Stop,
    freeze_heap,
    open_port,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
)
from llmkube.router.auth.key_files import stamp_of
from llmkube.router.config.compile_router import ResolvedService
from llmkube.router.config.routing_config import RoutingConfig, is_local_url
from llmkube.router.origin_policy import cors_lines
from llmkube.router.proxy.admin import admin_filter, admin_handler
from llmkube.router.proxy.live_config import LiveConfig, Source
from llmkube.router.proxy.router import LIMITS, Router, open_router
from llmkube.router.traces import Traces, open_traces

BUDGETS: Final = "router-budgets"
_KEYS_DIR: Final = "router-keys"
EVERY_ADDRESS: Final = "::"

OpenRoutes = Callable[[Connect, CollectorRegistry, Traces | None], AbstractAsyncContextManager[Router]]

log = structlog.get_logger()


def serve_router(filename: str, settings: RouterConfig) -> None:
    """Run a router until a signal arrives.

    Raises:
        UserError: The file, a setting or a port cannot be used.
    """
    configure_logging(settings.log_level)
    raise_descriptor_limit()
    trio.run(run_until_signal, partial(_serve, filename, settings), log.info)


async def _serve(filename: str, settings: RouterConfig, stop: Stop) -> None:
    def open_routes(
        connect: Connect, registry: CollectorRegistry, traces: Traces | None
    ) -> AbstractAsyncContextManager[Router]:
        return open_router(
            source_of(filename, settings),
            registry=registry,
            utcnow=utcnow,
            rng=random.Random(),  # noqa: S311 (weights, pauses and names of requests: no secret)
            connect=connect,
            egress=settings.egress(),
            budgets_folder=settings.state_dir / BUDGETS,
            https_proxy_pages=settings.https_proxy_pages,
            traces=traces,
        )

    await serve_routes(settings, open_routes, stop)


async def serve_routes(settings: ListenerConfig, open_routes: OpenRoutes, stop: Stop) -> None:
    """Serve a router at a port for clients and one for its operator, until a signal arrives.

    Args:
        settings: Settings of the listeners.
        open_routes: Runs the router; it gets a function that opens connections, the registry of its metrics, and
            what exports its traces.
        stop: The signal.
    """
    registry = CollectorRegistry()
    async with (
        open_loop_watchdog() as loop_watchdog,
        open_sockets() as sockets,
        open_traces(utcnow) as traces,
        open_port(settings.port, "--port", _addresses(settings.host)) as front,
        open_port(settings.admin_port, "--admin-port", _addresses(settings.admin_host)) as admin,
        open_routes(sockets.connect, registry, traces) as router,
        open_service_nursery() as tasks,
    ):
        registry.register(loop_watchdog)
        if traces is not None:
            registry.register(traces)
        handle_admin = admin_handler(router, registry)
        await tasks.start(partial(run_server, handle_admin, admin.listeners, limits=PROBE_LIMITS, judge=admin_filter))
        freeze_heap()
        _report_started(router.live, front, admin, settings)
        with stop.scope():
            await run_server(
                router.handler,
                sockets.listen(front.listeners),
                limits=LIMITS,
                judge=router.request_filter,
                stamp=partial(cors_lines, https_proxy_pages=settings.https_proxy_pages),
                unread=router.listed_fields.refuse_malformed,
            )


def _report_started(live: LiveConfig, front: Port, admin: Port, settings: ListenerConfig) -> None:
    config = live.routing.config
    if settings.host != LOOPBACK and live.routing.clients is None:
        log.warning("router requires no keys: any client that can connect may use it", host=settings.host)
    click.echo(f"OpenAI-compatible API on {front.url}/v1", err=True)
    log.info("router started", router=config.name, api=front.url, admin=admin.url, backends=len(config.backends))


def _addresses(host: str) -> str | None:
    """Return the address to listen on; None means every IPv4 and IPv6 address."""
    return None if host == EVERY_ADDRESS else host


def source_of(filename: str, settings: RouterConfig) -> Source:
    """Return the source of a router's config, which is reloaded when the file changes.

    Args:
        filename: File with a ModelRouter or a compiled config.
        settings: Settings of the program.

    Raises:
        UserError: A --service is not NAME=URL.
    """
    keys_dir = settings.keys_dir or settings.state_dir / _KEYS_DIR
    services = _services(settings.service)
    logged: set[str] = set()

    def resolve(namespace: str, name: str) -> ResolvedService | None:
        return services.get(f"{namespace}/{name}") or services.get(name)

    def read() -> RoutingConfig:
        file = load_routing(filename, resolve, keys_folder=str(keys_dir))
        file.log_new(logged)
        return file.config

    return Source(read, lambda: stamp_of(Path(filename)))


def _services(given: tuple[str, ...]) -> Mapping[str, ResolvedService]:
    """Parse the NAME=URL values of --service.

    Raises:
        UserError: A value is not NAME=URL, or its URL may be outside of this network.
    """
    found = {}
    for each in given:
        name, _, url = each.partition("=")
        parts = urlsplit(url)
        if not name or parts.scheme not in ("http", "https") or not parts.hostname:
            error = f"{each!r} is not a service; write NAME=URL, such as phi-4-mini=http://127.0.0.1:8081/v1"
            raise UserError(error, field="--service")
        if not is_local_url(url):
            error = f"{each!r}: an InferenceService is local, but {url} may be outside of this network"
            raise UserError(f"{error}; specify its private address, or declare an external backend", field="--service")
        found[name] = ResolvedService(base_url=url.rstrip("/"))
    return found
