"""Conversations at a router in memory: owners, permitted backends, and costs."""

import json
import random

import attrs
import pytest
import trio

from lengths import LEAKS
from llmkube.base.http.exchange import StreamExchange
from llmkube.router.config.routing_config import Auth, Budget, Classes, Match, Rule
from llmkube.router.dialects import responses_answers
from llmkube.router.dispatch.attempt import MAX_ANSWER_BYTES
from llmkube.router.responses import conversations
from llmkube.router.responses.conversations import SWEEP_SECONDS
from llmkube.router.responses.store import Bounds, DataLimits, ResponseStore
from router.proxy import router_lab as rl

RESPONSES = "/v1/responses"
ASKED = {"model": "m", "input": "hi"}
CLASS = "x-llmkube-classification"
REGION = "x-llmkube-region"


async def ask(lab, headers=None, **more):
    """Request a response; return status and object."""
    response = await lab.ask(ASKED | more, RESPONSES, headers)
    return response.status, json.loads(response.body)


async def kept(lab, headers=None, **more):
    """Request a response that must succeed; return its id."""
    status, response = await ask(lab, headers, **more)
    assert status == 200, response
    return response["id"]


def conversations_of(lab):
    return lab.router.listed_fields.conversations


# -- where the data may go ---------------------------------------------------------------------------------------------


def echoing(player):
    """Return a script that answers with the last request, whole or as a stream."""

    async def script(connection):
        body = json.loads(player.asked[-1][1])
        text = "answer to " + body["messages"][-1]["content"]
        if body.get("stream"):
            await connection.send_all(rl.stream(rl.piece(text), rl.piece("", "stop")))
        else:
            message = {"role": "assistant", "content": text}
            await connection.send_all(rl.answer(body={"choices": [{"message": message, "finish_reason": "stop"}]}))

    return script


OUTSIDE = rl.config_of(
    rl.local("mac", region="eu"),
    rl.cloud("cloud", region="us"),
    rules=(
        Rule(name="out", match=Match(headers={"x-go": "out"}), backends=("cloud", "mac")),
        Rule(name="shadow", match=Match(headers={"x-go": "both"}), backends=("mac", "cloud"), strategy="shadow"),
        Rule(name="all", match=Match(), backends=("mac", "cloud")),
    ),
)


async def converse(count, seed):
    """Play branching conversations; return the local ones, and the number that the provider continued."""
    dice = random.Random(seed)
    mac, provider = rl.Player(()), rl.Player(())
    mac.scripts, provider.scripts = (echoing(mac),), (echoing(provider),)
    closed, known, refused = {}, [], 0
    async with rl.open_lab(OUTSIDE, {"mac": mac, "cloud": provider}) as lab:
        for at in range(count):
            before, ancestors = dice.choice(known[-6:]) if known and dice.random() < 0.8 else ("", ())
            named = {
                CLASS: dice.choice(("", "", "", "", "", "pii", "PHI, public", "public")),
                REGION: dice.choice(("", "", "", "", "", "", "eu", "us", "eu, us")),
                "x-go": dice.choice(("", "out", "out", "out", "both")),
            }
            text = f"<canary {at}>"
            closed[text] = "p" in named[CLASS].lower().replace("public", "") or named[REGION] == "eu"
            body = {"input": text, "stream": dice.random() < 0.5} | ({"previous_response_id": before} if before else {})
            headers = {name: value for name, value in named.items() if value}
            status, data, _ = await lab.read(ASKED | body, RESPONSES, headers)
            if status != 200:
                refused += 1
                continue
            response = rl.events_of(data)[-1]["response"] if body["stream"] else json.loads(data)
            assert response["status"] == "completed"
            known.append((response["id"], (*ancestors, text)))
        await trio.testing.wait_all_tasks_blocked()
    outside = [body.decode() for _, body in provider.asked]
    for body in outside:
        assert [text for text, is_closed in closed.items() if is_closed and text in body] == []
    assert conversations_of(lab).history_bytes == 0
    return sum(body.count("<canary") > 1 for body in outside), refused


