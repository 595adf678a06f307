"""The tokens of an answer as its backend reports them: OpenAI's `usage`, else llama.cpp's `timings`. Pure.

A report that cannot be true is none: negative numbers, zeros, more tokens than any answer has. Backends use several
names for the same number; the largest applies.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

_COUNT_FIELDS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_MAX_COUNT: Final = 2**31 - 1
_DETAILS: Final = "prompt_tokens_details"
_READS: Final = (
    (_DETAILS, "cached_tokens"),  # OpenAI
    ("cache_read_input_tokens",),  # Anthropic, LiteLLM
    ("prompt_cache_hit_tokens",),  # DeepSeek
    ("cached_tokens",),  # Moonshot
)
_WRITES: Final = (
    ("cache_creation_input_tokens",),  # Anthropic, LiteLLM
    (_DETAILS, "cache_write_tokens"),  # OpenRouter
    (_DETAILS, "cache_creation_tokens"),  # LiteLLM
)
_SHORT_WRITES: Final = (
    ("cache_creation", "ephemeral_5m_input_tokens"),  # Anthropic
    (_DETAILS, "cache_creation_token_details", "ephemeral_5m_input_tokens"),  # LiteLLM
)
_LONG_WRITES: Final = tuple((*path[:-1], "ephemeral_1h_input_tokens") for path in _SHORT_WRITES)
_CACHES: Final = (_READS, _WRITES, _SHORT_WRITES, _LONG_WRITES)
_CACHE_MEMBERS: Final = frozenset(path[0] for paths in _CACHES for path in paths)
_TEXT_FIELDS: Final = ("content", "text", "reasoning_content", "reasoning", "tool_calls", "refusal")


@attrs.frozen
class Usage:
    """Tokens of one answer, and llama.cpp's times.

    Attributes:
        prompt: Tokens of the prompt, including those read from a cache or written to it.
        completion: Tokens of the answer, including those that only the total has.
        cached: Tokens of the prompt that came from the cache.
        prefill_ms: Time to process the prompt; None if not reported.
        decode_ms: Time to generate the answer; None if not reported.
        written_5m: Tokens of the prompt that were written to the cache for 5 minutes, or for an unreported time.
        written_1h: Tokens of the prompt that were written to the cache for 1 hour.
        has_text: Whether the backend wrote an answer.
    """

    prompt: int
    completion: int
    cached: int = 0
    prefill_ms: float | None = None
    decode_ms: float | None = None
    written_5m: int = 0
    written_1h: int = 0
    has_text: bool = attrs.field(default=False, eq=False)

    @property
    def is_counted(self) -> bool:
        """Whether both prompt and answer were counted: no prompt has 0 tokens, nor has an answer with text."""
        return self.prompt > 0 and (self.completion > 0 or not self.has_text)


def usage_of(fields: Mapping[str, Any], known: Usage | None = None) -> Usage | None:
    """Return the usage that an answer or one of its events reports; `known` if it reports none."""
    usage, timings = fields.get("usage"), fields.get("timings")
    found = known
    if isinstance(timings, dict):
        counts = [_count(timings.get(name)) for name in ("cache_n", "prompt_n", "predicted_n")]
        cached, computed, answer = counts
        if min(counts) >= 0 and any(counts):
            prefill, decode = (_milliseconds(timings.get(name)) for name in ("prompt_ms", "predicted_ms"))
            found = Usage(cached + computed, answer, cached, prefill, decode)
    if isinstance(usage, dict) and not usage.keys().isdisjoint(_COUNT_FIELDS):
        found = _reported(usage, found) or found
    return found


def usage_of_answer(answer: Mapping[str, Any]) -> Usage | None:
    """Return the usage that a whole answer reports; None if it reports none."""
    usage = usage_of(answer)
    if usage is None or usage.completion:  # then `has_text` changes nothing
        return usage
    return attrs.evolve(usage, has_text=has_text(answer))


def _reported(usage: Mapping[str, Any], known: Usage | None) -> Usage | None:
    counts = [_count(usage.get(name)) for name in _COUNT_FIELDS]
    kinds = () if usage.keys().isdisjoint(_CACHE_MEMBERS) else _CACHES
    caches = [[_count_at(usage, path) for path in paths] for paths in kinds]
    if min(*counts, *map(min, caches)) < 0 or not any(counts):
        return None
    read, written, short, long = map(max, caches) if caches else (0, 0, 0, 0)
    short += max(0, written - short - long)
    read = read or (known.cached if known else 0)
    prompt, completion, total = counts
    prompt = max(prompt or total - completion, read + short + long)  # rankers report only the total
    return Usage(
        prompt,
        max(completion, total - prompt),  # some backends leave reasoning out of the answer
        read,
        known.prefill_ms if known else None,
        known.decode_ms if known else None,
        short,
        long,
    )


def has_text(fields: Mapping[str, Any]) -> bool:
    """Return whether an answer or one of its events has a part of the answer."""
    choices = fields.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        part = (choice.get("delta") or choice.get("message") or choice) if isinstance(choice, dict) else None
        if isinstance(part, dict) and any(part.get(name) for name in _TEXT_FIELDS):
            return True
    return False


def _count_at(value: Any, path: tuple[str, ...]) -> int:
    for name in path:
        if not isinstance(value, dict):
            return 0
        value = value.get(name)
    return _count(value)


def _count(value: object) -> int:
    """Return a number of tokens; 0 if absent, -1 if it cannot be one."""
    if value is None:
        return 0
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else -1


def _milliseconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None
