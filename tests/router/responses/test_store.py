"""Stored responses, their owners, and eviction: for any operations the limits hold and every byte is counted once.

Answers to a client about its own stored responses, and about those of others.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.responses import store as response_store
from llmkube.router.responses.store import OVERHEAD_BYTES, Bounds, DataLimits, ResponseStore, Turn

SMALL = Bounds(
    responses=6,
    responses_of_tenant=4,
    bytes=24 * OVERHEAD_BYTES,
    bytes_of_tenant=12 * OVERHEAD_BYTES,
    bytes_of_conversation=4000,
    idle_seconds=100.0,
)


def stored(name, owner="a", before=None, size=10):
    """Return a response of this many bytes that continues another one."""
    turn = Turn(input=b"q" * size, output=b"a" * size, before=before.turn if before else None)
    length = turn.bytes + (before.conversation_bytes if before else 0)
    return response_store.StoredResponse(
        owner=owner, response_id=name, response=b"r" * size, turn=turn, limits=DataLimits(), conversation_bytes=length
    )


def counted(kept, found):
    """Return the bytes of these responses, each of their turns once, and their owners."""
    turns = {id(turn): turn for each in found for turn in response_store.turns_to(each.turn)}
    records = sum(len(each.response) + OVERHEAD_BYTES for each in found)
    return records + sum(turn.bytes + OVERHEAD_BYTES for turn in turns.values())


def test_a_response_is_its_tenants():
    """Another tenant cannot find or delete it."""
    kept = ResponseStore(SMALL)
    one = stored("r1")
    assert kept.put(one, 0.0)
    assert kept.get("a", "r1", 1.0) is one
    assert (kept.get("b", "r1", 1.0), kept.get("a", "r2", 1.0)) == (None, None)
    assert (kept.delete("b", "r1"), kept.delete("a", "r1"), kept.delete("a", "r1")) == (False, True, False)
    assert (len(kept._entries), kept.bytes, kept._shares) == (0, 0, {})


def test_what_was_used_longest_ago_gives_way():
    """Reading is a use. Responses of other tenants are not evicted."""
    kept = ResponseStore(SMALL)
    kept.put(stored("other", owner="b"), 0.0)
    for at in range(4):
        kept.put(stored(f"r{at}"), 1.0 + at)
    kept.get("a", "r0", 9.0)
    kept.put(stored("r4"), 10.0)
    there = [name for name in ("r0", "r1", "r2", "r3", "r4") if kept.get("a", name, 11.0)]
    assert there == ["r0", "r2", "r3", "r4"]
    assert kept.get("b", "other", 12.0)


def test_what_is_idle_for_too_long_is_forgotten():
    """It expires exactly then; a later response keeps the turns that it needs."""
    kept = ResponseStore(SMALL)
    first = stored("r1")
    second = stored("r2", before=first)
    kept.put(first, 0.0)
    kept.put(second, 50.0)
    assert kept.get("a", "r2", 99.0)
    kept.expire(100.0)
    assert len(kept._entries) == 1
    found = kept.get("a", "r2", 101.0)
    assert [turn.bytes for turn in response_store.turns_to(found.turn)] == [20, 20]
    kept.expire(201.0)
    assert (len(kept._entries), kept.bytes) == (0, 0)


def test_a_conversation_is_counted_once():
    """Its turns are shared: ten of its responses take the memory of ten turns."""
    kept = ResponseStore(Bounds())
    last = None
    for at in range(10):
        last = stored(f"r{at}", before=last, size=1000)
        kept.put(last, 0.0)
    assert kept.bytes == 10 * (3000 + 2 * OVERHEAD_BYTES)
    for at in range(9):
        kept.delete("a", f"r{at}")
    assert kept.bytes == 10 * (2000 + OVERHEAD_BYTES) + 1000 + OVERHEAD_BYTES
    assert len(response_store.turns_to(kept.get("a", "r9", 0.0).turn)) == 10


@pytest.mark.parametrize("size", [2001, 4000])
def test_what_can_not_fit_is_not_kept_and_nothing_goes_for_it(size):
    """The conversation is too long, or exceeds the limit of a tenant."""
    kept = ResponseStore(SMALL)
    kept.put(stored("r1"), 0.0)
    assert not kept.put(stored("long", size=size), 1.0)
    assert (len(kept._entries), kept.get("a", "long", 2.0)) == (1, None)


def test_an_evicted_turn_is_counted_again_for_a_running_request():
    """A request keeps the turns that it has read, even if they are deleted meanwhile."""
    kept = ResponseStore(SMALL)
    first = stored("r1")
    kept.put(first, 0.0)
    kept.delete("a", "r1")
    second = stored("r2", before=first)
    kept.put(second, 1.0)
    assert kept.bytes == counted(kept, [second])
    kept.delete("a", "r2")
    assert kept.bytes == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "get", "delete", "wait"]),
        st.sampled_from("abc"),
        st.integers(0, 7),
        st.integers(1, 2500),
    ),
    max_size=40,
)


def play(steps):
    """Put, get and delete; after each step the limits hold, and the counted bytes equal the stored ones."""
    kept, now, made, there = response_store.ResponseStore(SMALL), 0.0, {}, {}
    for number, (what, owner, pick, size) in enumerate(steps):
        now += 1.0
        own = [each for each in made.values() if each.owner == owner]
        chosen = own[pick % len(own)] if own else None
        if what == "put":
            before = chosen if chosen and pick % 2 and chosen.conversation_bytes < 3000 else None
            made[number] = one = stored(f"r{number}", owner, before, size)
            if kept.put(one, now):
                there[one.response_id] = one
                assert kept.get(owner, one.response_id, now) is one, "it is not there"
        elif what == "wait":
            now += 30.0 * pick
        elif chosen and what == "get":
            found = kept.get(owner, chosen.response_id, now)
            assert found in (None, chosen)
            assert all(kept.get(other, chosen.response_id, now) is None for other in "abc" if other != owner)
        elif chosen:
            kept.delete(owner, chosen.response_id)
            assert kept.get(owner, chosen.response_id, now) is None
        there = {name: each for name, each in there.items() if (each.owner, name) in kept._entries}
        assert len(kept._entries) == len(there) <= SMALL.responses
        assert kept.bytes == counted(kept, list(there.values())) <= SMALL.bytes
        for tenant, share in kept._shares.items():
            own = [each for each in there.values() if each.owner == tenant]
            assert len(share.ids) == len(own) <= SMALL.responses_of_tenant
            assert share.bytes == counted(kept, own) <= SMALL.bytes_of_tenant
        kept.expire(now)
        assert all(now - each.used_at < SMALL.idle_seconds for each in kept._entries.values())


@given(STEPS)
def test_bounds_hold_and_every_byte_is_counted_once(steps):
    """Steps put, read, delete and wait, as any tenant."""
    play(steps)


FULL = [("put", "abc"[at % 3], at, 800) for at in range(30)]
STEPPED = [
    ("put", "a", 1, 400),
    ("put", "a", 1, 400),
    ("put", "a", 3, 400),
    ("delete", "a", 0, 1),
    ("delete", "a", 1, 1),
    *FULL,
    ("get", "a", 12, 1),
]


class NoOwner(ResponseStore):
    def get(self, owner, response_id, now):
        return next((each.stored for (_, name), each in self._entries.items() if name == response_id), None)


class NoEnd(ResponseStore):
    def delete(self, owner, response_id):
        return (owner, response_id) in self._entries


class CountsTwice(ResponseStore):
    def put(self, stored_, now):
        self.bytes += 1
        return super().put(stored_, now)


class Forgets(ResponseStore):
    def put(self, stored_, now):
        return super().put(stored_, now) and self.delete(stored_.owner, stored_.response_id)


@pytest.mark.soak
def test_without_a_bug_these_steps_pass():
    """If this failed, the mutants would prove nothing."""
    play(STEPPED)


MUTANTS = {"any tenant's": NoOwner, "never deleted": NoEnd, "counted twice": CountsTwice, "kept for nothing": Forgets}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    """If a mutant passed, the property would prove nothing."""
    monkeypatch.setattr(response_store, "ResponseStore", MUTANTS[name])
    with pytest.raises(AssertionError):
        play(STEPPED)


@pytest.mark.parametrize("field", ["responses", "responses_of_tenant", "bytes", "bytes_of_tenant"])
def test_each_bound_is_one_that_something_meets(field, monkeypatch):
    """Without a limit the same steps exceed it."""
    unbounded = Bounds(**{each: getattr(SMALL, each) for each in Bounds.__slots__ if each[0] != "_"} | {field: 10**9})
    kept = ResponseStore(unbounded)
    tenants = "abcdefgh" if field in ("responses", "bytes") else "a"
    size = 1 if field.startswith("responses") else 1400
    for at in range(12):
        kept.put(stored(f"r{at}", owner=tenants[at % len(tenants)], size=size), 0.0)
    most = len(kept._entries) if field.startswith("responses") else kept.bytes
    assert most > getattr(SMALL, field)


SAID = {"id": "resp_2", "object": "response"}


def message(role, text):
    return {"type": "message", "role": role, "content": text}


def kept():
    """Return a store with a conversation of two turns."""
    store, turn = ResponseStore(), None
    for name in ("resp_1", "resp_2"):
        asked, answered = [message("user", f"asked {name}")], [message("assistant", f"said {name}") | {"id": "msg_own"}]
        turn = Turn(input=json.dumps(asked).encode(), output=json.dumps(answered).encode(), before=turn)
        body = json.dumps(SAID | {"id": name}).encode()
        store.put(
            response_store.StoredResponse(
                owner="a", response_id=name, response=body, turn=turn, limits=DataLimits(), conversation_bytes=99
            ),
            0.0,
        )
    return store


def asked_of(store, method="GET", path="/v1/responses/resp_2", query="", owner="a"):
    found = response_store.handle_request(store, method, path, owner, 1.0, query=query)
    return found.status, json.loads(found.body)


def test_a_response_is_given_as_it_was():
    """A path with a trailing slash works, too."""
    assert asked_of(kept()) == asked_of(kept(), path="/v1/responses/resp_2/") == (200, SAID)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("rest", ["", "/input_items"])
def test_another_tenants_response_is_answered_as_one_that_is_not_there(method, rest):
    """The answers are equal byte for byte, except for the requested id."""
    if method == "DELETE" and rest:
        return
    store = kept()
    foreign = response_store.handle_request(store, method, f"/v1/responses/resp_2{rest}", "b", 1.0)
    unknown = response_store.handle_request(store, method, f"/v1/responses/resp_9{rest}", "a", 1.0)
    assert foreign.status == unknown.status == 404
    assert foreign.body.replace(b"resp_2", b"resp_9") == unknown.body
    assert b"restarted" in foreign.body
    assert asked_of(store)[0] == 200


def test_a_deleted_response_is_gone_and_the_next_one_keeps_the_conversation():
    """Its id is not found any more; its turns stay in later responses."""
    store = kept()
    assert asked_of(store, "DELETE", "/v1/responses/resp_1") == (
        200,
        {"id": "resp_1", "object": "response", "deleted": True},
    )
    assert asked_of(store, path="/v1/responses/resp_1")[0] == 404
    assert len(asked_of(store, path="/v1/responses/resp_2/input_items")[1]["data"]) == 3


def test_input_items_are_the_conversation_before_the_answer():
    """They are newest first, page by page, each with its own id."""
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
    """Equal items of a client have different ids."""
    items = [
        message("user", "x"),
        message("user", "x"),
        {"type": "function_call"},
        {"type": "function_call_output"},
        {"type": "reasoning"},
    ]
    turn = Turn(input=json.dumps(items).encode(), output=b"[]")
    stored = response_store.StoredResponse(
        owner="a", response_id="resp_x", response=b"{}", turn=turn, limits=DataLimits(), conversation_bytes=9
    )
    found = [item["id"] for item in response_store.input_items(stored)]
    assert found == ["msg_x_in_0", "msg_x_in_1", "fc_x_in_2", "fco_x_in_3", "rs_x_in_4"]


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "words"),
    [
        ("POST", "/v1/responses/resp_2", "", 405, "POST is not allowed"),
        ("DELETE", "/v1/responses/resp_2/input_items", "", 405, "DELETE is not allowed"),
        ("POST", "/v1/responses/compact", "", 404, "nothing at /v1/responses/compact"),
        ("POST", "/v1/responses/resp_2/cancel", "", 404, "there is /v1/responses/ID and"),
        ("GET", "/v1/responses/resp_2", "stream=true", 400, "stream is not a known parameter"),
        ("GET", "/v1/responses/resp_2/input_items", "include[]=x", 400, "include[] is not a known parameter"),
        ("GET", "/v1/responses/resp_2/input_items", "limit=0", 400, "limit is '0'; write a number from 1 to 100"),
        ("GET", "/v1/responses/resp_2/input_items", "limit=" + "9" * 5000, 400, "limit is"),
        ("GET", "/v1/responses/resp_2/input_items", "limit=٣", 400, "limit is"),
        ("GET", "/v1/responses/resp_2/input_items", "order=up", 400, "order is 'up'; write asc or desc"),
        ("GET", "/v1/responses/resp_2/input_items", "after=x", 400, "after is 'x'"),
        ("GET", "/v1/responses/", "", 404, "there is no response ''"),
    ],
)
def test_what_is_asked_wrongly_is_refused_with_what_would_be_right(method, path, query, status, words):
    """The store is not changed."""
    store = kept()
    found, body = asked_of(store, method, path, query)
    assert (found, words in body["error"]["message"]) == (status, True), body
    assert len(store._entries) == 2
