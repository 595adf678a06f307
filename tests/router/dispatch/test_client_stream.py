"""Clients and providers that speak Anthropic's Messages, over the common data path."""

import json

import pytest

from llmkube.router.config.routing_config import Auth, Budget
from llmkube.router.proxy.handler import ROUTES
from router.proxy import router_lab as rl

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
SAID = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "opus",
    "content": [{"type": "text", "text": "yes"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 5},
}


def claude(**changes):
    """Return Anthropic as a provider."""
    return rl.cloud("claude", provider="anthropic", dialect="anthropic", model="opus", **changes)


def event(**fields):
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n".encode()


def delta(text):
    return event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": text})


START = event(type="message_start", message=SAID | {"content": [], "stop_reason": None})
BLOCK = event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})
LAST = event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
STOP = event(type="message_stop")
PING = event(type="ping")


async def test_a_client_of_messages_gets_a_message():
    """The engine gets a chat completion; budgets, audit and headers are as for every request."""
    async with rl.open_lab(rl.MAC, mac=rl.answer()) as lab:
        response = await lab.ask(rl.MESSAGE | {"top_k": 5, "service_tier": "auto"}, MESSAGES)
    body = json.loads(response.body)
    text = {"type": "text", "text": "yes"}  # some clients refuse `citations: null`
    assert (response.status, body["type"], body["content"]) == (200, "message", [text])
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (3, 5)
    (asked,) = lab.players["mac"].bodies
    assert asked == {"model": "m", "max_tokens": 9, "messages": rl.MESSAGE["messages"], "top_k": 5}
    (line,) = lab.audit
    assert (line["path"], line["outcome"], line["droppedFields"]) == (MESSAGES, "ok", ["service_tier"])
    assert response.headers.get("x-llmkube-backend") == "mac"


