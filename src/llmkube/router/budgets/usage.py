"""How many tokens an answer took, as its backend says: OpenAI's `usage`, else llama.cpp's `timings`. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.dialects.dialect import count_in

_COUNT_FIELDS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


@attrs.frozen
class Usage:
    """Tokens of one answer, and llama.cpp's times where they are known.

    Attributes:
        prompt: Of the prompt, cached ones among them.
        completion: Of the answer.
        cached: Of the prompt, and not read again.
        prefill_ms: Reading the prompt took so long.
        decode_ms: Writing the answer took so long.
    """

    prompt: int
    completion: int
    cached: int = 0
    prefill_ms: float | None = None
    decode_ms: float | None = None


def usage_of(fields: Mapping[str, Any], known: Usage | None = None) -> Usage | None:
    """Return what an answer, or an event of one, says of its tokens; what was known if it says nothing."""
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
    if isinstance(usage, dict) and any(type(usage.get(name)) is int for name in _COUNT_FIELDS):
        prompt, completion, total = (count_in(usage, name) for name in _COUNT_FIELDS)
        details = usage.get("prompt_tokens_details")
        cached = count_in(details, "cached_tokens") if isinstance(details, dict) else 0
        found = Usage(
            prompt or max(0, total - completion),  # rankers say the total alone
            completion,
            cached or (found.cached if found else 0),
            found.prefill_ms if found else None,
            found.decode_ms if found else None,
        )
    return found


def _milliseconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None
