"""Keeps responses within bounds: those that were used longest ago give way. Pure; the clock is an argument.

Each response of a conversation shares the turns before it with the others. A turn counts once, for as long as any
response is kept that goes back to it. Whose a response is, is part of its key: another tenant's id is not found.

A request that continues a conversation sends its history. It has the data classes of both, and may go only where both
may. What a client leaves out of a later request, a header for instance, opens nothing.

What is answered on `/v1/responses/{id}` and `/v1/responses/{id}/input_items`: a response of another tenant is as one
that is not there. https://platform.openai.com/docs/api-reference/responses
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs
import orjson

from llmkube.base.http.message import Response
from llmkube.router.policy.request_facts import RequestFacts
from llmkube.router.refusals import RefusedError, refused


class NoRegionLeftError(Exception):
    """A conversation and the request that continues it may go to no region in common."""


@attrs.frozen(kw_only=True)
class DataLimits:
    """The limits of some data.

    Attributes:
        classes: Its data classes, in lower case.
        regions: Where it may go, in lower case; None admits everywhere.
    """

    classes: frozenset[str] = frozenset()
    regions: frozenset[str] | None = None


NO_LIMITS = DataLimits()


def limits_of(facts: RequestFacts) -> DataLimits:
    """Return the limits of what a request sends, and of what is answered to it."""
    return DataLimits(classes=facts.classes, regions=facts.regions or None)


def apply_limits(facts: RequestFacts, history: DataLimits) -> RequestFacts:
    """Return the facts of a request that sends a history as well: all classes of both, and the regions of both.

    Args:
        facts: Of the request itself.
        history: Limits of what it continues.

    Raises:
        NoRegionLeftError: No region is in both, and none at all would admit everywhere.
    """
    classes, regions = facts.classes | history.classes, facts.regions
    if history.regions is not None:
        regions = regions & history.regions if regions else history.regions
        if not regions:
            asked, before = (", ".join(sorted(each)) or "none" for each in (facts.regions, history.regions))
            message = f"the conversation's data may go to {before}, this request's to {asked}: no region is in both"
            raise NoRegionLeftError(message)
    return attrs.evolve(facts, classes=classes, regions=regions)


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

    def admits(self, response_bytes: int, conversation_bytes: int, turns: int) -> bool:
        """Return whether a response can be kept at all, where nothing else is.

        Args:
            response_bytes: Length of the object.
            conversation_bytes: Length of its turn and of all before.
            turns: How many those are.
        """
        total_bytes = response_bytes + conversation_bytes + OVERHEAD_BYTES * (1 + turns)
        fits = total_bytes <= min(self.bytes, self.bytes_of_tenant)
        return fits and conversation_bytes <= self.bytes_of_conversation


@attrs.define(eq=False, kw_only=True)
class Turn:
    """One request and its answer.

    Attributes:
        asked: The items of the request, as JSON.
        answered: The items of the answer, as JSON.
        before: The turn that it continues; None of the first.
        references: How many kept responses and later turns need it.
    """

    asked: bytes = attrs.field(repr=False)
    answered: bytes = attrs.field(repr=False)
    before: "Turn | None" = attrs.field(default=None, repr=False)
    references: int = 0

    @property
    def bytes(self) -> int:
        """How long it is."""
        return len(self.asked) + len(self.answered)


@attrs.frozen(kw_only=True, eq=False)
class StoredResponse:
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
class _Entry:
    stored: StoredResponse
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
    _entries: OrderedDict[tuple[str, str], _Entry] = attrs.field(factory=OrderedDict)
    _shares: dict[str, _Share] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._entries)

    def owners(self) -> Iterator[tuple[str, int, int]]:
        """Yield each tenant that has something, its number of responses and its bytes."""
        for owner, share in self._shares.items():
            yield owner, len(share.ids), share.bytes

    def get(self, owner: str, response_id: str, now: float) -> StoredResponse | None:
        """Return a response of a tenant, which counts as used; None if there is none of this id that is its own."""
        self.expire(now)
        entry = self._entries.get((owner, response_id))
        if entry is None:
            return None
        entry.used_at = now
        self._entries.move_to_end((owner, response_id))
        self._shares[owner].ids.move_to_end(response_id)
        return entry.stored

    def put(self, stored: StoredResponse, now: float) -> bool:
        """Keep a response, for which others may give way; return whether it fits the bounds at all."""
        self.expire(now)
        bounds, key = self.bounds, (stored.owner, stored.response_id)
        if not bounds.admits(len(stored.response), stored.conversation_bytes, len(turns_to(stored.turn))):
            return False
        self.delete(*key)
        share = self._shares.setdefault(stored.owner, _Share())
        self._entries[key] = _Entry(stored, now)
        share.ids[stored.response_id] = None
        self._add_bytes(share, len(stored.response) + OVERHEAD_BYTES)
        turn: Turn | None = stored.turn
        while turn is not None:
            turn.references += 1
            if turn.references > 1:
                break  # it counts already, and so does what is before it
            self._add_bytes(share, turn.bytes + OVERHEAD_BYTES)
            turn = turn.before
        while len(share.ids) > bounds.responses_of_tenant or share.bytes > bounds.bytes_of_tenant:
            self.delete(stored.owner, next(iter(share.ids)))
        while len(self._entries) > bounds.responses or self.bytes > bounds.bytes:
            self.delete(*next(iter(self._entries)))
        return True

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; return whether it was there. Later ones of its conversation keep its turn."""
        entry = self._entries.pop((owner, response_id), None)
        if entry is None:
            return False
        share = self._shares[owner]
        del share.ids[response_id]
        self._add_bytes(share, -len(entry.stored.response) - OVERHEAD_BYTES)
        turn: Turn | None = entry.stored.turn
        while turn is not None:
            turn.references -= 1
            if turn.references:
                break
            self._add_bytes(share, -turn.bytes - OVERHEAD_BYTES)
            turn = turn.before
        if not share.ids:
            del self._shares[owner]
        return True

    def expire(self, now: float) -> None:
        """Forget what has not been used for too long."""
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if now - entry.used_at < self.bounds.idle_seconds:
                return
            self.delete(*key)

    def _add_bytes(self, share: _Share, difference: int) -> None:
        share.bytes += difference
        self.bytes += difference


