"""What signs of life tell of a backend: a probe's answers, the silence of an engine, how full its KV cache is. Pure.

Three failures of a probe in a row make a backend unhealthy, as a kubelet counts; one good answer ends it. A redirect is
no good answer: it is not followed. An engine of ours that loads its model is neither: it is waited for.

llama.cpp's server answers `/health` in threads that compute nothing, so it answers within milliseconds while it reads a
prompt for an hour, and not at all while its process is stopped or its machine is gone. That is the evidence; how long a
request takes is none. Other servers compute in the thread that answers: of those nothing is concluded.

What an idle slot has kept of a prompt counts as free: the next request may have its place. vLLM counts alike.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

UNHEALTHY_AFTER: Final = 3
"""Failures in a row: kubelet's failureThreshold where none is given."""


@attrs.frozen
class Reply:
    """What a backend answers to a question about its health.

    Attributes:
        status: Of the answer.
        server: What it calls itself.
        is_loading: Whether it says that it loads its model.
        body: What it says.
    """

    status: int
    server: str = ""
    is_loading: bool = False
    body: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class ProbeState:
    """What probes have found so far.

    Attributes:
        failures: In a row.
        why: What the last one was; "" after a good answer.
    """

    failures: int = 0
    why: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether requests are sent to it."""
        return self.failures < UNHEALTHY_AFTER

    def replied(self, reply: Reply, path: str) -> "ProbeState":
        """Return the state after an answer."""
        if reply.is_loading:
            return self
        if 200 <= reply.status < 300:
            return ProbeState()
        return self.failed(f"it answers {reply.status} at {path}")

    def failed(self, why: str) -> "ProbeState":
        """Return the state after no answer, or a bad one."""
        return ProbeState(self.failures + 1, why)


LLAMA_SERVER: Final = "llama.cpp"
"""What llama.cpp's server says in the header `Server` of each answer."""

HEALTH_PATH: Final = "/health"
EVERY_SECONDS: Final = 1.0
"""Between an answer and the next question."""

PATIENCE_SECONDS: Final = 2.0
"""For one answer: a lost packet, or a connection that broke, is not the end of an engine."""

FROZEN_SECONDS: Final = 8.0
"""Without any answer. With the second before the first question it is 9: a frozen engine is left within 10."""

LIVES_SECONDS: Final = 12.0
"""How long an answer is evidence that an engine lives: longer than it takes to find it frozen."""

LONGEST_SECONDS: Final = 3600.0
"""How long such evidence is believed while a request gets nothing: as long as a host's agent believes CPU time."""

FROZEN_QUESTIONS: Final = 3
"""In a row: after a pause of this process one that was under way is late whatever the engine did."""


@attrs.frozen
class Silence:
    """What is known of one engine.

    Attributes:
        is_llama: Whether it has said that it is llama.cpp's server.
        since: When the first of the questions was asked that it has not answered; None if it answered the last one.
        unanswered: How many those are.
    """

    is_llama: bool = False
    since: float | None = None
    unanswered: int = 0

    def heard(self, server: str) -> "Silence":
        """Return what is known after any answer of it, by what it calls itself."""
        return Silence(self.is_llama or server == LLAMA_SERVER)

    def asked_in_vain(self, asked_at: float) -> "Silence":
        """Return what is known after a question that it did not answer."""
        return Silence(self.is_llama, asked_at if self.since is None else self.since, self.unanswered + 1)

    def is_frozen(self, now: float) -> bool:
        """Whether it is taken to be frozen."""
        long = self.since is not None and now - self.since >= FROZEN_SECONDS
        return self.is_llama and long and self.unanswered >= FROZEN_QUESTIONS

    def patience(self, now: float) -> float:
        """Return how long the answer to a question that is asked now is waited for."""
        if self.since is None or self.unanswered + 1 < FROZEN_QUESTIONS:
            return PATIENCE_SECONDS
        left = self.since + FROZEN_SECONDS - now
        return left if 0 < left < PATIENCE_SECONDS else PATIENCE_SECONDS


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
