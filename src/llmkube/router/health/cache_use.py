"""How full an engine's KV cache is, as `/slots` of llama.cpp's server says it: by requests that run. Pure.

What an idle slot has kept of a prompt counts as free: the next request may have its place. vLLM counts alike.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

SLOTS_PATH: Final = "/slots"

_OF_PROMPT: Final = ("n_prompt_tokens_cache", "n_prompt_tokens_processed")


@attrs.frozen
class CacheUse:
    """One KV cache.

    Attributes:
        used: Tokens of requests that run.
        tokens: That it has room for; more than 0.
    """

    used: int
    tokens: int

    @property
    def share(self) -> float:
        """How much of it is used, from 0 to 1."""
        return self.used / self.tokens


def cache_use(body: bytes, splits_cache: bool | None) -> CacheUse | None:
    """Return what an answer at `/slots` says; None where it does not tell.

    Args:
        body: The answer.
        splits_cache: Whether each slot has a part of its own, else all share one; None is not known, and tells nothing
            of several slots.
    """
    try:
        slots = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(slots, list) or not slots or not all(isinstance(each, dict) for each in slots):
        return None
    if len(slots) > 1 and splits_cache is None:
        return None
    rooms, used = [_count(each, "n_ctx") for each in slots], [_used(each) for each in slots]
    if None in rooms or None in used or not all(rooms):
        return None
    pairs = [(min(took or 0, room or 0), room or 0) for took, room in zip(used, rooms, strict=True)]
    tokens = sum(room for _, room in pairs) if splits_cache else max(room for _, room in pairs)
    return CacheUse(min(sum(took for took, _ in pairs), tokens), tokens)


def _used(slot: Mapping[str, Any]) -> int | None:
    """Return the tokens of a slot's request; 0 of an idle one."""
    if slot.get("is_processing") is not True:
        return 0 if slot.get("is_processing") is False else None
    following = slot.get("next_token")  # a list of one, or just that one, by the build
    following = following[0] if isinstance(following, list) and following else following
    written = _count(following, "n_decoded") if isinstance(following, dict) else None
    read = [_count(slot, name) for name in _OF_PROMPT]
    if written is None or None in read:
        return None
    return written + sum(each or 0 for each in read)


def _count(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