PREFIX: Final = "/v1/responses/"
_ITEMS: Final = "input_items"
_PAGE_SIZE: Final = 20
_MAX_PAGE_SIZE: Final = 100
_NOT_FOUND_CAUSES: Final = (
    "a response is in the memory of the router that gave it, and this one was not kept (store: false, length), "
    "was deleted, was not used for a day, gave way to newer ones, or that router has restarted or is another one"
)
_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


def not_found(response_id: str, code: str = "response_not_found") -> RefusedError:
    """Return what is said of a response that this tenant does not have, wherever it is."""
    message = f"there is no response {response_id[:80]!r}: {_NOT_FOUND_CAUSES}; send the whole conversation as input"
    return refused(404, message, code)


@attrs.frozen
class ResourceRequest:
    """A request for what is kept.

    Attributes:
        method: GET, or another.
        path: Without the query.
        query: What stands behind the question mark.
    """

    method: str
    path: str
    query: str = ""


def handle_request(store: ResponseStore, request: ResourceRequest, owner: str, now: float) -> Response:
    """Return the answer to a request below `/v1/responses/`.

    Args:
        store: What is kept.
        request: The request.
        owner: Who asks.
        now: The time, as the store counts it.
    """
    method, path = request.method, request.path
    response_id, _, rest = path.removeprefix(PREFIX).rstrip("/").partition("/")
    if rest not in ("", _ITEMS):
        message = f"nothing at {path[:200]}; there is {PREFIX}ID and {PREFIX}ID/{_ITEMS}"
        return refused(404, message, "not_found").response
    allowed = ("GET", "HEAD") if rest else ("GET", "HEAD", "DELETE")
    if method not in allowed and not response_id.startswith("resp_"):  # /compact, /input_tokens
        return refused(404, f"nothing at {path[:200]}; there is {PREFIX}ID", "not_found").response
    if method not in allowed:
        message = f"{method} is not allowed on {path[:200]}"
        return refused(405, message, "method_not_allowed", {"Allow": ", ".join(allowed)}).response
    asked = dict(parse_qsl(request.query, keep_blank_values=True))
    unknown = [name for name in asked if name not in (("limit", "order", "after") if rest else ())]
    if unknown:
        message = f"{unknown[0][:80]} is no parameter that this router knows of {path[:200]}; leave it away"
        return refused(400, message, "invalid_value").response
    stored = store.get(owner, response_id, now)
    if stored is None:
        return not_found(response_id).response
    if method == "DELETE":
        store.delete(owner, response_id)
        return Response.json(200, {"id": response_id, "object": "response", "deleted": True})
    if not rest:
        return Response.json(200, orjson.loads(stored.response))
    return _items_page(stored, asked)


def input_items(stored: StoredResponse) -> list[dict[str, Any]]:
    """Return what a response was asked: all items of the conversation before its answer, each with an id."""
    *before, last = turns_to(stored.turn)
    found = [item for turn in before for item in orjson.loads(turn.asked) + orjson.loads(turn.answered)]
    found += orjson.loads(last.asked)
    suffix = stored.response_id.removeprefix("resp_")
    return [{"id": f"{_PREFIXES[item['type']]}_{suffix}_in_{at}"} | item for at, item in enumerate(found)]


def _items_page(stored: StoredResponse, asked: Mapping[str, str]) -> Response:
    order, limit, items = asked.get("order", "desc"), asked.get("limit", str(_PAGE_SIZE)), input_items(stored)
    if order not in ("asc", "desc"):
        return refused(400, f"order is {order[:80]!r}; write asc or desc", "invalid_value").response
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MAX_PAGE_SIZE):
        message = f"limit is {limit[:80]!r}; write a number from 1 to {_MAX_PAGE_SIZE}"
        return refused(400, message, "invalid_value").response
    if order == "desc":
        items.reverse()
    if after := asked.get("after"):
        at = next((at for at, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            return refused(400, f"after is {after[:80]!r}, which is none of the items", "invalid_value").response
        items = items[at + 1 :]
    page = items[: int(limit[:9])]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return Response.json(200, {"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})
