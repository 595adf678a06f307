"""Join a request with the conversation that it continues, and store the answer.

```
body ─ translated ─▶ joined: history before its own items ─▶ facts ─▶ limited: classes and regions of both
                                                                          └▶ stored with them, once answered
```
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import attrs
import orjson
import trio

from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.dialects.dialect import JsonObject, Translation
from llmkube.router.dialects.responses_answers import ResponsesTranslator
from llmkube.router.dialects.responses_client import with_history
from llmkube.router.dialects.responses_items import REFERENCE
from llmkube.router.policy.request_facts import Principal, RequestFacts
from llmkube.router.refusals import refused
from llmkube.router.responses.store import (
    ResponseStore,
    StoredResponse,
    Turn,
    apply_limits,
    conversation_of,
    handle_request,
    limits_of,
    not_found,
    response_of_item,
)

MAX_HISTORY_BYTES: Final = 32 << 20
"""Histories of all requests under way: each request loads its history, however short its body is."""

SWEEP_SECONDS: Final = 60.0
_ID_BYTES: Final = 24


def owner_of(principal: Principal) -> str:
    """Return the owner of a client's responses: its team, shared by all keys of the team; else its address."""
    return f"team {principal.team}" if principal.team else f"tenant {principal.tenant}"


@attrs.frozen(eq=False, kw_only=True)
class JoinedRequest:
    """A request with its history; `translated` is sent to backends."""

    translated: Translation
    _owner: str = ""
    _previous: StoredResponse | None = attrs.field(default=None, repr=False)
    _loaded: Sequence[StoredResponse] = attrs.field(default=(), repr=False)
    _store: ResponseStore | None = attrs.field(default=None, repr=False)

    @property
    def history_bytes(self) -> int:
        """Length of the conversations that were loaded: those with its history and with items that it refers to."""
        return sum(each.conversation_bytes for each in self._loaded)

    def apply_limits(self, facts: RequestFacts) -> RequestFacts:
        """Return the facts with the limits of the history applied; the answer is stored with the combined limits.

        Raises:
            RefusedError: Request and history have no region in common.
        """
        translator, store = self.translated.translator, self._store
        if store is None or not isinstance(translator, ResponsesTranslator):
            return facts
        for each in self._loaded:
            facts = apply_limits(facts, each.limits)
        limits, items = limits_of(facts), orjson.dumps(translator.items)

        def save(response: JsonObject, output: list[JsonObject]) -> bool:
            answer = orjson.dumps(output)
            before, length = (self._previous.turn, self._previous.conversation_bytes) if self._previous else (None, 0)
            new = StoredResponse(
                owner=self._owner,
                response_id=response["id"],
                response=orjson.dumps(response),
                turn=Turn(input=items, output=answer, before=before),
                limits=limits,
                conversation_bytes=length + len(items) + len(answer),
            )
            return store.put(new, trio.current_time())

        translator.save = save
        return facts


@attrs.define(eq=False)
class Conversations:
    """The conversations of one router.

    Attributes:
        store: The stored responses.
        now: Returns the time, in seconds since 1970.
        history_bytes: Histories of the requests under way.
    """

    store: ResponseStore
    now: Callable[[], int]
    history_bytes: int = 0

    def join(self, translated: Translation, principal: Principal) -> JoinedRequest:
        """Return a request with its history; subtract its `history_bytes` afterwards.

        Raises:
            RefusedError: The previous response or an item does not exist, or histories are too long.
        """
        translator = translated.translator
        if translator is None or not isinstance(translator, ResponsesTranslator):
            return JoinedRequest(translated=translated)
        # From the system's generator, as ids must not be guessable
        translator.response_id = f"resp_{secrets.token_hex(_ID_BYTES)}"
        translator.now = self.now
        owner = owner_of(principal)
        items, first = list(translator.items), list[tuple[str, JsonObject]]()
        loaded: list[StoredResponse] = []
        if translator.previous_id:
            first = self._load(owner, translator.previous_id, loaded)
            if not first:
                raise not_found(translator.previous_id, "previous_response_not_found")
        previous, known = loaded[0] if loaded else None, dict(first)
        for item in reversed(items):
            if item["type"] == REFERENCE and item["id"] not in known:  # the newest has the items of earlier ones
                found = self._load(owner, response_of_item(item["id"]), loaded)
                first, known = first or found, dict(found) | known
                if item["id"] not in known:
                    raise not_found(item["id"], "item_not_found")
        if loaded:
            items, before = [known.get(item.get("id", ""), item) for item in items], [item for _, item in first]
            if previous is None and items[: len(before)] == before:  # its next turn: no item is stored twice
                previous, items = loaded[0], items[len(before) :]
            translator.items = tuple(items)
            translated = with_history(translated, before if previous else (), translator)
        joined = JoinedRequest(translated=translated, owner=owner, previous=previous, loaded=loaded, store=self.store)
        self.history_bytes += joined.history_bytes
        return joined

    def _load(self, owner: str, response_id: str, loaded: list[StoredResponse]) -> list[tuple[str, JsonObject]]:
        """Add a stored response to those that a request needs, and return its conversation; empty if there is none.

        Raises:
            RefusedError: Too much would be loaded.
        """
        found = self.store.get(owner, response_id, trio.current_time())
        if found is None:
            return []
        loaded.append(found)
        needed = sum(each.conversation_bytes for each in loaded)
        if len(loaded) > 1 and needed > self.store.bounds.bytes_of_conversation:
            message = "input refers to items of too many long conversations; send the items themselves"
            raise refused(400, message, "invalid_value")
        if self.history_bytes + needed > MAX_HISTORY_BYTES:
            message = "too many long conversations are being continued now; retry later"
            raise refused(503, message, "histories_full", {"Retry-After": "5"})
        return conversation_of(found)

    def page(self, head: RequestHead, path: str, principal: Principal) -> Response:
        """Answer a request about a stored response."""
        query, now = head.target.partition("?")[2], trio.current_time()
        return handle_request(self.store, head.method, path, owner_of(principal), now, query=query)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Delete expired responses until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self.store.expire(trio.current_time())
