"""Store responses within bounds; the least recently used are evicted. Pure; the clock is an argument.

* The responses of a conversation share their earlier turns. A turn is counted once, and stored as long as any response
  that leads back to it.
* The owner is part of a response's key, so a tenant cannot find the responses of another.
* A request that continues a conversation sends its history, too. It has the data classes of both and may go only to
  regions that both allow: omitting a header in a later request relaxes nothing.
* `/v1/responses/{id}` and `/v1/responses/{id}/input_items` treat another tenant's response as missing.
  https://platform.openai.com/docs/api-reference/responses
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs
import orjson

from llmkube.base.http.message import Response
from llmkube.router.dialects.responses_tools import API
from llmkube.router.policy.request_facts import RequestFacts
from llmkube.router.refusals import DO_NOT_RETRY, RefusedError, refused


@attrs.frozen(kw_only=True)
class DataLimits:
    """The data classes and the permitted regions of data, in lower case; regions None means anywhere."""

    classes: frozenset[str] = frozenset()
    regions: frozenset[str] | None = None


def limits_of(facts: RequestFacts) -> DataLimits:
    """Return the limits of a request and its answer."""
    return DataLimits(classes=facts.classes, regions=facts.regions or None)


def apply_limits(facts: RequestFacts, history: DataLimits) -> RequestFacts:
    """Return the facts of a request together with its history: the union of classes, the intersection of regions.

    Args:
        facts: Facts of the request itself.
        history: Limits of the conversation that it continues.

    Raises:
        RefusedError: The intersection is empty; an empty set of regions would mean anywhere.
    """
    classes, regions = facts.classes | history.classes, facts.regions
    if history.regions is not None:
        regions = regions & history.regions if regions else history.regions
        if not regions:
            own, previous = (", ".join(sorted(each)) or "none" for each in (facts.regions, history.regions))
            cause = f"the conversation's data may go to {previous}, this request's to {own}: no region in common"
            raise refused(503, f"no backend may answer this request: {cause}", "not_permitted", DO_NOT_RETRY)
    return attrs.evolve(facts, classes=classes, regions=regions)


OVERHEAD_BYTES: Final = 1024
"""Memory of a record in addition to its text."""


@attrs.frozen(kw_only=True)
class Bounds:
    """Limits of the store, in total and for one tenant.

    Attributes:
        responses: Responses in total.
        responses_of_tenant: Responses of one tenant.
        bytes: Bytes in total.
        bytes_of_tenant: Bytes of one tenant.
        bytes_of_conversation: Bytes of one conversation, all of which are sent to a backend to continue it.
        idle_seconds: Time without use after which a response expires.
    """

    responses: int = 10_000
    responses_of_tenant: int = 1_000
    bytes: int = 64 << 20
    bytes_of_tenant: int = 16 << 20
    bytes_of_conversation: int = 8 << 20
    idle_seconds: float = 24 * 3600.0

    def admits(self, response_bytes: int, conversation_bytes: int, turns: int) -> bool:
        """Return whether a response would fit into an empty store.

        Args:
            response_bytes: Length of the response.
            conversation_bytes: Length of its turn and all earlier ones.
            turns: Number of these turns.
        """
        total_bytes = response_bytes + conversation_bytes + OVERHEAD_BYTES * (1 + turns)
        fits = total_bytes <= min(self.bytes, self.bytes_of_tenant)
        return fits and conversation_bytes <= self.bytes_of_conversation


@attrs.define(eq=False, kw_only=True)
class Turn:
    """One request and its answer.

    Attributes:
        input: The items of the request, as JSON.
        output: The items of the response, as JSON.
        before: The turn that it continues; None for the first.
        references: Number of stored responses and later turns that need it.
    """

    input: bytes = attrs.field(repr=False)
    output: bytes = attrs.field(repr=False)
    before: "Turn | None" = attrs.field(default=None, repr=False)
    references: int = 0

    @property
    def bytes(self) -> int:
        """Length of the items."""
        return len(self.input) + len(self.output)


@attrs.frozen(kw_only=True, eq=False)
class StoredResponse:
    """A stored response.

    Attributes:
        owner: Owner, as returned by `owner_of`.
        response_id: Id of the response.
        response: The response, as JSON.
        turn: Its turn, which leads to the earlier ones.
        limits: Limits of its turn and all earlier ones.
        conversation_bytes: Length of its turn and all earlier ones.
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
    """One tenant's response ids, least recently used first, and its bytes."""

    ids: OrderedDict[str, None] = attrs.field(factory=OrderedDict)
    bytes: int = 0


@attrs.define
class _Entry:
    stored: StoredResponse
    used_at: float


