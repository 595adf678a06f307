"""Processor time of one request in each layer of the router, which runs in this process between two others on loopback.

Each row includes the rows above it. "Bare" is a router with one backend and one rule, with no-op objects for metrics
and audit log. Keys are looked up, twelve rules are evaluated of which the last one matches, the audit log is written to
a file, and the budgets, one in tokens and one in dollars, are in SQLite. Layers take turns in random order. The figures
are those of the whole process, including threads that write.
"""

import cProfile
import datetime
import os
import pstats
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import trio
from prometheus_client import CollectorRegistry

from harness import Aim, Run, Table, begin, median
from http_load.routers import KEY, model_router
from llmkube.base.http.client import open_http_client
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.programs.program import freeze_heap
from llmkube.router.config.compile_router import compile_router
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.origin_policy import cors_lines
from llmkube.router.proxy.live_config import Source
from llmkube.router.proxy.router import LIMITS, Router, open_router

FORWARD, BARE, AUTH, RULES, AUDIT, METRICS, BUDGET = "forward", "bare", "auth", "rules", "audit", "metrics", "budget"
NAMES: Final[Mapping[str, str]] = {
    FORWARD: "our server and client, nothing between",
    BARE: "router, bare",
    AUTH: "+ keys of clients",
    RULES: "+ twelve rules",
    AUDIT: "+ audit log",
    METRICS: "+ metrics",
    BUDGET: "+ budgets: all on",
}
ORDER: Final = tuple(NAMES)
ROUNDS, REQUESTS, WARM, CONNECTIONS = 7, 4_000, 500, 16
WANTED_TIMES: Final = 2.5
"""Wanted ratio to our server and client alone."""

FLOOR: Final = """The lower limit: in the table of the router as a proxy, from 32 connections on, "our server and
client" alone takes over four times the processor time of nginx. A quarter of nginx's requests per second would leave
no time for a router between the two: one process in Python cannot reach that. The remaining time is spread over nearly
three hundred functions (`python benchmarks/router_profile.py --cprofile`).""".replace("\n", " ")

PROFILE: Final = "cprofile"
HERE: Final = Path(__file__).resolve().parent


class Nothing:
    """A no-op replacement of metrics and audit log."""

    def count_request(self, *_: object) -> None:
        """Count nothing."""

    async def record_request(self, *_: object) -> None:
        """Write nothing."""


def config_of(layer: str, backend: int, folder: Path) -> RoutingConfig:
    """Return the config of the router of a layer."""
    has = ORDER.index(layer)
    manifest = model_router(backend, full=has >= ORDER.index(RULES))
    spec = manifest["spec"]
    policy: dict[str, Any] = {"auditLog": {"sink": "file", "filePath": str(folder / "audit.log")}}
    if has >= ORDER.index(AUTH):
        policy["auth"] = {"keysSecretRef": {"name": "clients"}}
    if has >= ORDER.index(BUDGET):
        policy["budgets"] = spec["policy"]["budgets"]
    spec["policy"] = policy
    compiled = compile_router(decode(ModelRouter, manifest), lambda _: None, keys_folder=str(folder / "keys"))
    if compiled.config is None:
        raise RuntimeError("; ".join(compiled.errors))
    return compiled.config


@asynccontextmanager
async def open_forward(backend: int) -> AsyncIterator[int]:
    """Serve what the router is built on; yields its port."""
    async with (
        open_sockets() as sockets,
        open_http_client(sockets.connect, max_idle_per_origin=256, max_idle=512) as client,
        trio.open_nursery() as nursery,
    ):

        async def handle(exchange: StreamExchange) -> None:
            await forward(exchange, client, ("127.0.0.1", backend), exchange.body)

        listeners = await open_listeners("127.0.0.1", 0)
        await nursery.start(run_server, handle, sockets.listen(listeners))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_layer(layer: str, backend: int, folder: Path) -> AsyncIterator[int]:
    """Serve a router with one layer and those before it; yields its port."""
    config = config_of(layer, backend, folder)
    async with (
        open_sockets() as sockets,
        open_router(
            Source(lambda: config, lambda: (0, 0, 0)),
            registry=CollectorRegistry(),
            utcnow=lambda: datetime.datetime.now(datetime.UTC),
            rng=random.Random(1),
            connect=sockets.connect,
            budgets_folder=folder / "budgets",
        ) as router,
        trio.open_nursery() as nursery,
    ):
        _leave_out(layer, router)
        serve = partial(run_server, limits=LIMITS, judge=router.request_filter, stamp=cors_lines)
        listeners = await open_listeners("127.0.0.1", 0)
        await nursery.start(serve, router.handler, sockets.listen(listeners))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def _leave_out(layer: str, router: Router) -> None:
    """Take away what only later layers have."""
    handler: Any = router.listed_fields
    if ORDER.index(layer) < ORDER.index(AUDIT):
        handler.audit = Nothing()
    if ORDER.index(layer) < ORDER.index(METRICS):
        handler.metrics = Nothing()


