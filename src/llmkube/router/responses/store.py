"""Keeps responses within bounds: those that were used longest ago give way. Pure; the clock is an argument.

Each response of a conversation shares the turns before it with the others. A turn counts once, for as long as any
response is kept that goes back to it. Whose a response is, is part of its key: another tenant's id is not found.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import attrs

from llmkube.router.policy.data_limits import DataLimits

OVERHEAD_BYTES: Final = 1024
"""What a record takes beside its text."""


@attrs.frozen(kw_only=True)
class Bounds:
    """How much is kept.

    Attributes:
        responses: In all.
        responses_of_tenant: Of one tenant.
        bytes: In all.
        bytes_of_tenant: Of one tenant.
        bytes_of_conversation: What is sent to a backend when a response is continued.
        idle_seconds: After which time without use a response goes.
    """

    responses: int = 10_000
    responses_of_tenant: int = 1_000
    bytes: int = 64 << 20
    bytes_of_tenant: int = 16 << 20
    bytes_of_conversation: int = 8 << 20
    idle_seconds: float = 24 * 3600.0

    def take(self, response_bytes: int, conversation_bytes: int, turns: int) -> bool:
        """Return whether a response can be kept at all, where nothing else is.

        Args:
            response_bytes: Length of the object.
            conversation_bytes: Length of its turn and of all before.
            turns: How many those are.
        """
        alone = response_bytes + conversation_bytes + OVERHEAD_BYTES * (1 + turns)
        fits = alone <= min(self.bytes, self.bytes_of_tenant)
        return fits and conversation_bytes <= self.bytes_of_conversation


@attrs.define(eq=False, kw_only=True)
class Turn:
    """One request and its answer.

    Attributes:
        asked: The items of the request, as JSON.
        answered: The items of the answer, as JSON.
        before: The turn that it continues; None of the first.
        users: How many kept responses and later turns need it.
    """

    asked: bytes = attrs.field(repr=False)
    answered: bytes = attrs.field(repr=False)
    before: "Turn | None" = attrs.field(default=None, repr=False)
    users: int = 0

    @property
    def bytes(self) -> int:
        """How long it is."""
        return len(self.asked) + len(self.answered)


@attrs.frozen(kw_only=True, eq=False)
class Stored:
    """One response.

    Attributes:
        owner: Whose.
        response_id: Its id.
        response: The object, as JSON.
        turn: Its turn, which leads to those before.
        limits: Of its turn and of all before.
        conversation_bytes: Length of its turn and of all before.
    """

    owner: str
    response_id: str
    response: bytes = attrs.field(repr=False)
    turn: Turn = attrs.field(repr=False)
    limits: DataLimits
    conversation_bytes: int


def turns_to(last: Turn | None) -> list[Turn]:
    """Return a conversation from its first turn to this one."""
    found = []
    while last is not None:
        found.append(last)
        last = last.before
    return found[::-1]


@attrs.define
class _Share:
    """What one tenant has: ids, those that were used longest ago first, and bytes."""

    ids: OrderedDict[str, None] = attrs.field(factory=OrderedDict)
    bytes: int = 0


@attrs.define
class _Kept:
    stored: Stored
    used_at: float


@attrs.define(eq=False)
class ResponseStore:
    """The responses of one router.

    Attributes:
        bounds: How much it keeps.
        bytes: How much that is.
    """

    bounds: Bounds = Bounds()
    bytes: int = 0
    _kept: OrderedDict[tuple[str, str], _Kept] = attrs.field(factory=OrderedDict)
    _shares: dict[str, _Share] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._kept)

    def owners(self) -> Iterator[tuple[str, int, int]]:
        """Yield each tenant that has something, its number of responses and its bytes."""
        for owner, share in self._shares.items():
            yield owner, len(share.ids), share.bytes

    def get(self, owner: str, response_id: str, now: float) -> Stored | None:
        """Return a response of a tenant, which counts as used; None if there is none of this id that is its own."""
        self.expire(now)
        kept = self._kept.get((owner, response_id))
        if kept is None:
            return None
        kept.used_at = now
        self._kept.move_to_end((owner, response_id))
        self._shares[owner].ids.move_to_end(response_id)
        return kept.stored

    def put(self, stored: Stored, now: float) -> bool:
        """Keep a response, for which others may give way; return whether it fits the bounds at all."""
        self.expire(now)
        bounds, key = self.bounds, (stored.owner, stored.response_id)
        if not bounds.take(len(stored.response), stored.conversation_bytes, len(turns_to(stored.turn))):
            return False
        self.delete(*key)
        share = self._shares.setdefault(stored.owner, _Share())
        self._kept[key] = _Kept(stored, now)
        share.ids[stored.response_id] = None
        self._count(share, len(stored.response) + OVERHEAD_BYTES)
        turn: Turn | None = stored.turn
        while turn is not None:
            turn.users += 1
            if turn.users > 1:
                break  # it counts already, and so does what is before it
            self._count(share, turn.bytes + OVERHEAD_BYTES)
            turn = turn.before
        while len(share.ids) > bounds.responses_of_tenant or share.bytes > bounds.bytes_of_tenant:
            self.delete(stored.owner, next(iter(share.ids)))
        while len(self._kept) > bounds.responses or self.bytes > bounds.bytes:
            self.delete(*next(iter(self._kept)))
        return True

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; return whether it was there. Later ones of its conversation keep its turn."""
        kept = self._kept.pop((owner, response_id), None)
        if kept is None:
            return False
        share = self._shares[owner]
        del share.ids[response_id]
        self._count(share, -len(kept.stored.response) - OVERHEAD_BYTES)
        turn: Turn | None = kept.stored.turn
        while turn is not None:
            turn.users -= 1
            if turn.users:
                break
            self._count(share, -turn.bytes - OVERHEAD_BYTES)
            turn = turn.before
        if not share.ids:
            del self._shares[owner]
        return True

    def expire(self, now: float) -> None:
        """Forget what has not been used for too long."""
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if now - kept.used_at < self.bounds.idle_seconds:
                return
            self.delete(*key)

    def _count(self, share: _Share, difference: int) -> None:
        share.bytes += difference
        self.bytes += difference
