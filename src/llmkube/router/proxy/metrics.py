"""What a router's `/metrics` says; every value of every label is one of the config's, or of a list in this package.

A request counts once, whatever became of it. Gauges are read when they are asked for: a backend that no request asks
any more has the health that it has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from llmkube.router.config.data_classes import classes_in
from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.dispatch.record import Record
from llmkube.router.health.health_state import CacheUse
from llmkube.router.proxy.genai_metrics import GenAiMetrics, series_cache

_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_FIRST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 120.0)

OUTCOMES: Final = frozenset(
    {
        *("ok", "client_gone", "client_error", "stream_broken", "unauthorized", "budget_exhausted", "budget_not_kept"),
        *("no_route", "fail_closed", "not_permitted", "model_not_allowed", "fail_closed_runtime", "backend_timeout"),
        *("rate_limited", "model_loading", "no_backend_available", "all_backends_failed", "crashed"),
        *("backend_refused_credentials", "untranslatable", "queue_full", "tenant_queue_full", "no_token_keys"),
        "histories_full",
        *("request_too_slow", "body_too_large", "headers_too_large", "bodies_full", "malformed_request"),
    }
)
"""What becomes of requests; a refusal of our own with a status of 500 or more has its code here."""


class RouterMetrics:
    """The series of one router.

    Attributes:
        router: Label of all.
        genai: The same under the names of OpenTelemetry.
    """

    def __init__(self, registry: CollectorRegistry, router: str) -> None:
        """Register the series.

        Raises:
            ValueError: The registry already has them.
        """

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"llmkube_router_{name}_total", text, ["router", *labels], registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
            named = f"llmkube_router_{name}_seconds"
            return Histogram(named, text, ["router", *labels], buckets=buckets, registry=registry)

        self.router = router
        self.genai = GenAiMetrics(registry)
        self._series = series_cache()
        text = (
            "Requests by what became of them, failures among them, and those that cannot be read: request_too_slow,"
            " body_too_large, headers_too_large, bodies_full, malformed_request."
        )
        self.requests = counter("requests", text, "rule", "backend", "classification", "outcome")
        text = "Seconds from a request to the end of its answer, streams to their last byte."
        self.duration_seconds = histogram("request_duration", text, "rule", "backend", buckets=_SECONDS)
        text = "Requests that were refused rather than sent where their data may not go."
        self.fail_closed = counter("fail_closed", text, "rule", "classification")
        text = "Seconds from a request to the first event of its stream."
        self.first_token_seconds = histogram("first_token", text, "backend", buckets=_FIRST_SECONDS)
        text = "Attempts at backends by what came of them; more than one for a request is a fallback."
        self.attempts = counter("attempts", text, "backend", "result")
        text = "Tokens as backends report them, by kind: prompt, completion, cached (of the prompt)."
        self.tokens = counter("tokens", text, "backend", "kind")
        text = "Copies to backends that are tried out, by what came of them."
        self.shadows = counter("shadows", text, "backend", "result")
        text = (
            "Answers under strategy least-loaded: hit, the engine had in its cache what was expected; miss, it"
            " had not; cold, nothing was expected."
        )
        self.prompts = counter("prefix_cache", text, "backend", "result")
        text = "Health checks of backends by what they found: healthy, unhealthy, loading."
        self.probes = counter("probes", text, "backend", "result")
        text = "Answers whose engine died, each time: continued, not_continuable, no_engine (none in time)."
        self.continuations = counter("continuations", text, "outcome")

    def unread(self, outcome: str) -> None:
        """Count a request that was refused before all of it was read: for what it shows, or since it cannot be read."""
        self.requests.labels(self.router, "none", "none", "none", outcome).inc()

    def tried(self, backend: str, result: str) -> None:
        """Count an attempt."""
        self._series(self.attempts, self.router, backend, result).inc()

    def continued(self, outcome: str) -> None:
        """Count an answer whose engine died."""
        self.continuations.labels(self.router, outcome).inc()

    def shadowed(self, backend: str, result: str) -> None:
        """Count a copy."""
        self.shadows.labels(self.router, backend, result).inc()

    def probed(self, backend: str, result: str) -> None:
        """Count a health check."""
        self.probes.labels(self.router, backend, result).inc()

    def prompt_answered(self, backend: str, result: str) -> None:
        """Count whether an engine had in its cache what was expected; "" of one that does not say."""
        if result:
            self.prompts.labels(self.router, backend, result).inc()

    def ended(self, record: Record, classification: str, answering: Backend | None, seconds: float) -> None:
        """Count a request that has ended, and that this backend has answered; None for none."""
        answered = record.answered
        outcome = bounded_outcome(answered.outcome, answered.status)
        rule, backend = record.decided.rule, answered.backend or "none"
        self._series(self.requests, self.router, rule, backend, classification, outcome).inc()
        self._series(self.duration_seconds, self.router, rule, backend).observe(seconds)
        if outcome in ("fail_closed", "fail_closed_runtime", "not_permitted"):
            self.fail_closed.labels(self.router, rule, classification).inc()
        if answered.streamed and answered.first_byte_seconds is not None:
            self._series(self.first_token_seconds, self.router, backend).observe(answered.first_byte_seconds)
        self.genai.ended(record, answering, outcome, seconds)
        if (usage := answered.usage) is not None:
            kinds = {"prompt": usage.prompt, "completion": usage.completion, "cached": usage.cached}
            for kind, tokens in kinds.items():
                self._series(self.tokens, self.router, backend, kind).inc(tokens)


def bounded_outcome(outcome: str, status: int) -> str:
    """Return the outcome as a label: an error's own code, which a backend chose, is none."""
    if outcome in OUTCOMES:
        return outcome
    return "stream_broken" if outcome.startswith("stream_") else "client_error" if 400 <= status < 500 else "crashed"