async def test_no_conversation_takes_what_is_closed_outside(autojump_clock):
    """Whole answers and streams, routed, fallen back on and shadowed: the provider gets no sensitive text."""
    count = max(250, LEAKS // 20)
    continued, refused = await converse(count, seed=5)
    assert continued > count // 20
    assert refused > count // 20


def forgetting(**what):
    """Return a mutant that stores a response without some of its limits."""
    real = conversations.limits_of
    return "limits_of", lambda facts: attrs.evolve(real(facts), **what)


MUTANTS = {
    "a history opens what it closes": ("apply_limits", lambda facts, history: facts),
    "kept without classes": forgetting(classes=frozenset()),
    "kept without regions": forgetting(regions=None),
    "kept without limits": ("limits_of", lambda facts: DataLimits()),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_caught(name, monkeypatch, autojump_clock):
    """Each deliberate bug sends sensitive text outside."""
    monkeypatch.setattr(conversations, *MUTANTS[name])
    with pytest.raises(AssertionError):
        await converse(250, seed=5)


async def test_a_conversation_stays_what_it_was_without_the_header():
    """The audit log has the inherited class; a request that names another class has both."""
    async with rl.open_lab(OUTSIDE, mac=rl.answer(), cloud=rl.answer()) as lab:
        first = await kept(lab, {CLASS: "pii"})
        second = await kept(lab, {"x-go": "out"}, previous_response_id=first)
        await kept(lab, {"x-go": "out", CLASS: "public"}, previous_response_id=second)
        assert lab.players["cloud"].asked == []
        assert [line["classification"] for line in lab.audit] == [["pii"], ["pii"], ["pii", "public"]]
        await kept(lab, {"x-go": "out"})
        assert len(lab.players["cloud"].asked) == 1


async def test_no_region_in_common_is_refused():
    """The request and its history have different regions; no backend is asked."""
    async with rl.open_lab(OUTSIDE, mac=rl.answer(), cloud=rl.answer()) as lab:
        first = await kept(lab, {REGION: "eu"})
        status, response = await ask(lab, {REGION: "us"}, previous_response_id=first)
        assert (status, response["error"]["code"]) == (503, "not_permitted")
        assert "may go to eu, this request's to us" in response["error"]["message"]
        assert (len(lab.players["mac"].asked), len(lab.players["cloud"].asked)) == (1, 0)
        assert (lab.audit[1]["outcome"], lab.audit[1]["tenant"]) == ("not_permitted", lab.audit[0]["tenant"])


async def test_a_class_that_becomes_sensitive_closes_conversations_that_have_it():
    """The config of the continuing request applies."""
    async with rl.open_lab(OUTSIDE, mac=rl.answer(), cloud=rl.answer()) as lab:
        first = await kept(lab, {CLASS: "internal"})
        second = await kept(lab, {"x-go": "out"}, previous_response_id=first)
        assert len(lab.players["cloud"].asked) == 1
        lab.config = attrs.evolve(OUTSIDE, classes=Classes(sensitive=frozenset({"internal"})))
        lab.stamp = (2, 0, 0)
        await lab.router.live.reload_if_changed()
        await kept(lab, {"x-go": "out"}, previous_response_id=second)
        assert len(lab.players["cloud"].asked) == 1


# -- continued conversations -------------------------------------------------------------------------------------------


async def test_a_backend_gets_the_whole_conversation():
    """Calls and their results are included, only the latest instructions, and no thoughts of a provider's model."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    called = rl.answer(body={"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    async with rl.open_lab(rl.MAC, mac=(called, rl.answer(), rl.stream(rl.WHOLE_STREAM), rl.answer())) as lab:
        first = await kept(lab, instructions="old")
        result = [{"type": "function_call_output", "call_id": "c1", "output": "r"}]
        second = await kept(lab, input=result, previous_response_id=first, instructions="new")
        body = ASKED | {"stream": True, "previous_response_id": second}
        third = rl.events_of((await lab.read(body, RESPONSES))[1])[-1]["response"]["id"]
        await kept(lab, previous_response_id=third, input="end")
        turns = [[(turn["role"], turn["content"]) for turn in body["messages"]] for body in lab.players["mac"].bodies]
    assert turns[1] == [("system", "new"), ("user", "hi"), ("assistant", None), ("tool", "r")]
    assert turns[3] == [*turns[1][1:], ("assistant", "yes"), ("user", "hi"), ("assistant", "one two"), ("user", "end")]
    assert lab.players["mac"].bodies[1]["messages"][2]["tool_calls"] == [call]
    assert "hm" not in json.dumps(lab.players["mac"].bodies)


# -- references to items -----------------------------------------------------------------------------------------------


def referred(response, at=0):
    return {"type": "item_reference", "id": response["output"][at]["id"]}


def user(text):
    return {"role": "user", "content": text}


async def test_items_are_found_by_their_ids():
    """The AI SDK repeats its own items and refers to those of the router; calls keep their namespaces."""
    call = {"id": "c1", "type": "function", "function": {"name": "mcp__f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    called = rl.answer(body={"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    tools = [{"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "f"}]}]
    async with rl.open_lab(rl.MAC, mac=(called, rl.answer(), rl.answer(), rl.answer())) as lab:
        _, first = await ask(lab, tools=tools)
        assert (first["output"][1]["name"], first["output"][1]["namespace"]) == ("f", "mcp")
        result = {"type": "function_call_output", "call_id": "c1", "output": "r"}
        asked = [user("hi"), referred(first), referred(first, 1), result]
        _, second = await ask(lab, input=asked, tools=tools)
        _, third = await ask(lab, input=[*asked, {"id": second["output"][0]["id"]}, user("end")], tools=tools)
        turns = [[(turn["role"], turn["content"]) for turn in body["messages"]] for body in lab.players["mac"].bodies]
        assert turns[2] == [("user", "hi"), ("assistant", None), ("tool", "r"), ("assistant", "yes"), ("user", "end")]
        assert all(body["messages"][1]["tool_calls"] == [call] for body in lab.players["mac"].bodies[1:])
        path = f"{RESPONSES}/{third['id']}/input_items?order=asc"
        items = json.loads((await lab.ask(path=path, method="GET")).body)["data"]
        assert [item["type"] for item in items] == [
            *("message", "reasoning", "function_call", "function_call_output", "message", "message"),
        ]
        given = [{"type": "item_reference", "id": item["id"]} for item in items]
        assert (await ask(lab, input=[given[-1], *given[:4]], tools=tools))[0] == 200
        assert [turn["role"] for turn in lab.players["mac"].bodies[3]["messages"]] == [
            *("user", "user", "assistant", "tool"),
        ]
        assert conversations_of(lab).history_bytes == 0


async def test_a_conversation_by_references_is_stored_once(autojump_clock):
    """Its memory grows with what is new, and its first responses may be evicted."""
    sizes, items = [], [user("x" * 1000)]
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        store = conversations_of(lab).store
        store.bounds = Bounds(responses_of_tenant=2)
        for _ in range(6):
            status, response = await ask(lab, input=items)
            assert status == 200, response
            items += [referred(response), user("y" * 1000)]
            sizes.append(store.bytes)
        assert len(lab.players["mac"].bodies[-1]["messages"]) == 11
        assert sizes[5] - sizes[2] < 3 * 4000
        assert len(store._entries) == 2


async def test_items_that_a_tenant_does_not_have_are_not_found(tmp_path):
    """The error is the same for another team's items, and for ids that never existed."""
    (tmp_path / "red").write_text("red\n")
    (tmp_path / "blue").write_text("blue\n")
    config = rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(tmp_path)))
    red, blue = ({"Authorization": f"Bearer {key}"} for key in ("red", "blue"))
    async with rl.open_lab(config, mac=rl.answer()) as lab:
        _, first = await ask(lab, red)
        assert (await ask(lab, red, input=[referred(first), user("a")]))[0] == 200
        name = first["output"][0]["id"]
        errors = set()
        for headers, each in ((blue, name), (red, f"{name}9"), (red, "msg_gone"), (red, "x"), (red, "")):
            status, error = await ask(lab, headers, input=[user("a"), {"type": "item_reference", "id": each}])
            errors.add((status, error["error"]["code"], error["error"]["message"].replace(repr(each), "ID")))
        assert {(status, code) for status, code, _ in errors} == {(404, "item_not_found")}
        assert len(errors) == 1
        await lab.ask(path=f"{RESPONSES}/{first['id']}", method="DELETE", headers=red)
        assert (await ask(lab, red, input=[referred(first), user("a")]))[0] == 404
        assert conversations_of(lab).history_bytes == 0


