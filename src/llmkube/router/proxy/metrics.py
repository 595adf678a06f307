"""Prometheus metrics of a router; every label value comes from the config or from a list in this package.

Each request is counted once, whatever its outcome. One thread updates counters and histograms, without locks: at about
a quarter of the cost of the library's. They are exported as `prometheus_client.Counter` and `Histogram` are.
"""

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from llmkube.router.config.data_classes import classes_in
from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.dispatch.attempt_charges import charge_of
from llmkube.router.dispatch.record import Record
from llmkube.router.dispatch.spans import OPERATIONS, provider_of

Sample = tuple[str, dict[str, str], float]
"""Suffix of its name, labels besides those of the series, and value."""

_NONE: Final[dict[str, str]] = {}


@attrs.define(eq=False)
class Counter:
    """One counter."""

    value: float = 0.0
    _created_at: float = attrs.field(factory=time.time, init=False)

    def samples(self) -> Iterator[Sample]:
        """Yield its samples."""
        yield "_total", _NONE, self.value
        yield "_created", _NONE, self._created_at


@attrs.define(eq=False)
class Histogram:
    """One histogram; `bounds` are the finite upper bounds of its buckets, ascending."""

    bounds: Sequence[float]
    _counts: defaultdict[int, int] = attrs.field(factory=lambda: defaultdict(int), init=False)
    _sum: float = attrs.field(default=0.0, init=False)
    _created_at: float = attrs.field(factory=time.time, init=False)

    def observe(self, value: float) -> None:
        """Add a value."""
        self._sum += value
        self._counts[bisect_left(self.bounds, value)] += 1

    def samples(self) -> Iterator[Sample]:
        """Yield its samples."""
        below = 0
        for at, bound in enumerate((*self.bounds, math.inf)):
            below += self._counts[at]
            yield "_bucket", {"le": floatToGoString(bound)}, below  # type: ignore[no-untyped-call]
        yield "_count", _NONE, below
        yield "_sum", _NONE, self._sum
        yield "_created", _NONE, self._created_at


S = TypeVar("S", Counter, Histogram)


class Family(Collector, Generic[S]):
    """Series of one name; `of` has each by its label values, and creates it on first use.

    Args:
        registry: Exports it; raises ValueError if it already has the name.
        metric: Name, text and type.
        labels: Names of the labels.
        make: Creates a series.
    """

    def __init__(
        self, registry: CollectorRegistry, metric: tuple[str, str, str], labels: Sequence[str], make: Callable[[], S]
    ) -> None:
        self.of: defaultdict[tuple[str, ...], S] = defaultdict(make)
        self._metric, self._labelnames = metric, labels
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its series."""
        metric = Metric(*self._metric)
        for values, one in self.of.items():
            labels = dict(zip(self._labelnames, values, strict=True))
            for suffix, more, value in one.samples():
                metric.add_sample(metric.name + suffix, labels | more, value)
        yield metric

    describe = collect


_REQUEST_SECONDS: Final = tuple(0.01 * 2**step for step in range(14))
_FIRST_TOKEN_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
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
        operation = OPERATIONS.get(record.request.path)
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
            of_team, team = self.team_tokens.of, record.decided.principal.team
            if (router, team, "prompt") not in of_team and len(of_team) >= MAX_TEAMS * len(_KINDS):
                team = "other"
            for kind, count in zip(_KINDS, (usage.prompt, usage.completion, usage.cached), strict=True):
                self.tokens.of[router, backend, kind].value += count
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
