"""Decide the health of a backend from probe results, unanswered health checks and KV cache use. Pure.

Three failed probes in a row make a backend unhealthy, as a kubelet does; one success makes it healthy again. Redirects
are failures and are not followed. A response that reports a loading model is neither a success nor a failure.

llama.cpp's server answers `/health` from threads that do no inference: within milliseconds while it processes a prompt
for an hour, and never while its process is stopped or its machine is down. Missing health responses therefore mean that
it is frozen; a long request does not. Other servers answer from the thread that does inference, so their silence
proves nothing.

Cached prompt tokens of an idle slot are free space, because the next request may overwrite them. vLLM reports the same.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

UNHEALTHY_AFTER: Final = 3
"""Consecutive failures; the default of the kubelet's `failureThreshold`."""


@attrs.frozen
class Reply:
    """Response of a backend to a health check.

    Attributes:
        status: HTTP status.
        server: `Server` header.
        is_loading: Whether it reports that its model is loading.
        body: Response body.
    """

    status: int
    server: str = ""
    is_loading: bool = False
    body: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class ProbeState:
    """Result of the probes so far.

    Attributes:
        failures: Consecutive failures.
        cause: Cause of the last failure; "" after a success.
    """

    failures: int = 0
    cause: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether the backend receives requests."""
        return self.failures < UNHEALTHY_AFTER

    def replied(self, reply: Reply, path: str) -> "ProbeState":
        """Return the state after a response."""
        if reply.is_loading:
            return self
        if 200 <= reply.status < 300:
            return ProbeState()
        return self.failed(f"status {reply.status} at {path}")

    def failed(self, cause: str) -> "ProbeState":
        """Return the state after a failed probe."""
        return ProbeState(self.failures + 1, cause)


LLAMA_SERVER: Final = "llama.cpp"
"""`Server` header of llama.cpp's responses."""

HEALTH_PATH: Final = "/health"
INTERVAL_SECONDS: Final = 1.0
"""Pause between a response and the next health check."""

TIMEOUT_SECONDS: Final = 2.0
"""Timeout of one health check, long enough for a lost packet or a broken connection."""

FROZEN_SECONDS: Final = 8.0
"""Time without a response. With the second before the first check, a frozen engine is detected within 10."""

LIVENESS_SECONDS: Final = 12.0
"""Time for which a response proves that an engine is alive; longer than the detection of a frozen one takes."""

MAX_WAIT_SECONDS: Final = 3600.0
"""Longest wait without bytes while health responses arrive; the agent's limit for CPU time is the same."""

FROZEN_CHECKS: Final = 3
"""Consecutive unanswered checks: after a pause of this process, one check is late whatever the engine did."""


@attrs.frozen
class Silence:
    """Unanswered health checks of one engine.

    Attributes:
        is_llama: Whether it has identified itself as llama.cpp's server.
        since: Start time of the first unanswered check; None if the last check was answered.
        unanswered: Number of unanswered checks.
    """

    is_llama: bool = False
    since: float | None = None
    unanswered: int = 0

    def responded(self, server: str) -> "Silence":
        """Return the state after a response with this `Server` header."""
        is_same = self.since is None and (self.is_llama or server != LLAMA_SERVER)
        return self if is_same else Silence(self.is_llama or server == LLAMA_SERVER)

    def timed_out(self, sent_at: float) -> "Silence":
        """Return the state after an unanswered check that began at `sent_at`."""
        return Silence(self.is_llama, sent_at if self.since is None else self.since, self.unanswered + 1)

    def is_frozen(self, now: float) -> bool:
        """Whether the engine is considered frozen."""
        long = self.since is not None and now - self.since >= FROZEN_SECONDS
        return self.is_llama and long and self.unanswered >= FROZEN_CHECKS

    def timeout_seconds(self, now: float) -> float:
        """Return the timeout, in seconds, of a check that begins now."""
        if self.since is None or self.unanswered + 1 < FROZEN_CHECKS:
            return TIMEOUT_SECONDS
        left = self.since + FROZEN_SECONDS - now
        return left if 0 < left < TIMEOUT_SECONDS else TIMEOUT_SECONDS


SLOTS_PATH: Final = "/slots"

_PROMPT_FIELDS: Final = ("n_prompt_tokens_cache", "n_prompt_tokens_processed")


@attrs.frozen
class CacheUse:
    """Use of one KV cache.

    Attributes:
        used: Tokens of running requests.
        tokens: Capacity in tokens; more than 0.
    """

    used: int
    tokens: int

    @property
    def share(self) -> float:
        """Used share, from 0 to 1."""
        return self.used / self.tokens


def cache_use(body: bytes, splits_cache: bool | None) -> CacheUse | None:
    """Return the cache use that a response of `/slots` reports; None if it cannot be derived.

    Args:
        body: Response body.
        splits_cache: Whether each slot has its own part of the cache; None if unknown, which is enough for one slot.
    """
    try:
        slots = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(slots, list) or not slots or not all(isinstance(each, dict) for each in slots):
        return None
    if len(slots) > 1 and splits_cache is None:
        return None
    capacities, used = [_count(each, "n_ctx") for each in slots], [_used(each) for each in slots]
    if None in capacities or None in used or not all(capacities):
        return None
    pairs = [(min(count or 0, capacity or 0), capacity or 0) for count, capacity in zip(used, capacities, strict=True)]
    tokens = sum(capacity for _, capacity in pairs) if splits_cache else max(capacity for _, capacity in pairs)
    return CacheUse(min(sum(count for count, _ in pairs), tokens), tokens)


def _used(slot: Mapping[str, Any]) -> int | None:
    """Return the tokens of a slot's request; 0 if the slot is idle, None if unknown."""
    if slot.get("is_processing") is not True:
        return 0 if slot.get("is_processing") is False else None
    following = slot.get("next_token")  # a list of one item in some builds, the item in others
    following = following[0] if isinstance(following, list) and following else following
    written = _count(following, "n_decoded") if isinstance(following, dict) else None
    read = [_count(slot, name) for name in _PROMPT_FIELDS]
    if written is None or None in read:
        return None
    return written + sum(each or 0 for each in read)


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