async def test_items_keep_the_limits_of_their_conversations():
    """A sensitive item stays local, however it is referred to; so does what follows it."""
    async with rl.open_lab(OUTSIDE, mac=rl.answer(), cloud=rl.answer()) as lab:
        _, open_one = await ask(lab, {"x-go": "out"}, input="open")
        _, secret = await ask(lab, {CLASS: "pii", "x-go": "out"}, input="secret")
        asked = [referred(secret), referred(open_one), user("a")]
        _, joined = await ask(lab, {"x-go": "out"}, input=asked)
        await ask(lab, {"x-go": "out"}, input=[referred(joined), user("b")])
        assert [len(lab.players[each].asked) for each in ("cloud", "mac")] == [1, 3]


async def test_references_load_a_bounded_length(autojump_clock):
    """Items of one conversation may be as long as it; those of several together, too."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        responses = [(await ask(lab, input="x" * 3000))[1] for _ in range(2)]
        conversations_of(lab).store.bounds = Bounds(bytes_of_conversation=5000)
        assert (await ask(lab, input=[referred(responses[0]), user("a")]))[0] == 200
        status, error = await ask(lab, input=[*map(referred, responses), user("a")])
        assert (status, "items of too many long conversations" in error["error"]["message"]) == (400, True)
        assert conversations_of(lab).history_bytes == 0


async def test_a_conversation_branches():
    """Two requests may continue the same response."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        first = await kept(lab)
        for text in ("a", "b"):
            await kept(lab, input=text, previous_response_id=first)
        assert [body["messages"][-1]["content"] for body in lab.players["mac"].bodies] == ["hi", "a", "b"]
        assert [len(body["messages"]) for body in lab.players["mac"].bodies] == [1, 3, 3]


