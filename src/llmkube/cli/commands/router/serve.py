"""`llmkube router -f FILE`: one router in a process of its own, with a port for clients and one for its operator."""

import datetime
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import UserError
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.probes import LIMITS as PROBE_LIMITS
from llmkube.cli.commands.router.routing_file import load_routing
from llmkube.cli.config import RouterConfig
from llmkube.cli.program import (
    LOOPBACK,
    Port,
    Stop,
    open_port,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
    settle_heap,
)
from llmkube.router.auth.key_files import stamp_of
from llmkube.router.config.compile_router import ResolvedService
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.proxy.admin import admin_handler, admin_judge
from llmkube.router.proxy.live_config import Source
from llmkube.router.proxy.router import LIMITS, Router, open_router

_KEYS_DIR: Final = "router-keys"
_BUDGETS: Final = "router-budgets"
EVERY_ADDRESS: Final = "::"
_NAMESPACE: Final = "default"

log = structlog.get_logger()


def serve_router(filename: str, settings: RouterConfig) -> None:
    """Run a router until a signal.

    Raises:
        UserError: The file, a setting or a port cannot be used.
    """
    configure_logging(settings.log_level)
    assert settings.state_dir is not None, "load() decides it"
    state_dir = settings.state_dir
    keys_dir = settings.keys_dir or state_dir / _KEYS_DIR
    services = _services(settings.service)

    def resolve(namespace: str, name: str) -> ResolvedService | None:
        return services.get(f"{namespace}/{name}") or services.get(name)

    said: set[str] = set()

    def read() -> RoutingConfig:
        file = load_routing(filename, resolve, keys_folder=str(keys_dir), namespace=_NAMESPACE)
        for each in (*file.warnings, *(f"{path} has no effect" for path in file.not_honoured)):
            if each not in said:
                log.warning(each)
                said.add(each)
        return file.config

    source = Source(read, lambda: stamp_of(Path(filename)))
    registry = CollectorRegistry()
    rng = random.Random()  # noqa: S311 (weights, pauses and names of requests: no secret)

    async def serve(stop: Stop) -> None:
        async with (
            open_loop_watchdog() as loop_watchdog,
            open_sockets() as sockets,
            open_port(settings.port, "--port", _addresses(settings.host)) as front,
            open_port(settings.admin_port, "--admin-port", _addresses(settings.admin_host)) as admin,
            open_router(
                source,
                registry=registry,
                utcnow=_utcnow,
                rng=rng,
                connect=sockets.connect,
                ca_file=settings.ca_file,
                budgets_folder=state_dir / _BUDGETS,
            ) as router,
            open_service_nursery() as tasks,
        ):
            registry.register(loop_watchdog)
            await tasks.start(_run_admin, router, registry, admin)
            settle_heap()
            _tell(router, front, admin, settings)
            with stop.here():
                await run_server(
                    router.handler,
                    sockets.listen(front.listeners),
                    limits=LIMITS,
                    judge=router.judge,
                    stamp=router.stamp,
                )

    raise_descriptor_limit()
    trio.run(run_until_signal, serve, log.info)


async def _run_admin(
    router: Router, registry: CollectorRegistry, port: Port, *, task_status: trio.TaskStatus[None]
) -> None:
    await run_server(
        admin_handler(router, registry),
        port.listeners,
        limits=PROBE_LIMITS,
        judge=admin_judge,
        task_status=task_status,
    )


def _tell(router: Router, front: Port, admin: Port, settings: RouterConfig) -> None:
    config = router.live.routing.config
    if settings.host != LOOPBACK and router.live.routing.clients is None:
        log.warning("every client that reaches this router may use it: no keys are asked for", host=settings.host)
    click.echo(f"OpenAI-compatible API on {front.url}/v1", err=True)
    log.info("router started", router=config.name, api=front.url, admin=admin.url, backends=len(config.backends))


def _services(given: tuple[str, ...]) -> Mapping[str, ResolvedService]:
    """Read what is written as NAME=URL.

    Raises:
        UserError: One is not.
    """
    found = {}
    for each in given:
        name, _, url = each.partition("=")
        parts = urlsplit(url)
        if not name or parts.scheme not in ("http", "https") or not parts.hostname:
            words = f"{each!r} is no service; write NAME=URL, such as phi-4-mini=http://127.0.0.1:8081/v1"
            raise UserError(words, field="--service")
        found[name] = ResolvedService(base_url=url.rstrip("/"))
    return found


def _addresses(host: str) -> str | None:
    """Return what to listen on: every address, of IPv4 and IPv6, is None there."""
    return None if host == EVERY_ADDRESS else host


def _utcnow() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
