"""What is answered on `/v1/responses/{id}` and `/v1/responses/{id}/input_items`. Pure.

A response of another tenant is answered as one that is not there. https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs
import orjson

from llmkube.base.http.message import Response
from llmkube.router.refusals import RefusedError, refused
from llmkube.router.responses.store import ResponseStore, Stored, turns_to

PREFIX: Final = "/v1/responses/"
_ITEMS: Final = "input_items"
_PAGE: Final = 20
_MOST: Final = 100
_WHY: Final = (
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
    words = f"there is no response {response_id[:80]!r}: {_WHY}; send the whole conversation as input"
    return refused(404, words, code)


@attrs.frozen
class Wanted:
    """A request for what is kept.

    Attributes:
        method: GET, or another.
        path: Without the query.
        query: What stands behind the question mark.
    """

    method: str
    path: str
    query: str = ""


def page_of(store: ResponseStore, wanted: Wanted, owner: str, now: float) -> Response:
    """Return the answer to a request below `/v1/responses/`.

    Args:
        store: What is kept.
        wanted: The request.
        owner: Who asks.
        now: The time, as the store counts it.
    """
    method, path = wanted.method, wanted.path
    response_id, _, rest = path.removeprefix(PREFIX).rstrip("/").partition("/")
    if rest not in ("", _ITEMS):
        words = f"nothing at {path[:200]}; there is {PREFIX}ID and {PREFIX}ID/{_ITEMS}"
        return refused(404, words, "not_found").response
    allowed = ("GET", "HEAD") if rest else ("GET", "HEAD", "DELETE")
    if method not in allowed and not response_id.startswith("resp_"):  # /compact, /input_tokens
        return refused(404, f"nothing at {path[:200]}; there is {PREFIX}ID", "not_found").response
    if method not in allowed:
        words = f"{method} is not allowed on {path[:200]}"
        return refused(405, words, "method_not_allowed", {"Allow": ", ".join(allowed)}).response
    asked = dict(parse_qsl(wanted.query, keep_blank_values=True))
    unknown = [name for name in asked if name not in (("limit", "order", "after") if rest else ())]
    if unknown:
        words = f"{unknown[0][:80]} is no parameter that this router knows of {path[:200]}; leave it away"
        return refused(400, words, "invalid_value").response
    stored = store.get(owner, response_id, now)
    if stored is None:
        return not_found(response_id).response
    if method == "DELETE":
        store.delete(owner, response_id)
        return Response.json(200, {"id": response_id, "object": "response", "deleted": True})
    if not rest:
        return Response.json(200, orjson.loads(stored.response))
    return _items_page(stored, asked)


def input_items(stored: Stored) -> list[dict[str, Any]]:
    """Return what a response was asked: all items of the conversation before its answer, each with an id."""
    *before, last = turns_to(stored.turn)
    found = [item for turn in before for item in orjson.loads(turn.asked) + orjson.loads(turn.answered)]
    found += orjson.loads(last.asked)
    named = stored.response_id.removeprefix("resp_")
    return [{"id": f"{_PREFIXES[item['type']]}_{named}_in_{at}"} | item for at, item in enumerate(found)]


def _items_page(stored: Stored, asked: Mapping[str, str]) -> Response:
    order, limit, items = asked.get("order", "desc"), asked.get("limit", str(_PAGE)), input_items(stored)
    if order not in ("asc", "desc"):
        return refused(400, f"order is {order[:80]!r}; write asc or desc", "invalid_value").response
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MOST):
        words = f"limit is {limit[:80]!r}; write a number from 1 to {_MOST}"
        return refused(400, words, "invalid_value").response
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