async def test_a_response_is_given_and_deleted_by_its_id():
    """It equals the client's answer."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        _, response = await ask(lab, metadata={"a": "b"})
        path = f"{RESPONSES}/{response['id']}"
        found = await lab.ask(path=path, method="GET")
        assert json.loads(found.body) == response
        items = json.loads((await lab.ask(path=f"{path}/input_items?order=asc", method="GET")).body)
        assert [item["content"] for item in items["data"]] == [[{"type": "input_text", "text": "hi"}]]
        assert (await lab.ask(path=path, method="DELETE")).status == 200
        assert (await lab.ask(path=path, method="GET")).status == 404
        logged = [(line["method"], line["path"], line["status"], line["outcome"]) for line in lab.audit[-2:]]
        kept_path = f"{RESPONSES}/ID"
        assert logged == [("DELETE", kept_path, 200, "ok"), ("GET", kept_path, 404, "client_error")]
        assert response["id"] not in str(lab.audit)
        status, error = await ask(lab, previous_response_id=response["id"])
        assert (status, error["error"]["code"]) == (404, "previous_response_not_found")
        assert lab.audit[-1]["outcome"] == "previous_response_not_found"
        assert len(lab.players["mac"].asked) == 1


async def test_what_is_not_to_be_stored_is_not():
    """Nothing of it is stored; it can continue a stored response."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        first = await kept(lab)
        status, response = await ask(lab, store=False, previous_response_id=first)
        assert (status, response["store"]) == (200, False)
        assert len(lab.players["mac"].bodies[1]["messages"]) == 3
        assert (await ask(lab, previous_response_id=response["id"]))[0] == 404
        assert len(conversations_of(lab).store._entries) == 1


