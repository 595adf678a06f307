"""One router: the state that its requests share, and its background tasks.

```
open_router ┬ AuditLog.run      stops last: it writes the records of the other tasks
            ├ RouterBudgets.run stops last too
            ├ LiveConfig.run    polls the config file
            ├ JwksRefresh.run   fetches the keys that verify tokens
            ├ Probes.run        health checks, one task per backend
            ├ EngineWatch.run   checks engines that requests wait for
            ├ CacheWatch.run    polls the KV cache use of engines
            ├ Shadows.run       sends copies of requests
            └ Conversations.run expires stored responses
```
The caller serves its handler, and must stop serving before the router closes.
"""

import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from llmkube.base.hold import Hold
from llmkube.base.http.connection import RequestFilter, StreamHandler
from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.base.http.limits import CONNECTIONS_PER_PEER, Limits
from llmkube.base.http.outbound import trusted_context
from llmkube.router.auth.jwks_refresh import JwksRefresh, fetch_jwks
from llmkube.router.auth.key_files import BackendKeys
from llmkube.router.auth.principals import access_check, can_authenticate
from llmkube.router.backends import ModelDirectory, UnavailableModel, will_be_ready
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.budget_store.local_budgets import LocalBudgets
from llmkube.router.budget_store.redis_budgets import RedisBudgets
from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.dispatch.attempt import Attempts
from llmkube.router.dispatch.backend_call import BackendCalls
from llmkube.router.dispatch.circuits import BackendStats, Circuits, State, pauses_of
from llmkube.router.dispatch.dispatcher import Dispatcher
from llmkube.router.dispatch.holds import Holds
from llmkube.router.dispatch.suspects import Suspects
from llmkube.router.dispatch.transport import open_transport
from llmkube.router.front_door import FrontDoor, Passage
from llmkube.router.health.engine_watch import CacheWatch, EngineWatch
from llmkube.router.health.health_state import CacheUse
from llmkube.router.health.probes import Probes
from llmkube.router.model_list import ModelList
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from llmkube.router.proxy.audit_log import PAUSE_SECONDS, AuditLog, Write, writer_of
from llmkube.router.proxy.handler import HINT, MAX_BODY_BYTES, ListedFields
from llmkube.router.proxy.live_config import LiveConfig, Source, load_routing
from llmkube.router.proxy.metrics import RouterMetrics
from llmkube.router.proxy.shadows import Shadows
from llmkube.router.refusals import queue_refusal
from llmkube.router.responses.conversations import Conversations
from llmkube.router.responses.store import ResponseStore
from llmkube.router.traces import Recorder
from llmkube.router.turns import Turns, engines_of

CIRCUIT_OPEN: Final = "circuit open after failures; retried automatically"


LIMITS: Final = Limits(
    max_body_bytes=MAX_BODY_BYTES, max_bodies_bytes=96 << 20, max_connections_per_peer=CONNECTIONS_PER_PEER
)
"""Limits of a router; with `MEMORY_BYTES` of its requests, it fits in the 512 MiB of its pod."""


