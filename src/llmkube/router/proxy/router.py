"""One router: everything that its requests share, held together for as long as it runs.

```
open_router ┬ AuditLog.run      the last to end: it writes what the others leave
            ├ RouterBudgets.run as the audit log
            ├ LiveConfig.run    looks at the config's file
            └ Shadows.run       sends copies
```
The caller serves its handler, and stops serving before it closes.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.backoff import Backoff
from llmkube.base.http.connection import Judge, Stamp, StreamHandler
from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.limits import Limits
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.budget_store.kept_budgets import KeptBudgets
from llmkube.router.budget_store.redis_budgets import RedisBudgets
from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.origin_policy import page_grant
from llmkube.router.proxy.attempt import Attempts
from llmkube.router.proxy.audit_log import AuditLog, Write, writer_of
from llmkube.router.proxy.circuits import Circuits, State, Terms
from llmkube.router.proxy.dispatch import Dispatcher, Observed
from llmkube.router.proxy.handler import RouterHandler
from llmkube.router.proxy.key_files import BackendKeys
from llmkube.router.proxy.live_config import LiveConfig, Source, load_routing
from llmkube.router.proxy.metrics import BackendGauges, RouterMetrics
from llmkube.router.proxy.principals import judge_of
from llmkube.router.proxy.shadows import Shadows
from llmkube.router.proxy.transport import open_transport, trusted_context
from llmkube.router.queue.turns import Turns, engines_of
from llmkube.router.receipts.chain import ReceiptChain

LIMITS: Final = Limits(max_body_bytes=16 << 20, max_bodies_bytes=128 << 20)
"""A body is parsed as a whole: 16 MiB take a tenth of a second."""


MOST_PAUSE_SECONDS: Final = 300.0
LEFT_ALONE: Final = "it failed, and is left alone for now"


@attrs.frozen(eq=False)
class Router:
    """What to serve.

    Attributes:
        handler: Answers requests.
        judge: Refuses them by their heads.
        stamp: What every answer carries.
        ready: Returns whether requests can be answered, and why not.
        states: Returns why each backend is not asked now, by its name; "" of one that is.
        in_flight: Returns how many requests are under way.
        budgets: Returns how much of each budget is taken.
        live: The config that counts now.
    """

    handler: StreamHandler
    judge: Judge
    stamp: Stamp
    ready: Callable[[], tuple[bool, str]]
    states: Callable[[], Mapping[str, str]]
    in_flight: Callable[[], int]
    budgets: Callable[[], Sequence[Mapping[str, Any]]]
    live: LiveConfig


@asynccontextmanager
async def open_router(
    source: Source,
    *,
    registry: CollectorRegistry,
    utcnow: Callable[[], datetime],
    rng: random.Random,
    connect: Connect = dial,
    ca_file: Path | None = None,
    write: Write | None = None,
    budgets_folder: Path | None = None,
) -> AsyncIterator[Router]:
    """Hold a router.

    Args:
        source: Its config.
        registry: Gets its metrics.
        utcnow: The wall clock, for the audit log.
        rng: Draws for weights, pauses and names.
        connect: Opens plain connections.
        ca_file: Certificates to trust beside the system's.
        write: Writes the audit log, whatever the config says of it.
        budgets_folder: Where budgets are kept; None keeps them in this process alone.

    Raises:
        UserError: The config cannot be used, or the certificates.
    """
    routing, seen = load_routing(source)
    name = routing.config.name
    metrics = RouterMetrics.on(registry, name)
    keys, observed, turns = BackendKeys(), Observed(), Turns()
    circuits = Circuits(_terms(routing.config), rng)
    chain = ReceiptChain(chain=f"{rng.getrandbits(128):032x}")
    audit = AuditLog(write or writer_of(routing.config.audit), chain, utcnow)

    async def change(before: RoutingConfig, now: RoutingConfig) -> None:
        circuits.terms = _terms(now)
        circuits.keep_only(frozenset(each for each in now.backends if now.backends[each] == before.backends.get(each)))
        turns.keep_only(engines_of(now.backends.values()))
        if write is None and now.audit != before.audit:
            audit.write = writer_of(now.audit)
        await audit.reload(now)
        await accounts.reload(now)

    accounts = RouterBudgets(
        kept=KeptBudgets(budget_file_of(budgets_folder, name) if budgets_folder else None, utcnow, rng),
        shared=RedisBudgets(password_of=keys.key_of, tls=partial(trusted_context, ca_file), rng=rng),
    )
    live = LiveConfig(source, routing, change, seen=seen)

    def budgets() -> Sequence[Mapping[str, Any]]:
        return accounts.used(live.routing.config)

    def why_not(name: str) -> str:
        return _why_not(live.routing.config, name, keys, circuits)

    def states() -> Mapping[str, str]:
        return {each: why_not(each) for each in live.routing.config.backends}

    def ready() -> tuple[bool, str]:
        reasons = states()
        notes = [f"{each}: {why}" for each, why in reasons.items() if why]
        if live.problem:
            notes.insert(0, f"an older config counts, the file cannot be used: {live.problem}")
        if audit.is_failing:
            notes.insert(0, "the audit log cannot be written")
        if accounts.problem:
            notes.insert(0, accounts.problem)
        # One that is left alone for now is no reason to be left by clients: it tells them when to come again.
        return any(why in ("", LEFT_ALONE) for why in reasons.values()), "; ".join(notes)

    gauges = BackendGauges(
        router=name,
        config=lambda: live.routing.config,
        healthy=lambda each: not why_not(each),
        in_flight=observed.in_flight,
        waiting=turns.waiting,
        config_valid=lambda: not live.problem,
        budgets=budgets,
    )
    registry.register(gauges)
    async with open_transport(connect, ca_file=ca_file) as transport, trio.open_nursery() as writing:
        await accounts.open(routing.config)
        await writing.start(audit.run)
        await writing.start(accounts.run)
        await audit.begin(routing.config)
        attempts = Attempts(transport, keys)
        shadows = Shadows(attempts, metrics.shadowed)
        handler = RouterHandler(
            routing=lambda: live.routing,
            dispatcher=Dispatcher(attempts, circuits, observed, turns, metrics.tried),
            shadows=shadows,
            metrics=metrics,
            audit=audit,
            budgets=accounts,
            ready=ready,
            created=int(utcnow().timestamp()),
            rng=rng,
        )
        judge = judge_of(lambda: live.routing.keys, metrics.stranger)
        async with trio.open_nursery() as tasks:
            await tasks.start(live.run)
            await tasks.start(shadows.run)
            yield Router(handler, judge, page_grant, ready, states, observed.in_flight.total, budgets, live)
            tasks.cancel_scope.cancel(reason="the router closes")
        audit.end_nowait(live.routing.config)
        writing.cancel_scope.cancel(reason="the router closes")


def _terms(config: RoutingConfig) -> Terms:
    seconds = config.circuit_seconds
    return Terms(pauses=Backoff(base_seconds=seconds, cap_seconds=max(seconds, MOST_PAUSE_SECONDS)))


def _why_not(config: RoutingConfig, name: str, keys: BackendKeys, circuits: Circuits) -> str:
    """Return why a backend is not asked now, "" if it is."""
    backend = config.backends[name]
    if backend.missing or not backend.base_url:
        return backend.missing or "its address is not known"
    if backend.key_file and not keys.key_of(backend.key_file):
        return f"no key can be read from {backend.key_file}"
    if circuits.of(name).state(trio.current_time()) is State.OPEN:
        return LEFT_ALONE
    return ""