@pytest.mark.parametrize(
    "script",
    [
        rl.stream(rl.piece("half"), end=b""),
        rl.saying(
            rl.stream(rl.piece("half"), end=b""), rl.chunk(b'data: {"error": {"message": "no"}}\n\n'), seconds=1.0
        ),
    ],
)
async def test_what_failed_is_not_kept(script, autojump_clock):
    """A stream that breaks off, or one with an error, has no clean end."""
    async with rl.open_lab(rl.MAC, mac=script) as lab:
        _, data, clean = await lab.read(ASKED | {"stream": True}, RESPONSES)
        events = rl.events_of(data)
        assert ([each["type"] for each in events[-2:]], clean) == (["response.failed", "error"], False)
        assert len(conversations_of(lab).store._entries) == 0
    async with rl.open_lab(rl.MAC, mac=rl.answer(400, {"error": {"message": "no"}})) as lab:
        assert (await ask(lab))[0] == 400
        assert len(conversations_of(lab).store._entries) == 0


@pytest.mark.parametrize("is_stream", [False, True])
async def test_it_is_kept_before_the_client_has_the_end(monkeypatch, is_stream):
    """The client's next request could come too early otherwise."""
    sent, seen = [], []
    send, put = StreamExchange.send, ResponseStore.put

    async def noted(exchange, data):
        sent.append(data)
        await send(exchange, data)

    def put_now(store, stored, now):
        seen.append(b'"completed"' in b"".join(sent))
        return put(store, stored, now)

    monkeypatch.setattr(StreamExchange, "send", noted)
    monkeypatch.setattr(ResponseStore, "put", put_now)
    async with rl.open_lab(rl.MAC, mac=rl.stream(rl.WHOLE_STREAM) if is_stream else rl.answer()) as lab:
        await lab.read(ASKED | {"stream": is_stream}, RESPONSES)
    assert seen == [False]
    assert b'"completed"' in b"".join(sent)


# -- ownership ---------------------------------------------------------------------------------------------------------


async def test_another_teams_response_is_not_there(tmp_path):
    """Continuing, reading or deleting it gets the error for an unknown id; all keys of a team share its responses."""
    (tmp_path / "red").write_text("red-1\nred-2\n")
    (tmp_path / "blue").write_text("blue\n")
    config = rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(tmp_path)))
    red, other, blue = ({"Authorization": f"Bearer {key}"} for key in ("red-1", "red-2", "blue"))
    async with rl.open_lab(config, mac=rl.answer()) as lab:
        first = await kept(lab, red)
        unknown = first.translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))
        status, foreign = await ask(lab, blue, previous_response_id=first)
        never = (await ask(lab, blue, previous_response_id=unknown))[1]
        assert (status, json.dumps(foreign).replace(first, unknown)) == (404, json.dumps(never))
        for method in ("GET", "DELETE"):
            assert (await lab.ask(path=f"{RESPONSES}/{first}", method=method, headers=blue)).status == 404
            assert (await lab.ask(path=f"{RESPONSES}/{first}", method=method)).status == 401
        await kept(lab, other, previous_response_id=first)
        assert len(lab.players["mac"].asked) == 2


async def test_ids_are_drawn_by_the_system():
    """They have 192 bits from the system: request ids do not help to guess them."""
    ids = []
    for _ in range(2):
        async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
            ids.append(await kept(lab))
    assert len(set(ids)) == 2
    assert {len(each) for each in ids} == {len("resp_") + 48}


