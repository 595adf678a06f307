"""Where the responses of a router stand: in this process, or in the parent of several workers."""

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from llmkube.base.http.message import Response
from llmkube.router.policy.data_limits import DataLimits
from llmkube.router.responses.store import ResponseStore, Stored, Turn, turns_to
from llmkube.router.responses.stored_pages import Wanted, page_of


class ShelfError(Exception):
    """The process that keeps the responses does not answer."""


@attrs.frozen(kw_only=True)
class Conversation:
    """What a request continues.

    Attributes:
        number: What tells it from others that are continued now; from 1 on.
        history: The items of each request and of each answer, as JSON arrays, oldest first.
        limits: Of all of it.
        bytes: How long it is.
    """

    number: int
    history: Sequence[bytes] = attrs.field(repr=False)
    limits: DataLimits
    bytes: int

    @property
    def turns(self) -> int:
        """How many turns it has."""
        return len(self.history) // 2


@attrs.frozen(kw_only=True)
class NewResponse:
    """What is to be kept.

    Attributes:
        owner: Whose.
        response_id: Its id.
        response: The object, as JSON.
        asked: The items of the request, as JSON.
        answered: The items of the answer, as JSON.
        limits: Of its turn and of all before.
        conversation_bytes: Length of its turn and of all before.
    """

    owner: str
    response_id: str
    response: bytes = attrs.field(repr=False)
    asked: bytes = attrs.field(repr=False)
    answered: bytes = attrs.field(repr=False)
    limits: DataLimits
    conversation_bytes: int


class Shelf(Protocol):
    """What keeps responses."""

    async def take(self, owner: str, response_id: str) -> Conversation | None:
        """Return what a response of a tenant leads to, and hold it until `release`; None if there is none.

        Raises:
            ShelfError: That is not known.
        """

    def put(self, new: NewResponse, continues: Conversation | None) -> bool:
        """Keep a response, and return whether it fits at all; a client that is told of it finds it from then on."""

    def release(self, number: int) -> None:
        """Hold a conversation no more; 0 is none."""

    async def page(self, wanted: Wanted, owner: str) -> Response:
        """Answer about a response that is kept.

        Raises:
            ShelfError: That is not known.
        """

    def expire(self) -> None:
        """Forget what has not been used for too long."""


@attrs.define(eq=False)
class OwnShelf:
    """The responses are in this process."""

    store: ResponseStore
    _held: dict[int, Stored] = attrs.field(factory=dict)
    _last: int = 0

    async def take(self, owner: str, response_id: str) -> Conversation | None:
        """Return what a response leads to."""
        return self.take_nowait(owner, response_id)

    def take_nowait(self, owner: str, response_id: str) -> Conversation | None:
        """Return what a response leads to."""
        stored = self.store.get(owner, response_id, trio.current_time())
        if stored is None:
            return None
        self._last += 1
        self._held[self._last] = stored
        history = [part for turn in turns_to(stored.turn) for part in (turn.asked, turn.answered)]
        return Conversation(number=self._last, history=history, limits=stored.limits, bytes=stored.conversation_bytes)

    def put(self, new: NewResponse, continues: Conversation | None) -> bool:
        """Keep a response."""
        return self.put_after(new, continues.number if continues is not None else 0)

    def put_after(self, new: NewResponse, number: int) -> bool:
        """Keep a response that continues the conversation of this number; 0 continues none."""
        turn = Turn(asked=new.asked, answered=new.answered, before=self._held[number].turn if number else None)
        stored = Stored(
            owner=new.owner,
            response_id=new.response_id,
            response=new.response,
            turn=turn,
            limits=new.limits,
            conversation_bytes=new.conversation_bytes,
        )
        return self.store.put(stored, trio.current_time())

    def release(self, number: int) -> None:
        """Hold a conversation no more."""
        self._held.pop(number, None)

    async def page(self, wanted: Wanted, owner: str) -> Response:
        """Answer about a response."""
        return self.page_nowait(wanted, owner)

    def page_nowait(self, wanted: Wanted, owner: str) -> Response:
        """Answer about a response."""
        return page_of(self.store, wanted, owner, trio.current_time())

    def expire(self) -> None:
        """Forget what has not been used for too long."""
        self.store.expire(trio.current_time())