def loopback(*arguments: object) -> list[str]:
    """Return the command of a client or backend of the router."""
    return [sys.executable, str(HERE / "http_load" / "loopback.py"), *map(str, arguments)]


async def one_round(layer: str, backend: int, folder: Path, count: int, profile: cProfile.Profile | None) -> float:
    """Return microseconds of processor time for each request."""
    async with open_forward(backend) if layer == FORWARD else open_layer(layer, backend, folder) as port:
        asks = partial(loopback, "load", port, CONNECTIONS)
        await trio.run_process(asks(WARM, KEY))
        freeze_heap()
        if profile is not None:
            profile.enable()
        before = time.process_time()
        await trio.run_process(asks(count, KEY))
        used = time.process_time() - before
        if profile is not None:
            profile.disable()
    return 1e6 * used / count


def measure(run: Run, backend: int) -> dict[str, list[float]]:
    """Measure all layers, in turns."""
    rounds, count = (1, 500) if run.quick else (ROUNDS, REQUESTS)
    samples: dict[str, list[float]] = {layer: [] for layer in ORDER}
    for _ in range(rounds):
        for layer in run.rng.sample(ORDER, len(ORDER)):
            samples[layer].append(in_folder(partial(one_round, layer, backend, count=count, profile=None)))
    return samples


def in_folder(play: Callable[..., Any]) -> float:
    """Run one round in a folder of its own."""
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        folder = Path(name)
        (folder / "keys" / "teams").mkdir(parents=True)
        (folder / "keys" / "teams" / "bench").write_text(KEY)
        used: float = trio.run(partial(play, folder=folder))
        return used


def print_profile(backend: int) -> None:
    """Print what costs most with everything on."""
    profile = cProfile.Profile(time.thread_time)
    in_folder(partial(one_round, BUDGET, backend, count=REQUESTS, profile=profile))
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(70)


def main() -> None:
    """Measure, print, keep."""
    run = begin("router_profile", "trio", options={PROFILE: "print what costs most with everything on, and no table"})
    with subprocess.Popen(loopback("backend"), stdout=subprocess.PIPE) as beside:
        assert beside.stdout is not None, "it was given a pipe"
        try:
            backend = int(beside.stdout.readline())
            if PROFILE in run.options:
                print_profile(backend)
                return
            samples = measure(run, backend)
        finally:
            beside.kill()
    rows, last = [], 0.0
    for layer, name in NAMES.items():
        used = median(samples[layer])
        rows.append([name, f"{used:.0f}", f"{min(samples[layer]):.0f}", f"{used - last:+.0f}"])
        last = used
    table = Table(["layer", "processor, µs", "least, µs", "more, µs"], rows)
    times = median(samples[BUDGET]) / median(samples[FORWARD])
    what = "router, all on, times the processor time of our server and client alone"
    wanted, measured = f"under {WANTED_TIMES} times", f"{times:.1f} times"
    run.finish(
        "Cost of a request in the router",
        __doc__ or "",
        [table],
        attrs.asdict(_Samples(samples)),
        aims=[Aim(what, wanted, measured, times < WANTED_TIMES)],
        notes=[f"Medians of {ROUNDS} rounds of {REQUESTS} requests over {CONNECTIONS} connections.", FLOOR],
    )


@attrs.frozen
class _Samples:
    """Microseconds, by layer."""

    processor: dict[str, list[float]]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    main()
