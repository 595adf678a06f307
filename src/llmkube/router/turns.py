"""Turns at engines: a request waits for a slot, and frees it when it ends, however it ends."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from llmkube.router.config.routing_config import Backend
from llmkube.router.fair_queue import MAX_WAITING, FairQueue

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
        answer_tokens: Length of its answer; None while unknown.
    """

    tenant: str
    tokens: int
    charge: int
    settled: trio.Event = attrs.field(factory=trio.Event)
    admitted_at: float | None = None
    is_dropped: bool = False
    has_siblings: bool = False
    answer_tokens: int | None = None


@attrs.define(eq=False)
class EngineWait:
    """A request that waits at the engine itself, which serves such requests in order.

    Attributes:
        missing: Parts of it that have no slot yet.
        scope: Limits its wait for the head of the response; without a deadline once it has a slot.
        held: Number of slots that are taken for it.
    """

    missing: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    held: int = 0

    def served(self, *, takes_slot: bool) -> None:
        """Record that the engine serves one more part."""
        self.missing, self.held = self.missing - 1, self.held + takes_slot
        self.scope.deadline = math.inf


@attrs.define(eq=False)
class EngineQueue:
    """Queue of one engine, with moving averages in which the newest value has a weight of a fifth.

    Attributes:
        answer_tokens: Average length of an answer.
        seconds: Average time from admission to the end of a request.
        at_engine: Requests that wait at the engine itself, oldest first.
    """

    queue: FairQueue[Turn]
    answer_tokens: float = DEFAULT_ANSWER_TOKENS
    seconds: float = DEFAULT_SECONDS
    at_engine: dict[EngineWait, None] = attrs.field(factory=dict)

    def tokens_of(self, body_bytes: int, max_tokens: int | None, answers: int = 1) -> int:
        """Estimate the tokens of a request.

        Args:
            body_bytes: Length of its prompts.
            max_tokens: Limit on each answer; None for none.
            answers: Number of its answers.
        """
        answer = self.answer_tokens if max_tokens is None else min(max_tokens, self.answer_tokens)
        return max(1, body_bytes // BYTES_PER_TOKEN + round(answer * answers))

    def record_answer(self, turn: Turn, tokens: int, answer_tokens: int) -> None:
        """Charge an answer, and update the averages."""
        turn.charge, turn.answer_tokens = tokens, answer_tokens
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

    def pass_on_slot(self) -> None:
        """Use a slot that was freed: the engine serves the oldest request that waits there.

        A request that waits here is admitted as well, before later ones that wait at the engine.
        """
        if (oldest := next(iter(self.at_engine), None)) is not None:
            oldest.served(takes_slot=not self.queue.waiting and self.queue.take_slot())
            if not oldest.missing:
                del self.at_engine[oldest]
        self.admit()

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
                for _ in range(slots):
                    engine_queue.pass_on_slot()
            else:
                engine_queue.queue.remove(tenant, turn)
                engine_queue.admit()

    @contextmanager
    def wait_at_engine(self, backend: Backend, seconds: float, slots: int = 1) -> Iterator[trio.CancelScope]:
        """Take as many of some slots of a backend as are free, for a request that is sent to the engine in any case.

        The result is cancelled after this time without a slot.

        Raises:
            trio.TooSlowError: Too many requests wait there already.
        """
        engine_queue, request = self.queue_of(backend), EngineWait(min(slots, backend.slots))
        if len(engine_queue.at_engine) >= MAX_WAITING:
            raise trio.TooSlowError
        request.scope.deadline = trio.current_time() + seconds
        while request.missing and engine_queue.queue.take_slot():
            request.served(takes_slot=True)
        if request.missing:
            engine_queue.at_engine[request] = None
        try:
            yield request.scope
        finally:
            engine_queue.at_engine.pop(request, None)
            for _ in range(request.held):
                engine_queue.queue.return_slot()
                engine_queue.pass_on_slot()


def engines_of(backends: Iterable[Backend]) -> frozenset[Engine]:
    """Return the engines that have a queue."""
    return frozenset(_engine(each) for each in backends if each.slots)


def _engine(backend: Backend) -> Engine:
    return backend.base_url, backend.model