async def test_a_client_of_messages_reads_a_stream():
    """Its events are those of the documentation, with the tokens at the end."""
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    parts = rl.stream(rl.piece("one"), rl.piece(" two", "stop"), usage, rl.DONE)
    async with rl.open_lab(rl.MAC, mac=parts) as lab:
        status, data, whole = await lab.read(rl.MESSAGE | {"stream": True}, MESSAGES)
    events = rl.events_of(data)
    assert (status, whole, events[-1]) == (200, True, {"type": "message_stop"})
    assert [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"] == ["one", " two"]
    assert (events[-2]["usage"]["input_tokens"], events[-2]["usage"]["output_tokens"]) == (7, 2)


async def test_a_provider_of_messages_is_asked_in_its_own_words():
    """It gets its own headers; the client gets a chat completion."""
    async with rl.open_lab(rl.config_of(claude()), claude=rl.answer(body=SAID)) as lab:
        response = await lab.ask(rl.ASKED | {"max_tokens": 4, "seed": 3})
    body = json.loads(response.body)
    assert body["choices"][0]["message"]["content"] == "yes"
    assert body["usage"]["total_tokens"] == 8
    (head,), (asked,) = lab.players["claude"].heads, lab.players["claude"].bodies
    assert head.startswith("POST /v1/messages HTTP/1.1")
    assert "anthropic-version: 2023-06-01" in head.lower()
    turn = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert asked == {"model": "opus", "max_tokens": 4, "messages": [turn]}
    assert lab.audit[0]["droppedFields"] == ["seed"]


async def test_its_key_goes_where_it_reads_it(tmp_path):
    """The key is not sent as a Bearer token, too."""
    (tmp_path / "key").write_text("sk-ant")
    async with rl.open_lab(rl.config_of(claude(key_file=str(tmp_path / "key"))), claude=rl.answer(body=SAID)) as lab:
        assert (await lab.ask()).status == 200
    head = lab.players["claude"].heads[0].lower()
    assert "x-api-key: sk-ant" in head
    assert "authorization" not in head


async def test_a_providers_stream_of_messages_is_one_of_chat_completions():
    """Usage is included only if the client requests it."""
    parts = rl.stream(START, PING, BLOCK, delta("one"), delta(" two"), LAST, STOP)
    async with rl.open_lab(rl.config_of(claude()), claude=parts) as lab:
        _, data, whole = await lab.read()
        _, counted, _ = await lab.read(rl.ASKED | {"stream": True, "stream_options": {"include_usage": True}})
    chunks = rl.events_of(data.replace(rl.DONE, b""))
    assert [each["choices"][0]["delta"].get("content") for each in chunks] == ["one", " two", None]
    assert (whole, data.endswith(rl.DONE)) == (True, True)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    usage = rl.events_of(counted.replace(rl.DONE, b""))[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 2)


@pytest.mark.parametrize(
    "parts",
    [
        rl.stream(START, event(type="error", error={"type": "overloaded_error", "message": "busy"})),
        rl.saying(rl.stream(START, BLOCK, end=b"")),
        rl.stream(START, b"data: {\n\n"),
        rl.stream(START, event(type="content_block_delta", index=0, delta="text")),
        rl.error(529, "busy", type="overloaded_error"),
        rl.answer(body=b"no json"),
    ],
)
async def test_a_provider_of_messages_that_fails_is_left_for_the_next(parts):
    """This is so until a part of its answer was sent."""
    async with rl.open_lab(
        rl.config_of(claude(), rl.local("mac")), claude=parts, mac=rl.stream(rl.piece("ok", "stop"), rl.DONE)
    ) as lab:
        status, data, whole = await lab.read()
    assert (status, whole) == (200, True)
    assert b"ok" in data


async def test_a_providers_stream_that_breaks_later_is_not_whole():
    """Only `message_delta` has the reason of the end; without it the answer is incomplete."""
    async with rl.open_lab(rl.config_of(claude()), claude=rl.stream(START, BLOCK, delta("one"))) as lab:
        _, data, whole = await lab.read()
    assert not whole
    assert b"stream_cut_short" in data


async def test_messages_to_a_provider_of_messages():
    """Blocks, calls and tokens survive both translations."""
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    message = SAID | {"content": [call], "stop_reason": "tool_use"}
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    async with rl.open_lab(rl.config_of(claude()), claude=rl.answer(body=message)) as lab:
        got = json.loads((await lab.ask(rl.MESSAGE | {"tools": [tool]}, MESSAGES)).body)
    assert (got["content"], got["stop_reason"]) == ([call], "tool_use")
    assert lab.players["claude"].bodies[0]["tools"] == [tool]


async def test_what_a_provider_cannot_be_asked_goes_to_one_that_can():
    """Without such a provider it is refused with field and fix; no circuit counts it."""
    async with rl.open_lab(
        rl.config_of(claude(), rl.local("mac")), claude=rl.answer(body=SAID), mac=rl.answer()
    ) as lab:
        assert json.loads((await lab.ask(rl.ASKED | {"n": 2})).body) == rl.ANSWER
    async with rl.open_lab(rl.config_of(claude()), claude=rl.answer(body=SAID)) as lab:
        for _ in range(9):
            response = await lab.ask(rl.ASKED | {"n": 2})
        assert (response.status, json.loads(response.body)["error"]["message"]) == (
            400,
            "n is 2; the Messages API supports one answer only",
        )
        assert (await lab.ask()).status == 200


async def test_tokens_are_counted_by_the_backend_without_charge():
    """llama.cpp's server and Anthropic count tokens; other backends are not asked."""
    budget = Budget(name="all", scope="router", window_seconds=60, max_tokens=1000)
    for backend, name in ((rl.local("mac"), "mac"), (claude(), "claude")):
        async with rl.open_lab(
            rl.config_of(backend, budgets=(budget,)), **{name: rl.answer(body={"input_tokens": 12})}
        ) as lab:
            response = await lab.ask({"model": "m", "messages": rl.MESSAGE["messages"]}, COUNT)
            assert json.loads(response.body) == {"input_tokens": 12}
            assert lab.router.budgets()[0]["tokensUsed"] == 0
        assert lab.players[name].heads[0].startswith("POST /v1/messages/count_tokens")
    async with rl.open_lab(rl.config_of(rl.cloud("cloud")), cloud=rl.answer()) as lab:
        response = await lab.ask({"model": "m", "messages": rl.MESSAGE["messages"]}, COUNT)
        assert (response.status, json.loads(response.body)["error"]["type"]) == (400, "invalid_request_error")
        assert not lab.players["cloud"].asked


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind"),
    [
        (b"{", {}, 400, "invalid_request_error"),
        ({"model": "m", "messages": []}, {}, 400, "invalid_request_error"),
        (rl.MESSAGE, {"x-llmkube-classification": "pii"}, 503, "overloaded_error"),
    ],
)
async def test_refusals_have_the_shape_of_their_dialect(body, headers, status, kind):
    """They are refused before a backend is asked."""
    async with rl.open_lab(rl.config_of(rl.cloud("cloud")), cloud=rl.answer()) as lab:
        response = await lab.ask(body, MESSAGES, headers)
    error = json.loads(response.body)
    assert (response.status, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert not lab.players["cloud"].asked


async def test_a_backends_refusal_has_the_shape_of_its_clients_dialect():
    """The error has the length of the prompt and the limit."""
    long = rl.error(400, "too long", n_prompt_tokens=900, n_ctx=512, type="exceed_context_size_error")
    async with rl.open_lab(rl.MAC, mac=long) as lab:
        response = await lab.ask(rl.MESSAGE, MESSAGES)
    assert response.status == 400
    assert json.loads(response.body)["error"]["message"] == "prompt is too long: 900 tokens > 512 maximum"


async def test_a_missing_key_is_reported_in_the_clients_dialect(tmp_path):
    """Only the head is read; the key comes from the header that this dialect uses."""
    (tmp_path / "team").write_text("k1")
    async with rl.open_lab(rl.config_of(rl.local("mac"), auth=Auth(keys_folder=str(tmp_path))), mac=rl.answer()) as lab:
        refused = await lab.ask(rl.MESSAGE, MESSAGES)
        assert (refused.status, json.loads(refused.body)["type"]) == (401, "error")
        assert (await lab.ask(rl.MESSAGE, MESSAGES, {"x-api-key": "k1"})).status == 200


async def test_a_client_of_ollama_reads_lines():
    """A stream is the default, a whole answer on request; errors have Ollama's shape."""
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    parts = rl.stream(rl.piece("one"), rl.piece(" two", "stop"), usage, rl.DONE)
    async with rl.open_lab(rl.MAC, mac=(parts, rl.answer(), rl.saying(rl.stream(rl.piece("x"), end=b"")))) as lab:
        status, data, whole = await lab.read(rl.ASKED, "/api/chat")
        lines = [json.loads(line) for line in data.splitlines()]
        assert (status, whole, [line["message"]["content"] for line in lines]) == (200, True, ["one", " two", ""])
        assert (lines[-1]["done"], lines[-1]["prompt_eval_count"], lines[-1]["eval_count"]) == (True, 7, 2)
        response = await lab.ask({"model": "m", "prompt": "hi", "stream": False}, "/api/generate")
        assert json.loads(response.body)["response"] == "yes"
        _, data, whole = await lab.read(rl.ASKED, "/api/chat")
        assert (whole, set(json.loads(data.splitlines()[-1]))) == (False, {"error"})


async def test_what_ollama_lists_is_what_can_be_asked_for():
    """The ids are those of `/v1/models`; running engines and capabilities are listed, too."""
    config = rl.config_of(rl.local("mac", capabilities=frozenset({"chat"})), rl.cloud("gpt-5"), rules=(), by_model=True)
    async with rl.open_lab(config, mac=rl.answer(), **{"gpt-5": rl.answer()}) as lab:
        tags = json.loads((await lab.ask(path="/api/tags", method="GET")).body)["models"]
        assert [each["model"] for each in tags] == ["mac", "gpt-5"]
        for each in tags:
            response = await lab.ask(rl.ASKED | {"model": each["model"], "stream": False}, "/api/chat")
            assert response.status == 200
        running = json.loads((await lab.ask(path="/api/ps", method="GET")).body)["models"]
        assert [each["model"] for each in running] == ["mac"]
        assert json.loads((await lab.ask({"model": "mac"}, "/api/show")).body)["capabilities"] == ["completion"]
        assert (await lab.ask({"model": "other"}, "/api/show")).status == 404
        assert (await lab.ask({}, "/api/show")).status == 400
        assert (await lab.ask({"model": "mac"}, "/api/tags")).status == 405
        assert "version" in json.loads((await lab.ask(path="/api/version", method="GET")).body)


BODIES = {
    "/v1/messages": rl.MESSAGE,
    "/v1/responses": {"model": "m", "input": "hi"},
    "/api/generate": {"model": "m", "prompt": "hi"},
    "/v1/responses/input_tokens": {"model": "m", "input": "hi"},
    "/api/embed": {"model": "m", "input": "hi"},
    "/v1/messages/count_tokens": {"model": "m", "messages": rl.MESSAGE["messages"]},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_no_route_is_without_a_permit(path):
    """A sensitive request reaches no provider by any route."""
    async with rl.open_lab(
        rl.config_of(claude(), rl.cloud("cloud")), claude=rl.answer(body=SAID), cloud=rl.answer()
    ) as lab:
        response = await lab.ask(BODIES.get(path, rl.ASKED), path, {"x-llmkube-classification": "pii"})
    assert response.status == 503
    assert not lab.players["claude"].asked
    assert not lab.players["cloud"].asked
    assert lab.audit[0]["path"] == path


async def test_an_error_that_is_a_text_keeps_its_status():
    """The status is kept for clients of other dialects, too."""
    async with rl.open_lab(rl.MAC, mac=rl.answer(400, {"error": "no such thing"})) as lab:
        response = await lab.ask(rl.MESSAGE, MESSAGES)
        lines = await lab.ask(rl.ASKED, "/api/chat")
    assert (response.status, json.loads(response.body)["error"]["message"]) == (400, "no such thing")
    assert (lines.status, json.loads(lines.body)) == (400, {"error": "no such thing"})


# -- what a backend cannot read ----------------------------------------------------------------------------------------

NO_PICTURES = rl.error(
    500, "image input is not supported - hint: you may need the mmproj", code=500, type="server_error"
)
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


async def test_a_picture_for_a_model_that_reads_none_is_400_and_no_fault_of_the_backend():
    """A backend that supports it is asked; without one the client gets the reason, and the circuit stays closed."""
    asked = rl.MESSAGE | {"messages": [{"role": "user", "content": [PICTURE]}]}
    async with rl.open_lab(rl.MAC, mac=(*[NO_PICTURES] * 9, rl.answer())) as lab:
        for _ in range(9):
            response = await lab.ask(asked, MESSAGES)
            body = json.loads(response.body)
            assert (response.status, body["error"]["type"]) == (400, "invalid_request_error")
            assert "image input is not supported" in body["error"]["message"]
        assert (await lab.ask(rl.MESSAGE, MESSAGES)).status == 200
    async with rl.open_lab(rl.config_of(rl.local("mac"), rl.cloud("sees")), mac=NO_PICTURES, sees=rl.answer()) as lab:
        assert (await lab.ask(asked, MESSAGES)).headers.get("x-llmkube-backend") == "sees"


async def test_a_result_that_is_an_error_stays_one():
    """A provider of Messages gets the flag; chat completions have no field for it, and the audit log reports that."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no such city", "is_error": True}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    asked = rl.MESSAGE | {"messages": [*rl.MESSAGE["messages"], *turns]}
    async with rl.open_lab(rl.config_of(claude()), claude=rl.answer(body=SAID)) as lab:
        assert (await lab.ask(asked, MESSAGES)).status == 200
        assert lab.players["claude"].bodies[0]["messages"][-1]["content"] == [result]
    async with rl.open_lab(rl.config_of(rl.cloud("gpt")), gpt=rl.answer()) as lab:
        assert (await lab.ask(asked, MESSAGES)).status == 200
        assert "is_error" not in lab.players["gpt"].bodies[0]["messages"][-1]
        assert lab.audit[0]["droppedFields"] == ["messages[2].is_error"]