@attrs.define(eq=False, kw_only=True)
class Router:
    """A running router.

    Attributes:
        handler: Serves all requests.
        listed_fields: Serves the requests that are forwarded to backends.
        request_filter: Refuses requests by their heads.
        live: Config in use.
        calls: Calls backends.
        needs_backend: Whether it is ready only while a backend gets requests.
    """

    handler: StreamHandler = attrs.field(init=False)
    listed_fields: ListedFields
    request_filter: RequestFilter
    live: LiveConfig
    calls: BackendCalls
    needs_backend: bool = True

    def in_flight(self) -> int:
        """Return the number of requests in flight."""
        return self.calls.stats.in_flight.total()

    def budgets(self) -> Sequence[Mapping[str, Any]]:
        """Return the use of each budget."""
        return self.listed_fields.budgets.used(self.live.routing.config)

    @contextmanager
    def begin(self, name: str) -> Iterator[Passage]:
        """Count a request to a backend that bypasses the handler, while it runs: a `Begin`."""
        backend, in_flight = self.live.routing.config.backends.get(name), self.calls.stats.in_flight
        in_flight[name] += 1
        try:
            if backend is None:
                yield Passage()
            else:
                take = partial(self._take_slots, backend)
                yield Passage(backend.max_answer_tokens, bool(backend.model_digest), backend.slots, take)
        finally:
            in_flight[name] -= 1

    @asynccontextmanager
    async def _take_slots(self, backend: Backend, tenant: str, hold: Hold, slots: int) -> AsyncIterator[bool]:
        """Take slots of a backend for such a request in its tenant's turn: `Passage.take`.

        Raises:
            RefusedError: It had no turn in time.
        """
        if not (slots and backend.slots):
            yield False
            return
        engine_queue, slots = self.calls.turns.queue_of(backend), min(slots, backend.slots)
        with self.calls.turns.turn(backend, tenant, engine_queue.tokens_of(0, None, slots), slots) as turn:
            has_waited = not turn.settled.is_set()
            if has_waited:
                with hold(), trio.move_on_after(self.live.routing.config.first_byte_seconds):
                    await turn.settled.wait()
            if turn.admitted_at is None:
                seconds, has_siblings = engine_queue.retry_info(turn)
                message = f"all slots of {backend.name} are in use; retry in {seconds} s"
                raise queue_refusal(message, seconds, has_siblings=has_siblings)
            try:
                yield has_waited
            finally:  # its tokens are not read, and its bytes may be a picture, or a prompt that is cached
                turn.charge = engine_queue.tokens_in(slots * (trio.current_time() - turn.admitted_at))

    def unavailable_reason(self, name: str) -> str:
        """Return why a backend gets no requests now; "" if it does."""
        backend = self.live.routing.config.backends[name]
        if backend.missing or not backend.base_url:
            return backend.missing or "address unknown"
        if backend.key_file and not self.calls.attempts.keys.key_of(backend.key_file):
            return f"no key can be read from {backend.key_file}"
        directory = self.calls.attempts.transport.directory_of(backend)
        if directory is not None and (why := _obstacle(directory, backend.directory_id)):
            return why
        circuit = self.calls.circuits.of(name)
        if circuit.unhealthy:
            return next(iter(circuit.unhealthy.values()))
        return CIRCUIT_OPEN if circuit.state(trio.current_time()) is State.OPEN else ""

    def states(self) -> Mapping[str, str]:
        """Return why each backend gets no requests now, by name; "" if it does."""
        return {each: self.unavailable_reason(each) for each in self.live.routing.config.backends}

    def ready(self) -> tuple[bool, str]:
        """Return whether requests can be served, and all problems."""
        states = self.states()
        can_log_in, token_problem = can_authenticate(self.live.routing.clients)
        problems = (
            token_problem,
            self.listed_fields.budgets.problem,
            "the audit log cannot be written" if self.listed_fields.audit.is_failing else "",
            f"config file invalid, previous config in use: {self.live.problem}" if self.live.problem else "",
            *(f"{each}: {why}" for each, why in states.items() if why),
        )
        # A failing backend keeps the router ready: its errors tell clients when to retry.
        passing = {
            "",
            CIRCUIT_OPEN,
            *(why for each in states for why in self.calls.circuits.of(each).unhealthy.values()),
        }
        serves = not self.needs_backend or any(why in passing for why in states.values())
        return serves and can_log_in, "; ".join(filter(None, problems))


def _obstacle(directory: ModelDirectory, service: str) -> str:
    """Return why a service is neither ready nor loading; "" if it is."""
    found = directory.lookup(service)
    if found is None:
        return f"InferenceService {service} is not served here"
    if isinstance(found, UnavailableModel) and not found.wakes and not will_be_ready(found.reason):
        return f"InferenceService {service} is not ready ({found.reason})"
    return ""


