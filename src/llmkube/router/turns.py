"""A turn at an engine: a request waits until it is its turn, and gives its slot on when it ends, however it ends."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from llmkube.router.config.routing_config import Backend
from llmkube.router.fair_queue import FairQueue

DEFAULT_ANSWER_TOKENS: Final = 256.0
"""The length of an answer of an engine that has not answered yet."""

DEFAULT_SECONDS: Final = 5.0
"""How long a request takes of an engine that has not answered yet."""

MAX_RETRY_SECONDS: Final = 600
BYTES_PER_TOKEN: Final = 4
_EWMA_WEIGHT: Final = 0.2

Engine = tuple[str, str]
"""Its address, and the model that it is asked for: two backends may name one engine."""


@attrs.define(eq=False)
class Turn:
    """One request in a queue.

    Attributes:
        tenant: Whose.
        tokens: What it is taken to take.
        took: What it is charged.
        called: Set when it is its turn, or when it has to leave.
        admitted_at: When its turn came; None before.
        is_dropped: Whether it has to leave, for the queue is full.
        has_siblings: Whether more requests of its tenant waited when it was dropped.
        answer_tokens: Length of its answer; None while that is not known.
    """

    tenant: str
    tokens: int
    took: int
    called: trio.Event = attrs.field(factory=trio.Event)
    admitted_at: float | None = None
    is_dropped: bool = False
    has_siblings: bool = False
    answer_tokens: int | None = None


@attrs.define(eq=False)
class EngineQueue:
    """The queue of one engine, and what its requests take: means in which the newest counts a fifth.

    Attributes:
        queue: Who waits.
        answer_tokens: Of an answer.
        seconds: From a turn to its end.
    """

    queue: FairQueue[Turn]
    answer_tokens: float = DEFAULT_ANSWER_TOKENS
    seconds: float = DEFAULT_SECONDS

    def tokens_of(self, body_bytes: int, max_tokens: int | None) -> int:
        """Return what a request is taken to take.

        Args:
            body_bytes: Length of its body.
            max_tokens: Tokens that its answer has at most; None if it does not say.
        """
        answer = self.answer_tokens if max_tokens is None else min(max_tokens, self.answer_tokens)
        return max(1, body_bytes // BYTES_PER_TOKEN + round(answer))

    def answered(self, turn: Turn, took: int, answer_tokens: int) -> None:
        """Charge an answer, and learn from it."""
        turn.took, turn.answer_tokens = took, answer_tokens
        self.answer_tokens += _EWMA_WEIGHT * (answer_tokens - self.answer_tokens)
        if turn.admitted_at is not None:
            self.seconds += _EWMA_WEIGHT * (trio.current_time() - turn.admitted_at - self.seconds)

    def retry_seconds(self) -> int:
        """Return after how many seconds each tenant that is here has had a turn."""
        wait = math.ceil(self.seconds * self.queue.active / self.queue.slots)
        return min(max(1, wait), MAX_RETRY_SECONDS)

    def admit(self) -> None:
        """Call those whose turn it is."""
        for turn in self.queue.admit():
            turn.admitted_at = trio.current_time()
            turn.called.set()

    def return_slot(self) -> None:
        """Free a slot that was taken without a turn."""
        self.queue.return_slot()
        if self.queue.waiting:
            self.admit()

    def retry_info(self, turn: Turn) -> tuple[int, bool]:
        """Return of a turn that did not come in how many seconds to ask again, and if its own tenant is the reason."""
        return self.retry_seconds(), turn.has_siblings if turn.is_dropped else self.queue.waiting_of(turn.tenant) > 1


@attrs.define(eq=False)
class Turns:
    """The queues of one router."""

    _lines: dict[Engine, EngineQueue] = attrs.field(factory=dict)

    def line(self, backend: Backend) -> EngineQueue:
        """Return the queue of a backend with slots."""
        line = self._lines.setdefault(_engine(backend), EngineQueue(FairQueue(backend.slots)))
        line.queue.slots = backend.slots
        return line

    def waiting(self, backend: Backend) -> int:
        """Return how many requests wait for a backend."""
        line = self._lines.get(_engine(backend))
        return line.queue.waiting if line is not None else 0

    def keep_only(self, backends: frozenset[Engine]) -> None:
        """Forget the engines that no backend names any more, and that nothing waits for or has."""
        for engine, line in list(self._lines.items()):
            if engine not in backends and not line.queue.waiting and not line.queue.running:
                del self._lines[engine]

    @contextmanager
    def turn(self, backend: Backend, tenant: str, tokens: int) -> Iterator[Turn]:
        """Stand in the queue of a backend until the scope ends; wait for `called` in it."""
        line = self.line(backend)
        turn = Turn(tenant, tokens, tokens)
        dropped = line.queue.offer(tenant, turn, tokens)
        if dropped is not None:
            name, one = dropped
            one.is_dropped, one.has_siblings = True, line.queue.waiting_of(name) > 0
            one.called.set()
        line.admit()
        try:
            yield turn
        finally:
            if turn.admitted_at is not None:
                line.queue.ended(tenant, tokens, turn.took)
            else:
                line.queue.remove(tenant, turn)
            line.admit()

    def try_take_slot(self, backend: Backend) -> EngineQueue | None:
        """Take a slot of a backend if one is free, which `return_slot` frees: for a request that waits at its engine.

        Who waits here is called whenever one of these slots is freed, and so before later requests of that kind.
        """
        line = self.line(backend)
        return line if line.queue.take_slot() else None


def engines_of(backends: Iterable[Backend]) -> frozenset[Engine]:
    """Return the engines with a queue."""
    return frozenset(_engine(each) for each in backends if each.slots)


def _engine(backend: Backend) -> Engine:
    return backend.base_url, backend.model