@attrs.define(eq=False)
class ResponseStore:
    """The stored responses of one router; `bytes` is the memory that they use."""

    bounds: Bounds = Bounds()
    bytes: int = 0
    _entries: OrderedDict[tuple[str, str], _Entry] = attrs.field(factory=OrderedDict)
    _shares: dict[str, _Share] = attrs.field(factory=dict)

    def get(self, owner: str, response_id: str, now: float) -> StoredResponse | None:
        """Return a tenant's response and mark it as used; None if the tenant has none with this id."""
        self.expire(now)
        entry = self._entries.get((owner, response_id))
        if entry is None:
            return None
        entry.used_at = now
        self._entries.move_to_end((owner, response_id))
        self._shares[owner].ids.move_to_end(response_id)
        return entry.stored

    def put(self, stored: StoredResponse, now: float) -> bool:
        """Store a response, evicting others if needed; return False if it alone exceeds the bounds."""
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
                break  # it and all earlier turns are counted already
            self._add_bytes(share, turn.bytes + OVERHEAD_BYTES)
            turn = turn.before
        while len(share.ids) > bounds.responses_of_tenant or share.bytes > bounds.bytes_of_tenant:
            self.delete(stored.owner, next(iter(share.ids)))
        while len(self._entries) > bounds.responses or self.bytes > bounds.bytes:
            self.delete(*next(iter(self._entries)))
        return True

    def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; return whether it existed. Its turn stays while later responses need it."""
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
        """Delete responses that have been idle for too long."""
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
    "responses are in the memory of the router that created them; this one was not stored (store: false, or too long), "
    "was deleted, was not used for a day, was evicted by newer ones, or its router has restarted or is another one"
)


def logged_path(path: str) -> str:
    """Return a path without the ID of a stored response, which readers of a log must not learn."""
    start, mark, rest = path.partition("/responses/")
    if not rest or rest == "input_tokens":
        return path
    return f"{start}{mark}ID{f'/{_ITEMS}' if rest.endswith(f'/{_ITEMS}') else ''}"


def not_found(found_id: str, code: str = "response_not_found") -> RefusedError:
    """Return the error for a response or an item that this tenant does not have, whether or not another tenant does."""
    what = "item" if code == "item_not_found" else "response"
    message = f"there is no {what} {found_id[:80]!r}: {_NOT_FOUND_CAUSES}; send the whole conversation as input"
    return refused(404, message, code)


def handle_request(
    store: ResponseStore, method: str, path: str, owner: str, now: float, *, query: str = ""
) -> Response:
    """Answer a request below `/v1/responses/`; `now` is the store's clock."""
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
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [name for name in parameters if name not in (("limit", "order", "after") if rest else ())]
    if unknown:
        message = f"{unknown[0][:80]} is not a known parameter of {path[:200]}; remove it"
        return refused(400, message, "invalid_value").response
    stored = store.get(owner, response_id, now)
    if stored is None:
        return not_found(response_id).response
    if method == "DELETE":
        store.delete(owner, response_id)
        return Response.json(200, {"id": response_id, "object": "response", "deleted": True})
    if not rest:
        return Response.json(200, orjson.loads(stored.response))
    return _items_page(stored, parameters)


def conversation_of(stored: StoredResponse) -> list[tuple[str, dict[str, Any]]]:
    """Return the items of a conversation with their ids; its last turn is that of the response."""
    suffix, turns = stored.response_id.removeprefix("resp_"), turns_to(stored.turn)
    items = [item for turn in turns for part in (turn.input, turn.output) for item in orjson.loads(part)]
    made = (f"{API['items'][item['type']]}_{suffix}_in_{at}" for at, item in enumerate(items))
    return [(item.get("id") or name, item) for name, item in zip(made, items, strict=True)]


def input_items(stored: StoredResponse) -> list[dict[str, Any]]:
    """Return the input of a response: all items of the conversation before its answer, each with an id."""
    found = [{"id": name} | item for name, item in conversation_of(stored)]
    return found[: len(found) - len(orjson.loads(stored.turn.output))]


def response_of_item(item_id: str) -> str:
    """Return the id of the response that has an item, in its output or its input."""
    return f"resp_{item_id.partition('_')[2].partition('_')[0]}"


def _items_page(stored: StoredResponse, query: Mapping[str, str]) -> Response:
    order, limit, items = query.get("order", "desc"), query.get("limit", str(_PAGE_SIZE)), input_items(stored)
    if order not in ("asc", "desc"):
        return refused(400, f"order is {order[:80]!r}; write asc or desc", "invalid_value").response
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MAX_PAGE_SIZE):
        message = f"limit is {limit[:80]!r}; write a number from 1 to {_MAX_PAGE_SIZE}"
        return refused(400, message, "invalid_value").response
    if order == "desc":
        items.reverse()
    if after := query.get("after"):
        at = next((at for at, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            return refused(400, f"after is {after[:80]!r}; write the id of an item", "invalid_value").response
        items = items[at + 1 :]
    page = items[: int(limit[:9])]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return Response.json(200, {"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})
