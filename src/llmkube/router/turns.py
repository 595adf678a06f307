"""Turns at engines: a request waits for a slot, and frees it when it ends, however it ends."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from llmkube.router.config.routing_config import Backend
from llmkube.router.fair_queue import FairQueue

DEFAULT_ANSWER_TOKENS: Final = 256.0
"""Assumed length of an answer until the engine has answered once."""

DEFAULT_SECONDS: Final = 5.0
"""Assumed duration of a request until the engine has answered once."""

MAX_RETRY_SECONDS: Final = 600
BYTES_PER_TOKEN: Final = 4
_EWMA_WEIGHT: Final = 0.2

Engine = tuple[str, str]
"""Address and model: two backends may name the same engine."""


@attrs.define(eq=False)
class Turn:
    """One request in a queue.

    Attributes:
        tokens: Estimated tokens.
        charge: Tokens to charge.
        settled: Set when it is admitted or dropped.
        admitted_at: Time of admission; None before.
        is_dropped: Whether it was dropped from a full queue.
        has_siblings: Whether more requests of its tenant waited when it was dropped.
    """

    tenant: str
    tokens: int
    charge: int
    settled: trio.Event = attrs.field(factory=trio.Event)
    admitted_at: float | None = None
    is_dropped: bool = False
    has_siblings: bool = False


@attrs.define(eq=False)
class EngineQueue:
    """Queue of one engine, with moving averages in which the newest value has a weight of a fifth.

    Attributes:
        answer_tokens: Average length of an answer.
        seconds: Average time from admission to the end of a request.
    """

    queue: FairQueue[Turn]
    answer_tokens: float = DEFAULT_ANSWER_TOKENS
    seconds: float = DEFAULT_SECONDS

    def tokens_of(self, body_bytes: int, max_tokens: int | None, answers: int = 1) -> int:
        """Estimate the tokens of a request.

        Args:
            body_bytes: Length of its prompts.
            max_tokens: Limit on each answer; None for none.
            answers: Number of its answers.
        """
        answer = self.answer_tokens if max_tokens is None else min(max_tokens, self.answer_tokens)
        return max(1, body_bytes // BYTES_PER_TOKEN + round(answer * answers))

    def tokens_in(self, seconds: float) -> int:
        """Estimate the tokens of a request that had a slot for so long."""
        return max(1, round(self.answer_tokens * seconds / max(self.seconds, 0.001)))

    def record_answer(self, turn: Turn, tokens: int, answer_tokens: int) -> None:
        """Charge an answer, and update the averages."""
        turn.charge = tokens
        self.answer_tokens += _EWMA_WEIGHT * (answer_tokens - self.answer_tokens)
        if turn.admitted_at is not None:
            self.seconds += _EWMA_WEIGHT * (trio.current_time() - turn.admitted_at - self.seconds)

    def retry_seconds(self) -> int:
        """Return the estimated seconds until each current tenant has had a turn."""
        wait = math.ceil(self.seconds * max(1, self.queue.active) / self.queue.slots)
        return min(max(1, wait), MAX_RETRY_SECONDS)

    def admit(self) -> None:
        """Admit requests to free slots and wake them."""
        for turn in self.queue.admit():
            turn.admitted_at = trio.current_time()
            turn.settled.set()

    def retry_info(self, turn: Turn) -> tuple[int, bool]:
        """Return the retry delay for a turn that was not admitted, and whether its own tenant fills the queue."""
        return self.retry_seconds(), turn.has_siblings if turn.is_dropped else self.queue.waiting_of(turn.tenant) > 1


@attrs.define(eq=False)
class Turns:
    """The queues of one router."""

    _queues: dict[Engine, EngineQueue] = attrs.field(factory=dict)

    def queue_of(self, backend: Backend) -> EngineQueue:
        """Return the queue of a backend with slots."""
        engine_queue = self._queues.setdefault(_engine(backend), EngineQueue(FairQueue(backend.slots)))
        engine_queue.queue.slots = backend.slots
        return engine_queue

    def waiting(self, backend: Backend) -> int:
        """Return the number of requests waiting for a backend."""
        engine_queue = self._queues.get(_engine(backend))
        return engine_queue.queue.waiting if engine_queue is not None else 0

    def keep_only(self, backends: frozenset[Engine]) -> None:
        """Forget engines that no backend names any more and that have no requests."""
        for engine, engine_queue in list(self._queues.items()):
            if engine not in backends and not engine_queue.queue.waiting and not engine_queue.queue.running:
                del self._queues[engine]

    @contextmanager
    def turn(self, backend: Backend, tenant: str, tokens: int, slots: int = 1) -> Iterator[Turn]:
        """Hold a place in the queue of a backend, for as many of its slots; wait for `settled` inside the context."""
        engine_queue = self.queue_of(backend)
        turn = Turn(tenant, tokens, tokens)
        dropped = engine_queue.queue.offer(tenant, turn, tokens, slots)
        if dropped is not None:
            name, one = dropped
            one.is_dropped, one.has_siblings = True, engine_queue.queue.waiting_of(name) > 0
            one.settled.set()
        engine_queue.admit()
        try:
            yield turn
        finally:
            if turn.admitted_at is not None:
                engine_queue.queue.ended(tenant, tokens, turn.charge, slots)
            else:
                engine_queue.queue.remove(tenant, turn)
            engine_queue.admit()


def engines_of(backends: Iterable[Backend]) -> frozenset[Engine]:
    """Return the engines that have a queue."""
    return frozenset(_engine(each) for each in backends if each.slots)


def _engine(backend: Backend) -> Engine:
    return backend.base_url, backend.model
