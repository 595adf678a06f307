"""Prometheus metrics of a router; every label value comes from the config or from a list in this package.

Each request is counted once, whatever its outcome. Gauges are computed at each scrape, so the health of a backend is
current even if it gets no requests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from llmkube.router.config.data_classes import classes_in
from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.dispatch.attempt_charges import charge_of
from llmkube.router.dispatch.record import Record
from llmkube.router.dispatch.spans import operation_of, provider_of
from llmkube.router.health.health_state import CacheUse
from llmkube.router.proxy.series import Counter, Family, Histogram

_REQUEST_SECONDS: Final = tuple(0.01 * 2**step for step in range(14))
_FIRST_TOKEN_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_TOKEN_SECONDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(4**step for step in range(14))

_GEN_AI_LABELS: Final = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class GenAiMetrics:
    """Series of one router, named by OpenTelemetry's conventions for generative AI, as its exporter writes them.

    Names, units, attributes and buckets: https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai. The
    conventions are in development and may change; series that begin with `llmkube_` are stable.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series.

        Raises:
            ValueError: The registry already has them.
        """

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float]) -> Family[Histogram]:
            return Family(registry, (name, text, "histogram"), (*_GEN_AI_LABELS, *labels), partial(Histogram, buckets))

        self.duration_seconds = histogram(
            "gen_ai_server_request_duration_seconds",
            "Seconds from a request to the last byte of its answer; error_type is empty on success.",
            "error_type",
            buckets=_REQUEST_SECONDS,
        )
        self.first_seconds = histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Seconds from a request to the first event of its stream.",
            buckets=_FIRST_TOKEN_SECONDS,
        )
        self.token_seconds = histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Seconds per token of a stream after the first.",
            buckets=_TOKEN_SECONDS,
        )
        self.tokens = histogram(
            "gen_ai_client_token_usage",
            "Tokens of a request as reported by its backend, by type: input, output.",
            "gen_ai_token_type",
            buckets=_TOKENS,
        )

    def count_request(self, record: Record, backend: Backend | None, outcome: str, seconds: float) -> None:
        """Count a request that a backend answered; for others the conventions have no provider.

        Args:
            record: Record of the request.
            backend: Backend that answered; None for none.
            outcome: Same as the label of the router's own series.
            seconds: Duration of the request.
        """
        operation = operation_of(record.request.path)
        if operation is None or backend is None:
            return
        labels = (operation, provider_of(backend), backend.model or backend.model_id)
        error = "" if outcome == "ok" else outcome
        self.duration_seconds.of[*labels, error].observe(seconds)
        usage, first = record.answer.usage, record.answer.first_byte_seconds
        if record.answer.streamed and first is not None and not error:
            self.first_seconds.of[labels].observe(first)
            if usage is not None and usage.completion > 1:
                self.token_seconds.of[labels].observe((seconds - first) / (usage.completion - 1))
        if usage is not None:
            self.tokens.of[*labels, "input"].observe(usage.prompt)
            if operation != "embeddings":
                self.tokens.of[*labels, "output"].observe(usage.completion)


_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_FIRST_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 120.0)

OUTCOMES: Final = frozenset(
    {
        *("ok", "client_gone", "client_error", "stream_broken", "unauthorized", "budget_exhausted", "budget_not_kept"),
        *("no_route", "fail_closed", "not_permitted", "model_not_allowed", "fail_closed_runtime", "backend_timeout"),
        *("rate_limited", "model_loading", "model_not_ready", "no_backend_available", "all_backends_failed", "crashed"),
        *("backend_refused_credentials", "untranslatable", "queue_full", "tenant_queue_full", "no_token_keys"),
        "histories_full",
        *("request_too_slow", "body_too_large", "headers_too_large", "bodies_full", "malformed_request"),
    }
)
"""Outcomes of requests, including the code of each of the router's own errors with a status of 500 or more."""


_KINDS: Final = ("prompt", "completion", "cached")
MAX_TEAMS: Final = 100
"""Maximum number of teams with series of their own, because a token may name any team."""


