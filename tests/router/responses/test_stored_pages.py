"""What a client is told of a response that is kept, and of one that is not its own."""

import json

import pytest

from llmkube.router.policy.data_limits import NO_LIMITS
from llmkube.router.responses.store import ResponseStore, Stored, Turn
from llmkube.router.responses.stored_pages import Wanted, input_items, page_of

SAID = {"id": "resp_2", "object": "response"}


def message(role, text):
    return {"type": "message", "role": role, "content": text}


def kept():
    """A store with a conversation of two turns."""
    store, turn = ResponseStore(), None
    for name in ("resp_1", "resp_2"):
        asked, answered = [message("user", f"asked {name}")], [message("assistant", f"said {name}") | {"id": "msg_own"}]
        turn = Turn(asked=json.dumps(asked).encode(), answered=json.dumps(answered).encode(), before=turn)
        said = json.dumps(SAID | {"id": name}).encode()
        store.put(
            Stored(owner="a", response_id=name, response=said, turn=turn, limits=NO_LIMITS, conversation_bytes=99), 0.0
        )
    return store


def asked_of(store, method="GET", path="/v1/responses/resp_2", query="", owner="a"):
    found = page_of(store, Wanted(method, path, query), owner, 1.0)
    return found.status, json.loads(found.body)


def test_a_response_is_given_as_it_was():
    """With a slash at the end too."""
    assert asked_of(kept()) == asked_of(kept(), path="/v1/responses/resp_2/") == (200, SAID)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("rest", ["", "/input_items"])
def test_another_tenants_response_is_answered_as_one_that_is_not_there(method, rest):
    """To the byte, but for the id that was asked for."""
    if method == "DELETE" and rest:
        return
    store = kept()
    foreign = page_of(store, Wanted(method, f"/v1/responses/resp_2{rest}"), "b", 1.0)
    unknown = page_of(store, Wanted(method, f"/v1/responses/resp_9{rest}"), "a", 1.0)
    assert foreign.status == unknown.status == 404
    assert foreign.body.replace(b"resp_2", b"resp_9") == unknown.body
    assert b"restarted" in foreign.body
    assert asked_of(store)[0] == 200


def test_a_deleted_response_is_gone_and_the_next_one_keeps_the_conversation():
    """Its id is not found any more; what was said stays with what came after it."""
    store = kept()
    assert asked_of(store, "DELETE", "/v1/responses/resp_1") == (
        200,
        {"id": "resp_1", "object": "response", "deleted": True},
    )
    assert asked_of(store, path="/v1/responses/resp_1")[0] == 404
    assert len(asked_of(store, path="/v1/responses/resp_2/input_items")[1]["data"]) == 3


def test_input_items_are_the_conversation_before_the_answer():
    """Newest first, page by page, each with an id of its own."""
    store = kept()
    path = "/v1/responses/resp_2/input_items"
    status, whole = asked_of(store, path=path, query="order=asc")
    assert [item["content"] for item in whole["data"]] == ["asked resp_1", "said resp_1", "asked resp_2"]
    assert (status, whole["object"], whole["has_more"]) == (200, "list", False)
    assert len({item["id"] for item in whole["data"]}) == 3
    found, query = [], "limit=1"
    for _ in range(3):
        page = asked_of(store, path=path, query=query)[1]
        assert page["first_id"] == page["last_id"] == page["data"][0]["id"]
        found += page["data"]
        query = f"limit=1&after={page['last_id']}"
    assert found == whole["data"][::-1]
    assert not page["has_more"]
    assert asked_of(store, path=path, query=query)[1]["data"] == []


def test_each_item_has_an_id_whatever_it_is():
    """Also where two of a client's items are the same."""
    items = [
        message("user", "x"),
        message("user", "x"),
        {"type": "function_call"},
        {"type": "function_call_output"},
        {"type": "reasoning"},
    ]
    turn = Turn(asked=json.dumps(items).encode(), answered=b"[]")
    stored = Stored(owner="a", response_id="resp_x", response=b"{}", turn=turn, limits=NO_LIMITS, conversation_bytes=9)
    found = [item["id"] for item in input_items(stored)]
    assert found == ["msg_x_in_0", "msg_x_in_1", "fc_x_in_2", "fco_x_in_3", "rs_x_in_4"]


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "words"),
    [
        ("POST", "/v1/responses/resp_2", "", 405, "POST is not allowed"),
        ("DELETE", "/v1/responses/resp_2/input_items", "", 405, "DELETE is not allowed"),
        ("POST", "/v1/responses/compact", "", 404, "nothing at /v1/responses/compact"),
        ("POST", "/v1/responses/resp_2/cancel", "", 404, "there is /v1/responses/ID and"),
        ("GET", "/v1/responses/resp_2", "stream=true", 400, "stream is no parameter"),
        ("GET", "/v1/responses/resp_2/input_items", "include[]=x", 400, "include[] is no parameter"),
        ("GET", "/v1/responses/resp_2/input_items", "limit=0", 400, "limit is '0'; write a number from 1 to 100"),
        ("GET", "/v1/responses/resp_2/input_items", "limit=" + "9" * 5000, 400, "limit is"),
        ("GET", "/v1/responses/resp_2/input_items", "limit=٣", 400, "limit is"),
        ("GET", "/v1/responses/resp_2/input_items", "order=up", 400, "order is 'up'; write asc or desc"),
        ("GET", "/v1/responses/resp_2/input_items", "after=x", 400, "after is 'x'"),
        ("GET", "/v1/responses/", "", 404, "there is no response ''"),
    ],
)
def test_what_is_asked_wrongly_is_refused_with_what_would_be_right(method, path, query, status, words):
    """And changes nothing."""
    store = kept()
    found, said = asked_of(store, method, path, query)
    assert (found, words in said["error"]["message"]) == (status, True), said
    assert len(store) == 2
