"""The parent of a router's workers: it answers no client, and holds what they share.

```
open_parent ┬ KeptBudgets.run   writes what workers reserve
            ├ LiveConfig.run    looks at the config's file, as each worker does by itself
            ├ Probes.run        asks how backends do: once, however many workers there are
            ├ CacheWatch.run    asks engines how full their caches are
            └ WorkerSet.run          asks the workers how they do
```
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from llmkube.base.http.dial import Connect
from llmkube.base.http.exchange import Exchange, Handler
from llmkube.router.auth.key_files import BackendKeys
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.budget_store.kept_budgets import KeptBudgets
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.dispatch.attempt import Attempts
from llmkube.router.dispatch.circuits import Circuits
from llmkube.router.dispatch.transport import open_transport
from llmkube.router.health.cache_watch import CacheWatch
from llmkube.router.health.probes import Probes
from llmkube.router.proxy.admin import admin_handler
from llmkube.router.proxy.live_config import LiveConfig, Source, load_routing
from llmkube.router.proxy.metrics import BackendGauges, probes_counter
from llmkube.router.proxy.router import checkers
from llmkube.router.proxy.shared import terms_of
from llmkube.router.proxy.standing import BackendStanding
from llmkube.router.queue.turns import Turns, engines_of
from llmkube.router.responses.conversations import SWEEP_SECONDS
from llmkube.router.responses.shelf import OwnShelf
from llmkube.router.responses.store import ResponseStore
from llmkube.router.workers.shared_state import SharedState
from llmkube.router.workers.worker_set import WorkerSet

_ASKED_OF_WORKERS: Final = frozenset({"/readyz", "/metrics", "/backends"})


@attrs.frozen(eq=False)
class Parent:
    """What an operator asks about.

    Attributes:
        worker_set: The workers.
        live: The config that counts.
        standing: How backends do.
        registry: The metrics of all.
    """

    worker_set: WorkerSet
    live: LiveConfig
    standing: BackendStanding
    registry: CollectorRegistry

    def ready(self) -> tuple[bool, str]:
        """Return whether requests can be answered, and why not."""
        return self.worker_set.ready()

    def states(self) -> Mapping[str, str]:
        """Return why each backend is not asked now, by its name; "" of one that is."""
        return self.standing.states()

    def budgets(self) -> Sequence[Mapping[str, Any]]:
        """Return how much of each budget is taken."""
        config = self.live.routing.config
        return (
            self.worker_set.budgets() if config.budget_store is not None else self.worker_set.state.budgets.used(config)
        )

    def in_flight(self) -> int:
        """Return how many requests are under way, as of half a second ago."""
        return self.worker_set.in_flight.total()

    def backends(self) -> frozenset[str]:
        """Return the names of all backends."""
        return frozenset(self.live.routing.config.backends)

    def handler(self) -> Handler:
        """Return what answers at the port for the operator."""
        answer = admin_handler(self, self.registry)

        async def handle(exchange: Exchange) -> None:
            path = exchange.request.path
            if path in _ASKED_OF_WORKERS:
                await self.worker_set.look(metrics=path == "/metrics")
            await answer(exchange)

        return handle


@asynccontextmanager
async def open_parent(
    source: Source,
    workers: int,
    *,
    own: Collector,
    utcnow: Callable[[], datetime],
    rng: random.Random,
    connect: Connect,
    ca_file: Path | None,
    budgets_folder: Path,
) -> AsyncIterator[Parent]:
    """Hold what the workers of a router share.

    Args:
        source: The config.
        workers: How many there are to be.
        own: What this process counts of itself.
        utcnow: The wall clock.
        rng: Draws for pauses.
        connect: Opens plain connections, for probes.
        ca_file: Certificates to trust beside the system's.
        budgets_folder: Where budgets are kept.

    Raises:
        UserError: The config cannot be used, or the budgets, or the certificates.
    """
    checker_of = checkers(utcnow, rng)
    routing, seen = await trio.to_thread.run_sync(load_routing, source, checker_of)
    config = routing.config
    budgets = KeptBudgets(budget_file_of(budgets_folder, config.name), utcnow, rng)
    state = SharedState(Turns(), Circuits(terms_of(config), rng), budgets, OwnShelf(ResponseStore()))
    registry = CollectorRegistry()

    async def change(before: RoutingConfig, now: RoutingConfig) -> None:
        state.circuits.terms = terms_of(now)
        same = frozenset(each for each in now.backends if now.backends[each] == before.backends.get(each))
        state.keep_circuits(same, frozenset((*before.backends, *now.backends)))
        probes.reload_nowait(now, same)
        state.turns.keep_only(engines_of(now.backends.values()))
        if now.budget_store is None:
            await budgets.reload(now)

    live = LiveConfig(source, routing, change, checker_of, seen=seen)

    def is_llama(backend: str) -> bool:
        # No answer passes here that would say it: the config does, of services.
        return live.routing.config.backends[backend].splits_cache is not None

    keys = BackendKeys()
    worker_set = WorkerSet(state, [str(place) for place in range(1, workers + 1)], own)
    standing = BackendStanding(live, keys, state.circuits, None)
    parent = Parent(worker_set, live, standing, registry)
    probed = probes_counter(registry)
    registry.register(worker_set)
    async with open_transport(connect, ca_file=ca_file) as transport, trio.open_nursery() as writing:
        if config.budget_store is None:
            await budgets.open(config)
        await writing.start(budgets.run)
        attempts = Attempts(transport, keys)
        caches = CacheWatch(attempts.ask, lambda: live.routing.config, worker_set.in_flight, is_llama)
        registry.register(
            BackendGauges(
                router=config.name,
                config=lambda: live.routing.config,
                healthy=lambda each: not parent.standing.why_not(each),
                in_flight=worker_set.in_flight,
                waiting=state.turns.waiting,
                cache_use=caches.use,
                config_valid=lambda: not live.problem,
                budgets=parent.budgets,
            )
        )
        probes = Probes(
            attempts.ask,
            lambda name, why: state.found(name, "probe", why),
            lambda backend, result: probed.labels(config.name, backend, result).inc(),
        )
        probes.reload_nowait(config, frozenset())
        async with trio.open_nursery() as tasks:
            await tasks.start(live.run)
            await tasks.start(probes.run)
            await tasks.start(caches.run)
            tasks.start_soon(worker_set.run)
            tasks.start_soon(_sweep, state.shelf)
            yield parent
            tasks.cancel_scope.cancel(reason="the router closes")
        writing.cancel_scope.cancel(reason="the router closes")


async def _sweep(shelf: OwnShelf) -> None:
    while True:
        await trio.sleep(SWEEP_SECONDS)
        shelf.expire()