@attrs.frozen(eq=False)
class BackendGauges:
    """Collector of the state of backends.

    Attributes:
        router: The router.
        cache_use: Returns the KV cache use of a backend's engine; None if it does not report it.
    """

    router: Router
    cache_use: Callable[[Backend], CacheUse | None]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each gauge with its current values."""

        def gauge(name: str, text: str, label: str = "") -> GaugeMetricFamily:
            labels = ["router", label] if label else ["router"]
            return GaugeMetricFamily(f"llmkube_router_{name}", text, labels=labels)

        text = "1 while a backend gets requests, 0 while its circuit is open or it is unavailable."
        health = gauge("backend_health", text, "backend")
        active = gauge("active_backends", "Backends that get requests, by tier.", "tier")
        running = gauge("in_flight", "Requests in flight at a backend, including those in its queue.", "backend")
        waiting = gauge("queue_depth", "Requests that wait for a slot of an engine.", "backend")
        text = "1 while the config file is in use, 0 while it is invalid and the previous config stays in use."
        valid = gauge("config_valid", text)
        text = "Used and reserved share of a budget, from 0 to 1; with scope team, the highest share of a team."
        taken = gauge("budget_utilization", text, "budget")
        text = "Share of the KV cache of a backend's engine in use by running requests, from 0 to 1, if reported."
        full = gauge("kv_cache_usage_ratio", text, "backend")
        caches: list[CacheUse] = []
        tiers = {"local": 0, "cloud": 0}
        computing = queued = 0
        config, calls = self.router.live.routing.config, self.router.calls
        own = self.router.listed_fields.metrics.router
        for name, backend in config.backends.items():
            if config.engines.get(name):
                continue  # its engines follow
            up, waits = not self.router.unavailable_reason(name), calls.turns.waiting(backend)
            under_way = calls.stats.in_flight.get(name, 0)
            if backend.local:
                queued += waits
                computing += max(under_way - waits, 0)
            if up and (use := self.cache_use(backend)) is not None:
                full.add_metric([own, name], use.share)
                caches.append(use)
            for family, value in ((health, up), (running, under_way), (waiting, waits)):
                family.add_metric([own, name], float(value))
            tiers["local" if backend.local else "cloud"] += up
        for tier, count in tiers.items():
            active.add_metric([own, tier], float(count))
        valid.add_metric([own], float(not self.router.live.problem))
        for budget in self.router.budgets():
            taken.add_metric([own, budget["name"]], float(budget["utilization"]))
        yield from (health, active, running, waiting, valid, taken, full)
        # metrics that endpoint pickers of the Gateway API Inference Extension scrape, under vLLM's names
        text = "Requests in flight at local backends, without those that wait."
        yield GaugeMetricFamily("vllm:num_requests_running", text, computing)
        text = "Requests that wait for a slot of a local backend."
        yield GaugeMetricFamily("vllm:num_requests_waiting", text, queued)
        yield GaugeMetricFamily(
            "vllm:kv_cache_usage_perc",
            "Share in use of the KV caches of all engines that report it, from 0 to 1; no value while none does.",
            sum(each.used for each in caches) / sum(each.tokens for each in caches) if caches else None,
        )


@asynccontextmanager
async def open_router(
    source: Source,
    *,
    registry: CollectorRegistry,
    utcnow: Callable[[], datetime],
    rng: random.Random,
    connect: Connect = dial,
    egress: Egress = DIRECTLY,
    write: Write | None = None,
    budgets_folder: Path | None = None,
    holds: Holds | None = None,
    turns: Turns | None = None,
    https_proxy_pages: bool = True,
    needs_backend: bool = True,
    on_error: Callable[[str], None] = lambda _: None,
    traces: Recorder | None = None,
) -> AsyncIterator[Router]:
    """Run a router.

    Args:
        source: Source of its config.
        registry: Registry for its metrics.
        utcnow: Wall clock.
        rng: Source of weighted choices, delays and request IDs.
        connect: Opens plain connections.
        egress: Proxies, and certificates to trust in addition to the system's.
        write: Writes the audit log; overrides the sink in the config.
        budgets_folder: Folder where budgets are stored; None stores them in this process only.
        holds: Resolves and loads services, shared with other routers of this process; None dials the address of each
            backend.
        turns: Queues of engines, to share them with other routers of this process.
        https_proxy_pages: Whether web pages behind an https proxy may use it.
        needs_backend: Whether it is ready only while a backend gets requests.
        on_error: Called with the model of an engine of ours that answers with status 500 or higher.
        traces: Records requests; None if nothing does.

    Raises:
        UserError: The config or the certificates are invalid.
    """

    def wall_clock() -> float:
        return utcnow().timestamp()

    routing, stamp = load_routing(source, wall_clock, rng)
    metrics = RouterMetrics(registry, routing.config.name)
    keys, stats, prefixes = BackendKeys(), BackendStats(), WarmPrefixes(secrets.token_bytes(32))
    holds = holds or Holds()
    turns, circuits = turns or Turns(), Circuits(pauses_of(routing.config.circuit_seconds), rng)
    audit = AuditLog(write or writer_of(routing.config.audit), utcnow, 0.0 if write else PAUSE_SECONDS)
    budget_file = budget_file_of(budgets_folder, routing.config.name) if budgets_folder else None
    accounts = RouterBudgets(
        local=LocalBudgets(budget_file, utcnow, rng),
        shared=RedisBudgets(read_password=keys.key_of, tls=partial(trusted_context, egress.ca_file), rng=rng),
    )
    async with (
        open_transport(connect, egress=egress, directory=holds.directory) as transport,
        _open_writers(audit, accounts, routing.config),
    ):
        attempts = Attempts(transport, keys)
        counters = (metrics.probes, metrics.shadows, metrics.attempts, metrics.continuations)
        count_probe, count_shadow, count_attempt, count_break = (partial(metrics.count, each) for each in counters)
        watch = EngineWatch(attempts.ask, partial(_report_health, circuits, "watch"))
        probes = Probes(attempts.ask, partial(_report_health, circuits, "probe"), count_probe)
        probes.reload_nowait(routing.config, frozenset())

        async def reload(before: RoutingConfig, now: RoutingConfig) -> None:
            """Apply a new config; keep the state of backends that have not changed."""
            same = frozenset(each for each in now.backends if now.backends[each] == before.backends.get(each))
            circuits.pauses = pauses_of(now.circuit_seconds)
            for part in (circuits, prefixes, watch):
                part.keep_only(same)
            probes.reload_nowait(now, same)
            turns.keep_only(engines_of(now.backends.values()))
            if write is None and now.audit != before.audit:
                audit.write = writer_of(now.audit)
            await audit.record_config(now)
            await accounts.reload(now)

        live = LiveConfig(source, routing, reload, wall_clock, rng, stamp=stamp)
        caches = CacheWatch(attempts.ask, lambda: live.routing.config, stats.in_flight, watch.is_llama)
        shadows = Shadows(attempts, count_shadow)
        conversations = Conversations(ResponseStore(), lambda: int(utcnow().timestamp()))
        on_events = count_attempt, count_break, on_error
        calls = BackendCalls(
            attempts, turns, circuits, stats, watch, Suspects(), *on_events, prefixes=prefixes, holds=holds
        )
        listed_fields = ListedFields(
            routing=lambda: live.routing,
            dispatcher=Dispatcher(calls),
            shadows=shadows,
            metrics=metrics,
            audit=audit,
            budgets=accounts,
            conversations=conversations,
            rng=rng,
            obstacle=lambda name: router.unavailable_reason(name),  # noqa: PLW0108 (it is assigned below)
            traces=traces,
        )
        router = Router(
            listed_fields=listed_fields,
            request_filter=access_check(
                lambda: live.routing.clients, metrics.count_refused, https_proxy_pages=https_proxy_pages
            ),
            live=live,
            calls=calls,
            needs_backend=needs_backend,
        )
        models = ModelList(listed_fields.models, int(utcnow().timestamp()))
        router.handler = FrontDoor(hint=HINT, models=models, ready=router.ready, listed_fields=listed_fields)
        registry.register(BackendGauges(router, caches.use))
        refresh = JwksRefresh(live.token_keys, partial(fetch_jwks, *transport.outside))
        async with trio.open_nursery() as tasks:
            for part in (refresh, watch, probes, caches, live, shadows, conversations):
                await tasks.start(part.run)
            yield router
            tasks.cancel_scope.cancel(reason="the router closes")
        audit.end_nowait(live.routing.config)


@asynccontextmanager
async def _open_writers(audit: AuditLog, accounts: RouterBudgets, config: RoutingConfig) -> AsyncIterator[None]:
    """Write the audit log and the budgets until all other tasks have ended."""
    async with trio.open_nursery() as writing:
        await accounts.open(config)
        await writing.start(audit.run)
        await writing.start(accounts.run)
        await audit.record_config(config, "start")
        yield
        writing.cancel_scope.cancel(reason="the router closes")


def _report_health(circuits: Circuits, by: str, name: str, why: str) -> None:
    circuits.put(name, circuits.of(name).checked(by, why, trio.current_time()))