# -- costs -------------------------------------------------------------------------------------------------------------


async def test_what_is_not_used_ends(autojump_clock):
    """Its memory is released without a request. Reading or continuing it is a use."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        store = conversations_of(lab).store
        store.bounds = Bounds(idle_seconds=200.0)
        first = await kept(lab)
        await trio.sleep(190)
        second = await kept(lab, previous_response_id=first)
        await trio.sleep(190)
        assert (await lab.ask(path=f"{RESPONSES}/{second}", method="GET")).status == 200
        await trio.sleep(190)
        assert len(store._entries) == 1
        await trio.sleep(10 + SWEEP_SECONDS)
        assert (len(store._entries), store.bytes) == (0, 0)
        status, response = await ask(lab, previous_response_id=second)
        assert (status, "not used for a day" in response["error"]["message"]) == (404, True)
    assert Bounds().idle_seconds == 24 * 3600


async def test_a_history_is_charged_to_budgets():
    """Its bytes are reserved, however short the body is."""
    budget = Budget(name="b", scope="router", window_seconds=3600, max_tokens=700)
    async with rl.open_lab(rl.config_of(rl.local("mac"), budgets=(budget,)), mac=rl.answer()) as lab:
        first = await kept(lab, input="x" * 400, max_output_tokens=10)
        assert (await ask(lab, max_output_tokens=10))[0] == 200
        status, response = await ask(lab, previous_response_id=first, max_output_tokens=10)
        assert (status, response["error"]["code"]) == (429, "budget_exhausted")
        assert conversations_of(lab).history_bytes == 0


async def test_histories_under_way_are_bounded(monkeypatch, autojump_clock):
    """Above the limit the answer is 503; a client that leaves releases its history."""
    gone = []

    async def silent(connection):
        await rl.until_gone(connection)
        gone.append(True)

    async with rl.open_lab(rl.MAC, mac=(rl.answer(), silent, rl.answer())) as lab:
        first = await kept(lab)
        size = next(iter(conversations_of(lab).store._entries.values())).stored.conversation_bytes
        monkeypatch.setattr(conversations, "MAX_HISTORY_BYTES", size)
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: ask(lab, previous_response_id=first))
                await trio.sleep(1)
                status, response = await ask(lab, previous_response_id=first)
                assert (status, response["error"]["code"]) == (503, "histories_full")
                labels = {"rule": "default", "backend": "none", "classification": "none", "outcome": "histories_full"}
                assert lab.metric("llmkube_router_requests_total", **labels) == 1
                await trio.sleep_forever()
        await trio.sleep(1)
        assert (gone, conversations_of(lab).history_bytes) == ([True], 0)
        await kept(lab, previous_response_id=first)


async def test_a_response_that_is_too_long_is_marked_as_not_stored():
    """The client gets the answer with `store` false, and no other response is evicted."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        conversations_of(lab).store.bounds = Bounds(bytes_of_conversation=500)
        first = await kept(lab)
        status, response = await ask(lab, input="x" * 500, previous_response_id=first)
        assert (status, response["store"]) == (200, False)
        assert (await ask(lab, previous_response_id=response["id"]))[0] == 404
        assert (await ask(lab, previous_response_id=first))[0] == 200


async def test_an_endless_answer_ends_with_an_error(monkeypatch):
    """The answer is held in memory until its end, so it has a limit."""
    monkeypatch.setattr(responses_answers, "MAX_CHARACTERS", 1000)
    script = rl.saying(rl.stream(end=b""), *[rl.chunk(rl.piece("x" * 90)) for _ in range(20)], then=rl.until_gone)
    async with rl.open_lab(rl.MAC, mac=script) as lab:
        _, data, clean = await lab.read(ASKED | {"stream": True}, RESPONSES)
        assert (rl.events_of(data)[-1]["error"]["code"], clean) == ("stream_untranslatable", False)
    assert responses_answers.MAX_CHARACTERS < MAX_ANSWER_BYTES
