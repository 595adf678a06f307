"""A worker's queues: the parent has them, and says when it is a request's turn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from llmkube.router.config.routing_config import Backend
from llmkube.router.queue.fair_queue import FairQueue
from llmkube.router.queue.turns import Engine, Line, Turn, Turns
from llmkube.router.workers.link import NUMBER, Link, LinkError, Message

WHY_SECONDS: Final = 1.0
"""How long a request that is refused waits for the parent to say why it was not its turn."""


@attrs.define(eq=False)
class LinkedTurn(Turn):
    """One request in the parent's queue.

    Attributes:
        number: Its name there.
        again: In how many seconds to ask again, where it has to leave.
    """

    number: int = 0
    again: int = 1


@attrs.define(eq=False)
class LinkedLine(Line):
    """What is known here of the queue of one engine: how long its answers are, as the parent said last."""

    link: Link = attrs.field(kw_only=True)

    def answered(self, turn: Turn, took: int, answer_tokens: int) -> None:
        """Note what a turn is charged; the parent learns of it when it ends."""
        turn.took, turn.answer_tokens = took, answer_tokens

    async def why_not_called(self, turn: Turn) -> tuple[int, bool]:
        """Return in how many seconds to ask again, and if the turn's own tenant is the reason."""
        assert isinstance(turn, LinkedTurn), "turn() makes no others"
        if turn.is_dropped:
            return turn.again, turn.is_own
        try:
            said = await self.link.call("why", WHY_SECONDS, turn=turn.number)
        except LinkError:
            return turn.again, False
        return said["again"], said["own"]


@attrs.define(eq=False)
class LinkedTurns(Turns):
    """The queues of one worker.

    Attributes:
        link: To the parent.
    """

    link: Link = attrs.field(kw_only=True)
    _known: dict[Engine, LinkedLine] = attrs.field(factory=dict)
    _turns: dict[int, tuple[LinkedTurn, LinkedLine]] = attrs.field(factory=dict)

    def line(self, backend: Backend) -> Line:
        """Return what is known of the queue of a backend."""
        return self._line(backend)

    def keep_only(self, backends: frozenset[Engine]) -> None:
        """Forget the engines that no backend names any more."""
        self._known = {engine: line for engine, line in self._known.items() if engine in backends}

    @contextmanager
    def turn(
        self, backend: Backend, tenant: str, tokens: int, on_call: Callable[[Turn], None] | None = None
    ) -> Iterator[Turn]:
        """Stand in the parent's queue of a backend until the scope ends."""
        line = self._line(backend)
        turn = LinkedTurn(tenant, tokens, tokens, on_call=on_call, number=self.link.number())
        self._turns[turn.number] = turn, line
        engine = {"url": backend.base_url, "model": backend.model, "slots": backend.slots}
        self.link.send_nowait("turn", n=turn.number, engine=engine, tenant=tenant, tokens=tokens)
        try:
            yield turn
        finally:
            del self._turns[turn.number]
            took = turn.took if turn.admitted_at is not None else 0  # a call that comes now finds no request
            self.link.send_nowait("end", n=turn.number, took=took, answer=turn.answer_tokens)

    def take(self, message: Message) -> None:
        """Take what the parent says of a turn; of one that has ended it is nothing."""
        turn, line = self._turns.get(message[NUMBER], (None, None))
        if turn is None or line is None:
            return
        line.answer_tokens = message["answer"]
        turn.is_dropped, turn.is_own, turn.again = message["dropped"], message["own"], message["again"]
        if not turn.is_dropped:
            turn.admitted_at = trio.current_time()
        turn.call()

    def _line(self, backend: Backend) -> LinkedLine:
        engine = backend.base_url, backend.model
        return self._known.setdefault(engine, LinkedLine(FairQueue(backend.slots), link=self.link))