class RouterMetrics:
    """Series of one router.

    Attributes:
        router: Value of the `router` label.
        genai: Series named by OpenTelemetry's conventions.
    """

    def __init__(self, registry: CollectorRegistry, router: str) -> None:
        """Register the series.

        Raises:
            ValueError: The registry already has them.
        """

        def counter(name: str, text: str, *labels: str) -> Family[Counter]:
            return Family(registry, (f"llmkube_router_{name}", text, "counter"), ["router", *labels], Counter)

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float]) -> Family[Histogram]:
            metric = f"llmkube_router_{name}_seconds", text, "histogram"
            return Family(registry, metric, ["router", *labels], partial(Histogram, buckets))

        self.router = router
        self.genai = GenAiMetrics(registry)
        text = (
            "Requests by outcome, including failures and malformed requests: request_too_slow, body_too_large,"
            " headers_too_large, bodies_full, malformed_request."
        )
        self.requests = counter("requests", text, "rule", "backend", "classification", "outcome")
        text = "Seconds from a request to the last byte of its answer."
        self.duration_seconds = histogram("request_duration", text, "rule", "backend", buckets=_SECONDS)
        text = "Requests that were refused because no backend that may receive their data was available."
        self.fail_closed = counter("fail_closed", text, "rule", "classification")
        text = "Seconds from a request to the first event of its stream."
        self.first_token_seconds = histogram("first_token", text, "backend", buckets=_FIRST_SECONDS)
        text = "Attempts at backends by result; a request with more than one fell back."
        self.attempts = counter("attempts", text, "backend", "result")
        text = "Tokens as reported by backends, by kind: prompt, completion, cached (part of the prompt)."
        self.tokens = counter("tokens", text, "backend", "kind")
        text = "Tokens as reported by backends, by team and kind; teams beyond the first 100 are other."
        self.team_tokens = counter("team_tokens", text, "team", "kind")
        text = "Dollars for answers, at the prices of the backends that have some, by team and backend."
        self.dollars = counter("cost_dollars", text, "team", "backend")
        text = "Copies of requests to shadow backends, by result."
        self.shadows = counter("shadows", text, "backend", "result")
        text = (
            "Answers under strategy least-loaded: hit, the engine's cache had the expected prefix; miss, it did not;"
            " cold, no prefix was expected."
        )
        self.prompts = counter("prefix_cache", text, "backend", "result")
        text = "Health checks of backends by result: healthy, unhealthy, loading."
        self.probes = counter("probes", text, "backend", "result")
        text = "Answers interrupted by an engine failure: continued, not_continuable, no_engine (none in time)."
        self.continuations = counter("continuations", text, "outcome")

    def count_refused(self, outcome: str) -> None:
        """Count a request that was refused before it was read: unauthenticated or malformed."""
        self.requests.of[self.router, "none", "none", "none", outcome].value += 1

    def count(self, family: Family[Counter], *labels: str) -> None:
        """Add one to a counter."""
        family.of[self.router, *labels].value += 1

    def count_prompt(self, backend: str, result: str) -> None:
        """Count a cache result: hit, miss or cold; "" if the engine does not report it."""
        if result:
            self.prompts.of[self.router, backend, result].value += 1

    def count_request(self, record: Record, classification: str, answering: Backend | None, seconds: float) -> None:
        """Count a finished request and the backend that answered it, None for none."""
        answer = record.answer
        rule, backend = record.decided.rule, answer.backend or "none"
        router, outcome = self.router, bounded_outcome(answer.outcome, answer.status)
        self.requests.of[router, rule, backend, classification, outcome].value += 1
        self.duration_seconds.of[router, rule, backend].observe(seconds)
        if outcome in ("fail_closed", "fail_closed_runtime", "not_permitted"):
            self.fail_closed.of[router, rule, classification].value += 1
        if answer.streamed and answer.first_byte_seconds is not None:
            self.first_token_seconds.of[router, backend].observe(answer.first_byte_seconds)
        self.genai.count_request(record, answering, outcome, seconds)
        if (usage := answer.usage) is not None:
            tokens = self.tokens.of
            tokens[router, backend, "prompt"].value += usage.prompt
            tokens[router, backend, "completion"].value += usage.completion
            tokens[router, backend, "cached"].value += usage.cached
            of_team, team = self.team_tokens.of, record.decided.principal.team
            if (router, team, "prompt") not in of_team and len(of_team) >= MAX_TEAMS * len(_KINDS):
                team = "other"
            for kind, count in zip(_KINDS, (usage.prompt, usage.completion, usage.cached), strict=True):
                of_team[router, team, kind].value += count
            prices = answering.charged_prices if answering is not None else None
            charge = charge_of(is_sent=True, status=200, usage=usage, prices=prices)
            if charge is not None and prices is not None:
                self.dollars.of[router, team, backend].value += charge.nano_usd / 1e9


def bounded_outcome(outcome: str, status: int) -> str:
    """Return the outcome as a label value; error codes chosen by a backend are mapped, to bound their number."""
    if outcome in OUTCOMES:
        return outcome
    return "stream_broken" if outcome.startswith("stream_") else "client_error" if 400 <= status < 500 else "crashed"


def known_classes(config: RoutingConfig) -> frozenset[str]:
    """Return the data classes named in the config."""
    named = {each for rule in config.rules for each in rule.match.classes}
    return config.classes.sensitive | named | classes_in(config.classes.default)


def class_label(classes: frozenset[str], known: frozenset[str]) -> str:
    """Return a request's data classes as a label value; `other` if the client made them up."""
    if not classes:
        return "none"
    return "+".join(sorted(classes & known)) or "other"


@attrs.frozen(eq=False)
class BackendGauges:
    """Collector of the state of backends.

    Attributes:
        router: Value of the `router` label.
        config: Returns the current config.
        healthy: Returns whether a backend gets requests, by name.
        in_flight: Requests in flight, by name of the backend.
        waiting: Returns the number of requests that wait for a slot of a backend.
        cache_use: Returns the KV cache use of a backend's engine; None if it does not report it.
        config_valid: Returns whether the config file is in use.
        budgets: Returns the use of each budget.
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
        config = self.config()
        for name, backend in config.backends.items():
            if config.engines.get(name):
                continue  # its engines follow
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
