"""Metrics named by OpenTelemetry's conventions for generative AI, as its Prometheus exporter writes them.

Names, units, attributes and buckets: https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai. The
conventions are in development and may change; series that begin with `llmkube_` are stable.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.record import Record
from llmkube.router.dispatch.spans import operation_of, provider_of
from llmkube.router.proxy.series import Family, Histogram

_SECONDS: Final = tuple(0.01 * 2**step for step in range(14))
_FIRST_SECONDS: Final = (*(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),)
_TOKEN_SECONDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(4**step for step in range(14))

_LABELS: Final = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class GenAiMetrics:
    """Series of one router."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series.

        Raises:
            ValueError: The registry already has them.
        """

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float]) -> Family[Histogram]:
            return Family(registry, (name, text, "histogram"), (*_LABELS, *labels), partial(Histogram, buckets))

        self.duration_seconds = histogram(
            "gen_ai_server_request_duration_seconds",
            "Seconds from a request to the last byte of its answer; error_type is empty on success.",
            "error_type",
            buckets=_SECONDS,
        )
        self.first_seconds = histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Seconds from a request to the first event of its stream.",
            buckets=_FIRST_SECONDS,
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
