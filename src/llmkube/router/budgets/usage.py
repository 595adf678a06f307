"""The tokens of an answer as its backend reports them: OpenAI's `usage`, else llama.cpp's `timings`. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.dialects.dialect import count_in

_COUNT_FIELDS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


@attrs.frozen
class Usage:
    """Tokens of one answer, and llama.cpp's times.

    Attributes:
        prompt: Tokens of the prompt, including cached ones.
        completion: Tokens of the answer.
        cached: Tokens of the prompt that came from the cache.
        prefill_ms: Time to process the prompt; None if not reported.
        decode_ms: Time to generate the answer; None if not reported.
    """

    prompt: int
    completion: int
    cached: int = 0
    prefill_ms: float | None = None
    decode_ms: float | None = None


def usage_of(fields: Mapping[str, Any], known: Usage | None = None) -> Usage | None:
    """Return the usage that an answer or one of its events reports; `known` if it reports none."""
    usage, timings = fields.get("usage"), fields.get("timings")
    found = known
    if isinstance(timings, dict):
        cached = count_in(timings, "cache_n")
        found = Usage(
            cached + count_in(timings, "prompt_n"),
            count_in(timings, "predicted_n"),
            cached,
            _milliseconds(timings.get("prompt_ms")),
            _milliseconds(timings.get("predicted_ms")),
        )
    if isinstance(usage, dict) and int in map(type, map(usage.get, _COUNT_FIELDS)):
        prompt, completion, total = [count_in(usage, name) for name in _COUNT_FIELDS]
        details = usage.get("prompt_tokens_details")
        cached = count_in(details, "cached_tokens") if isinstance(details, dict) else 0
        found = Usage(
            prompt or max(0, total - completion),  # rankers report only the total
            completion,
            cached or (found.cached if found else 0),
            found.prefill_ms if found else None,
            found.decode_ms if found else None,
        )
    return found


def _milliseconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None
