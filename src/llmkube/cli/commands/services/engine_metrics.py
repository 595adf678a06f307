"""What engines say of their work in /metrics, in one vocabulary for llama.cpp, vLLM, SGLang and TGI. Pure."""

from collections.abc import Mapping
from typing import Final

import attrs
from prometheus_client.parser import text_string_to_metric_families

GENERATED: Final = "generated"
PROMPT: Final = "prompt"
RUNNING: Final = "running"
WAITING: Final = "waiting"

NAMES: Final[Mapping[str, str]] = {
    # llama.cpp (tools/server/README.md)
    "llamacpp:tokens_predicted_total": GENERATED,
    "llamacpp:prompt_tokens_total": PROMPT,
    "llamacpp:requests_processing": RUNNING,
    "llamacpp:requests_deferred": WAITING,
    # vLLM (docs/usage/metrics.md)
    "vllm:generation_tokens_total": GENERATED,
    "vllm:prompt_tokens_total": PROMPT,
    "vllm:num_requests_running": RUNNING,
    "vllm:num_requests_waiting": WAITING,
    # SGLang (docs/references/production_metrics.md)
    "sglang:generation_tokens_total": GENERATED,
    "sglang:prompt_tokens_total": PROMPT,
    "sglang:num_running_reqs": RUNNING,
    "sglang:num_queue_reqs": WAITING,
    # TGI (docs/source/reference/metrics.md)
    "tgi_request_generated_tokens_sum": GENERATED,
    "tgi_request_input_length_sum": PROMPT,
    "tgi_batch_current_size": RUNNING,
    "tgi_queue_size": WAITING,
}
"""Which sample of which engine says what; several series of one name are added up."""


@attrs.frozen
class Work:
    """One look at an engine.

    Attributes:
        at: When, in seconds of any clock that only goes forward.
        figures: By the words of this module; what the engine does not say is missing.
    """

    at: float
    figures: Mapping[str, float]


@attrs.frozen
class Pace:
    """What an engine did between two looks; None where it does not say.

    Attributes:
        generated: Tokens per second that it made.
        prompt: Tokens per second that it read.
        running: Requests that it works on now.
        waiting: Requests that wait for it now.
    """

    generated: float | None = None
    prompt: float | None = None
    running: int | None = None
    waiting: int | None = None


def read_work(text: str, at: float) -> Work:
    """Read the answer of /metrics.

    Raises:
        ValueError: It is none.
    """
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (word := NAMES.get(sample.name)) is not None:
                figures[word] = figures.get(word, 0.0) + sample.value
    return Work(at, figures)


def pace_of(before: Work | None, now: Work) -> Pace:
    """Return what happened between two looks; without an earlier one, or after a restart, no rate is known."""
    return Pace(
        generated=_rate(before, now, GENERATED),
        prompt=_rate(before, now, PROMPT),
        running=_whole(now.figures.get(RUNNING)),
        waiting=_whole(now.figures.get(WAITING)),
    )


def _rate(before: Work | None, now: Work, word: str) -> float | None:
    if before is None or word not in now.figures or word not in before.figures or now.at <= before.at:
        return None
    grown = now.figures[word] - before.figures[word]
    return grown / (now.at - before.at) if grown >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
