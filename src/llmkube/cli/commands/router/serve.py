"""`llmkube router -f FILE`: one router, with a port for clients and one for its operator; one process, or several."""

import random
from pathlib import Path
from typing import Final

import click
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import UserError
from llmkube.base.http.exchange import Handler
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.probes import LIMITS as PROBE_LIMITS
from llmkube.base.times import utcnow
from llmkube.cli.commands.router.run_by import source_of
from llmkube.cli.commands.router.worker_processes import WorkerProcesses
from llmkube.programs.config.router_config import RouterConfig
from llmkube.programs.program import (
    LOOPBACK,
    Port,
    Stop,
    open_port,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
    settle_heap,
)
from llmkube.router.proxy.admin import admin_handler, admin_judge
from llmkube.router.proxy.live_config import LiveConfig
from llmkube.router.proxy.router import LIMITS, open_router
from llmkube.router.workers.parent import open_parent

_BUDGETS: Final = "router-budgets"
EVERY_ADDRESS: Final = "::"

log = structlog.get_logger()


def serve_router(filename: str, settings: RouterConfig) -> None:
    """Run a router until a signal.

    Raises:
        UserError: The file, a setting or a port cannot be used.
    """
    configure_logging(settings.log_level)
    raise_descriptor_limit()
    serve = _serve_alone if settings.workers == 1 else _serve_by_workers

    async def run(stop: Stop) -> None:
        await serve(filename, settings, stop)

    trio.run(run_until_signal, run, log.info)


async def _serve_alone(filename: str, settings: RouterConfig, stop: Stop) -> None:
    """Answer in this process."""
    registry = CollectorRegistry()
    async with (
        open_loop_watchdog() as loop_watchdog,
        open_sockets() as sockets,
        open_port(settings.port, "--port", _addresses(settings.host)) as front,
        open_port(settings.admin_port, "--admin-port", _addresses(settings.admin_host)) as admin,
        open_router(
            source_of(filename, settings),
            registry=registry,
            utcnow=utcnow,
            rng=random.Random(),  # noqa: S311 (weights, pauses and names of requests: no secret)
            connect=sockets.connect,
            ca_file=settings.ca_file,
            budgets_folder=_budgets_folder(settings),
        ) as router,
        open_service_nursery() as tasks,
    ):
        registry.register(loop_watchdog)
        await tasks.start(_run_admin, admin_handler(router, registry), admin)
        settle_heap()
        _tell(router.live, front, admin, settings)
        with stop.here():
            await run_server(
                router.handler,
                sockets.listen(front.listeners),
                limits=LIMITS,
                judge=router.judge,
                stamp=router.stamp,
                unread=router.unread,
            )


async def _serve_by_workers(filename: str, settings: RouterConfig, stop: Stop) -> None:
    """Let other processes answer, and hold what they share.

    Raises:
        UserError: The file comes from where each process cannot read it.
    """
    if filename == "-":
        words = "each process reads the file, and standard input can be read once; give the name of a file with -f"
        raise UserError(f"{settings.workers} workers cannot share standard input: {words}", field="--workers")
    async with (
        open_loop_watchdog() as loop_watchdog,
        open_sockets() as sockets,
        open_port(settings.port, "--port", _addresses(settings.host)) as front,
        open_port(settings.admin_port, "--admin-port", _addresses(settings.admin_host)) as admin,
        open_parent(
            source_of(filename, settings),
            settings.workers,
            own=loop_watchdog,
            utcnow=utcnow,
            rng=random.Random(),  # noqa: S311 (pauses: no secret)
            connect=sockets.connect,
            ca_file=settings.ca_file,
            budgets_folder=_budgets_folder(settings),
        ) as parent,
        open_service_nursery() as tasks,
    ):
        await tasks.start(_run_admin, parent.handler(), admin)
        settle_heap()
        await WorkerProcesses(parent, filename, settings, front.listeners).run(
            stop, lambda: _tell(parent.live, front, admin, settings)
        )


async def _run_admin(handler: Handler, port: Port, *, task_status: trio.TaskStatus[None]) -> None:
    await run_server(handler, port.listeners, limits=PROBE_LIMITS, judge=admin_judge, task_status=task_status)


def _tell(live: LiveConfig, front: Port, admin: Port, settings: RouterConfig) -> None:
    config = live.routing.config
    if settings.host != LOOPBACK and live.routing.clients is None:
        log.warning("every client that reaches this router may use it: no keys are asked for", host=settings.host)
    click.echo(f"OpenAI-compatible API on {front.url}/v1", err=True)
    log.info("router started", router=config.name, api=front.url, admin=admin.url, backends=len(config.backends))


def _budgets_folder(settings: RouterConfig) -> Path:
    assert settings.state_dir is not None, "load() decides it"
    return settings.state_dir / _BUDGETS


def _addresses(host: str) -> str | None:
    """Return what to listen on: every address, of IPv4 and IPv6, is None there."""
    return None if host == EVERY_ADDRESS else host