def known_classes(config: RoutingConfig) -> frozenset[str]:
    """Return the data classes that the config names."""
    named = {each for rule in config.rules for each in rule.match.classes}
    return config.classes.sensitive | named | classes_in(config.classes.default)


def class_label(classes: frozenset[str], known: frozenset[str]) -> str:
    """Return a request's data classes as a label: what a client makes up is `other`."""
    if not classes:
        return "none"
    return "+".join(sorted(classes & known)) or "other"


@attrs.frozen(eq=False)
class BackendGauges:
    """How the backends stand, for a registry.

    Attributes:
        router: Label of all.
        config: Returns what counts now.
        healthy: Returns whether a backend is asked, by its name.
        in_flight: Requests under way, by the backend's name.
        waiting: Returns how many requests wait for a slot of a backend.
        cache_use: Returns how full the KV cache of a backend's engine is; None where it does not tell.
        config_valid: Whether the config's file counts.
        budgets: Returns how much of each budget is taken.
    """

    router: str
    config: Callable[[], RoutingConfig]
    healthy: Callable[[str], bool]
    in_flight: Mapping[str, int]
    waiting: Callable[[Backend], int]
    cache_use: Callable[[Backend], CacheUse | None]
    config_valid: Callable[[], bool]
    budgets: Callable[[], Sequence[Mapping[str, Any]]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each gauge with a value for each backend."""

        def gauge(name: str, text: str, label: str = "") -> GaugeMetricFamily:
            labels = ["router", label] if label else ["router"]
            return GaugeMetricFamily(f"llmkube_router_{name}", text, labels=labels)

        text = "1 while a backend is asked, 0 while it is left alone or is not available."
        health = gauge("backend_health", text, "backend")
        active = gauge("active_backends", "Backends that are asked, by tier.", "tier")
        running = gauge("in_flight", "Requests under way at a backend, those in its queue among them.", "backend")
        waiting = gauge("queue_depth", "Requests that wait for a slot of an engine.", "backend")
        text = "1 while the router runs by what its file says, 0 while the file cannot be used and the old one counts."
        valid = gauge("config_valid", text)
        text = "Share of a budget that is taken or reserved, from 0 to 1; under scope team, of the team with the most."
        taken = gauge("budget_utilization", text, "budget")
        text = (
            "Share of the KV cache of a backend's engine that running requests hold, from 0 to 1; of those that tell."
        )
        full = gauge("kv_cache_usage_ratio", text, "backend")
        caches: list[CacheUse] = []
        tiers = {"local": 0, "cloud": 0}
        computing = queued = 0
        for name, backend in self.config().backends.items():
            up, waits, under_way = self.healthy(name), self.waiting(backend), self.in_flight.get(name, 0)
            if backend.local:
                queued += waits
                computing += max(under_way - waits, 0)
            if up and (use := self.cache_use(backend)) is not None:
                full.add_metric([self.router, name], use.share)
                caches.append(use)
            for family, value in ((health, up), (running, under_way), (waiting, waits)):
                family.add_metric([self.router, name], float(value))
            tiers["local" if backend.local else "cloud"] += up
        for tier, count in tiers.items():
            active.add_metric([self.router, tier], float(count))
        valid.add_metric([self.router], float(self.config_valid()))
        for budget in self.budgets():
            taken.add_metric([self.router, budget["name"]], float(budget["utilization"]))
        yield from (health, active, running, waiting, valid, taken, full)
        # what an endpoint picker of Gateway API's Inference Extension asks a model server for, as vLLM names it
        yield GaugeMetricFamily(
            "vllm:num_requests_running", "Requests under way at local backends, without those that wait.", computing
        )
        yield GaugeMetricFamily(
            "vllm:num_requests_waiting", "Requests that wait for a slot of a local backend.", queued
        )
        yield GaugeMetricFamily(
            "vllm:kv_cache_usage_perc",
            "Share of the KV caches of all engines that tell, from 0 to 1; without a value while none does.",
            sum(each.used for each in caches) / sum(each.tokens for each in caches) if caches else None,
        )
