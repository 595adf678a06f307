"""What providers write, through a router, to clients of every dialect."""

import json

import attrs
import pytest

from llmkube.base.event_stream import EventParser
from router.proxy import router_lab as rl
from router.recorded_streams import STREAMS, VARIANTS, is_messages

PATHS = {
    "chat": (rl.CHAT, rl.ASKED),
    "messages": ("/v1/messages", rl.MESSAGE),
    "responses": ("/v1/responses", {"model": "m", "input": "hi"}),
    "ollama": ("/api/chat", rl.ASKED | {"stream": False}),
}
CLAUDE = rl.cloud("gpt", provider="anthropic", dialect="anthropic")


BYTEWISE = {"ids in CRLF", "CR without the last newline"}


@attrs.define
class Said:
    """An answer as a client reads it."""

    text: str = ""
    thoughts: str = ""
    calls: list = attrs.field(factory=list)
    reason: str = ""
    models: set = attrs.field(factory=set)


def said_by_chat(chat):
    (choice,) = chat["choices"]
    message = choice["message"]
    calls = [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in message["tool_calls"]]
    return Said(message["content"], message["reasoning_content"], calls, choice["finish_reason"], {chat["model"]})


def said_by_message(message):
    said = Said(reason=message["stop_reason"], models={message["model"]})
    for block in message["content"]:
        said.text += block.get("text", "")
        said.thoughts += block.get("thinking", "")
        if block["type"] == "tool_use":
            said.calls.append((block["id"], block["name"], json.dumps(block["input"])))
    return said


def said_by_response(response):
    said = Said(models={response["model"]}, reason=response["status"])
    for item in response["output"]:
        if item["type"] == "function_call":
            said.calls.append((item["call_id"], item["name"], item["arguments"]))
        for part in item.get("content", ()):
            if item["type"] == "reasoning":
                said.thoughts += part["text"]
            else:
                said.text += part["text"]
    return said


def said_by_line(line):
    message = line["message"]
    calls = [("", each["function"]["name"], json.dumps(each["function"]["arguments"])) for each in
             message.get("tool_calls", ())]  # fmt: skip
    return Said(message["content"], message.get("thinking", ""), calls, line["done_reason"], {line["model"]})


def message_of(chunks):
    """Add up the chunks of a chat completion, as its clients do."""
    message, calls, reason = {"content": "", "reasoning_content": ""}, {}, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            for name in message:
                message[name] += choice["delta"].get(name) or ""
            for piece in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {"id": "", "function": {"name": "", "arguments": ""}})
                call["id"] = piece.get("id") or call["id"]
                for name in ("name", "arguments"):
                    call["function"][name] += piece["function"].get(name) or ""
    assert sorted(calls) == list(range(len(calls)))
    turn = message | {"tool_calls": [calls[at] for at in sorted(calls)]}
    (model,) = {chunk["model"] for chunk in chunks}
    return {"model": model, "choices": [{"message": turn, "finish_reason": reason}]}


def block_message(events):
    """Add up the events of a message, as Anthropic's clients do."""
    message, written = {"content": []}, ""
    for event in events:
        if event["type"] == "message_start":
            message |= event["message"]
        elif event["type"] == "content_block_start":
            message["content"].append(dict(event["content_block"]))
            written = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            written += delta.get("partial_json", "")
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    message["content"][-1][name] += delta[name]
        elif event["type"] == "content_block_stop" and written:
            message["content"][-1]["input"] = json.loads(written)
        elif event["type"] == "message_delta":
            message |= event["delta"]
    return message


def lines_message(lines):
    text, thoughts = ("".join(each["message"].get(name, "") for each in lines) for name in ("content", "thinking"))
    return lines[-1] | {"message": lines[-1]["message"] | {"content": text, "thinking": thoughts}}


def events_of(data):
    """Parse a stream as strictly as the openai package: after an `id` or a `retry`, every empty line is an event."""
    assert not any(line.startswith((b"id", b"retry")) for line in data.split(b"\n"))
    parser = EventParser()
    found = [each.data for each in parser.feed(data) if each.data is not None]
    return [json.loads(each) for each in found if each != b"[DONE]"]


def read(dialect, data):
    """Return what a client of a dialect reads in a stream."""
    if dialect == "ollama":
        return said_by_line(lines_message([json.loads(line) for line in data.splitlines()]))
    events = events_of(data)
    if dialect == "chat":
        assert data.endswith(rl.DONE)
        return said_by_chat(message_of(events))
    return said_by_message(block_message(events)) if dialect == "messages" else said_by_response(events[-1]["response"])


async def ask(dialect, script, backend=None, **more):
    """Return what a client of a dialect reads in a whole answer."""
    path, body = PATHS[dialect]
    async with rl.open_lab(rl.config_of(backend or rl.cloud("gpt")), gpt=script) as lab:
        answer = await lab.ask(body | more, path)
    assert answer.status == 200
    found = json.loads(answer.body)
    if dialect == "chat":
        turn = {"reasoning_content": "", "tool_calls": []} | found["choices"][0]["message"]
        return said_by_chat(found | {"choices": [found["choices"][0] | {"message": turn}]})
    return {"messages": said_by_message, "responses": said_by_response, "ollama": said_by_line}[dialect](found)


async def stream(dialect, script, backend=None):
    """Return the bytes of a stream that a client of a dialect gets."""
    path, body = PATHS[dialect]
    async with rl.open_lab(rl.config_of(backend or rl.cloud("gpt")), gpt=script) as lab:
        status, data, clean = await lab.read(body | {"stream": True}, path)
        assert lab.audit[0]["answeredModel"] in ("provider/id-7", "gpt", "")
    assert (status, clean) == (200, True), data
    return data


# -- C16: the format of streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", STREAMS)
async def test_a_client_reads_the_same_however_a_provider_writes_it(name, dialect):
    """Every way to write a stream, some of them byte by byte; the client gets no field that concerns reconnecting."""
    backend = CLAUDE if is_messages(name) else None
    expected = read(dialect, await stream(dialect, rl.stream(STREAMS[name]), backend))
    assert expected.models == {"m"}
    assert expected.text or expected.calls
    for variant, write in VARIANTS.items():
        data = write(STREAMS[name])
        pieces = [bytes([each]) for each in data] if variant in BYTEWISE else [data]
        assert read(dialect, await stream(dialect, rl.stream(*pieces), backend)) == expected


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_our_comment_has_no_empty_line_of_its_own(dialect, monkeypatch):
    """The openai package dispatches an event at every empty line once it has seen an ID."""
    monkeypatch.setattr("router.proxy.router_lab.without_times", lambda data: data)
    path, body = PATHS[dialect]
    async with rl.open_lab(rl.MAC, mac=rl.stream(b"id: 7\nretry: 3\n" + rl.piece("one", "stop"), rl.DONE)) as lab:
        _, data, _ = await lab.read(body | {"stream": True}, path)
    assert b": server-timing total" in data
    assert not [block for block in data.split(b"\n\n")[:-1] if b"data: " not in block]
    assert b"id: 7" not in data
    assert b"retry" not in data


async def test_a_stream_that_ends_in_an_event_is_cut_short():
    """A missing newline is completed, missing data are not."""
    half = rl.piece("two", "stop")[:-9]
    async with rl.open_lab(rl.MAC, mac=rl.stream(rl.piece("one"), half)) as lab:
        _, data, clean = await lab.read()
    assert (clean, b"stream_cut_short" in data, data.startswith(rl.piece("one"))) == (False, True, True)


# -- C17, C20: tool calls ----------------------------------------------------------------------------------------------


def piece(arguments, name="", **marks):
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return marks | {"function": function}


def calling(*events, finish="tool_calls"):
    """Return a stream with these tool calls: a list of pieces for each event."""
    choices = [{"index": 0, "delta": {"tool_calls": each}, "finish_reason": None} for each in events]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    bodies = [{"id": "c/1", "object": "chat.completion.chunk", "model": "gpt", "choices": [one]} for one in choices]
    return rl.stream(*[b"data: %b\n\n" % json.dumps(each).encode() for each in bodies], rl.DONE)


A, B = ("a", "f", {"x": 1}), ("b", "g", {"y": 2})
X, Y = '{"x": 1}', '{"y": 2}'
MARKS = {
    "no index": calling([piece(X, "f", id="a"), piece(Y, "g", id="b")]),
    "no index, in pieces": calling([piece('{"x":', "f", id="a")], [piece(" 1}")], [piece('{"y":', "g", id="b")],
                                   [piece(" 2}")]),
    "all 0": calling([piece(X, "f", id="a", index=0)], [piece(Y, "g", id="b", index=0)]),
    "all 0, in pieces": calling([piece("", "f", id="a", index=0)], [piece(X, index=0)],
                                [piece("", "g", id="b", index=0)], [piece(Y, index=0, id="")]),
    "all null": calling([piece(X, "f", id="a", index=None)], [piece(Y, "g", id="b", index=None)]),
    "from 1": calling([piece(X, "f", id="a", index=1)], [piece(Y, "g", id="b", index=2)]),
    "texts": calling([piece(X, "f", id="a", index="one")], [piece(Y, "g", id="b", index="two")]),
    "id and name in every piece": calling([piece('{"x":', "f", id="a", index=0)], [piece(" 1}", "f", id="a", index=0)],
                                          [piece(Y, "g", id="b", index=0)]),
    "name in every piece": calling([piece("", "f", id="a", index=0)], [piece('{"x":', "f", index=0)],
                                   [piece(" 1}", "f", index=0)], [piece(Y, "g", id="b", index=1)]),
    "an id that comes late": calling([piece("", "f", index=0)], [piece(X, id="a", index=0)],
                                     [piece(Y, "g", id="b", index=1)]),
    "objects": calling([piece({"x": 1}, "f", id="a", index=0)], [piece({"y": 2}, "g", id="b", index=1)]),
    "no ids": calling([piece(X, "f", index=0)], [piece(Y, "g", index=0)]),
    "no marks": calling([piece(X, "f"), piece(Y, "g")]),
    "one id": calling([piece(X, "f", id="a", index=0)], [piece(Y, "g", id="a", index=1)]),
    "reason stop": calling([piece(X, "f", id="a", index=0)], [piece(Y, "g", id="b", index=1)], finish="stop"),
    "reason STOP": calling([piece(X, "f", id="a", index=0)], [piece(Y, "g", id="b", index=1)], finish="STOP"),
}  # fmt: skip
WITHOUT_IDS = {"no ids", "no marks", "one id", "an id that comes late"}
TOOL_REASONS = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed", "ollama": "stop"}


def check_calls(said, dialect, expected=(A, B)):
    assert [(name, json.loads(arguments)) for _, name, arguments in said.calls] == [each[1:] for each in expected]
    assert said.reason == TOOL_REASONS[dialect]
    ids = [call_id for call_id, *_ in said.calls]
    if dialect != "ollama":
        assert len(set(ids)) == len(ids)
        assert all(ids)


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", MARKS)
async def test_parallel_calls_are_never_merged(name, dialect):
    """A new ID begins a new call, however the provider numbers them; C18: the reason is that of tool calls."""
    said = read(dialect, await stream(dialect, MARKS[name]))
    check_calls(said, dialect)
    if dialect != "ollama" and name not in WITHOUT_IDS:
        assert [each[0] for each in said.calls] == ["a", "b"]


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("reason", ["stop", "tool_calls", "eos"])
async def test_whole_parallel_calls_keep_their_marks(dialect, reason):
    """An ID that is missing or was given twice is replaced, arguments become a string."""
    calls = [piece(X, "f", id="a"), piece({"y": 2}, "g", id="a", index=0), piece("", "h"), piece(None, "i", id=None)]
    choice = {"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": reason}
    said = await ask(dialect, rl.answer(body={"id": "c 1", "model": "gpt", "choices": [choice]}))
    check_calls(said, dialect, (A, B, ("", "h", {}), ("", "i", {})))
    assert all(json.loads(arguments) is not None for *_, arguments in said.calls)


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize(
    "script",
    [
        calling([piece("", "f", id="a", index=0)], [piece("", "g", id="b", index=1)], [piece('{"y": 2}', index=1)]),
        calling([piece(None, "f", id="a", index=0)], [piece({"y": 2}, "g", id="b", index=1)]),
        calling([{"id": "a", "index": 0, "function": {"name": "f"}}], [piece(Y, "g", id="b", index=0)]),
    ],
)
async def test_a_call_without_arguments_gets_an_empty_object(dialect, script):
    """Clients parse it as JSON."""
    check_calls(read(dialect, await stream(dialect, script)), dialect, (("a", "f", {}), B))


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("given", [{}, {"x": 1}])
@pytest.mark.parametrize("deltas", [[], [""]])
async def test_a_call_of_anthropic_without_deltas_has_the_input_of_its_block(dialect, given, deltas):
    """Its own streams have no delta for a call without arguments; others put the input into the start of the block."""
    start = {"type": "tool_use", "id": "a", "name": "f", "input": given}
    events = [{"type": "message_start", "message": {"id": "m", "model": "opus", "usage": {"input_tokens": 1}}}]
    events.append({"type": "content_block_start", "index": 0, "content_block": start})
    events += [{"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": each}}
               for each in deltas]  # fmt: skip
    events += [{"type": "content_block_stop", "index": 0}]
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}]
    events += [{"type": "message_stop"}]
    script = rl.stream(*[f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events])
    path, body = PATHS[dialect]
    async with rl.open_lab(rl.config_of(CLAUDE), gpt=script) as lab:
        _, data, _ = await lab.read(body | {"stream": True}, path)
    check_calls(read(dialect, data), dialect, (("a", "f", given),))


# -- C18, C19, C21: reasons, thoughts and texts ------------------------------------------------------------------------

PARTS = [{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "b"}]
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}
MESSAGES = {
    "reasoning_content": {"content": "ab", "reasoning_content": "hm"},
    "reasoning": {"content": "ab", "reasoning": "hm"},
    "both": {"content": "ab", "reasoning": "hm", "reasoning_content": "hm"},
    "reasoning_text": {"content": "ab", "reasoning_text": "hm"},
    "parts": {"content": [THINKING, *PARTS]},
    "thinking is a text": {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "output_text", "text": "ab"}]},
    "texts": {"content": ["a", "b"], "reasoning": [{"type": "text", "text": "hm"}]},
    "one part": {"content": {"type": "text", "text": "ab"}, "reasoning": "hm"},
}


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", MESSAGES)
async def test_thoughts_and_texts_arrive_as_such(name, dialect):
    """This is so in whole answers and in streams."""
    whole = {"id": "c", "model": "gpt", "choices": [{"index": 0, "message": MESSAGES[name], "finish_reason": "stop"}]}
    said = await ask(dialect, rl.answer(body=whole))
    assert (said.text, said.thoughts, said.models) == ("ab", "hm", {"m"})
    chunk = {"model": "gpt", "choices": [{"index": 0, "delta": MESSAGES[name], "finish_reason": None}]}
    script = rl.stream(b"data: %b\n\n" % json.dumps(chunk).encode(), rl.piece("", "stop"), rl.DONE)
    said = read(dialect, await stream(dialect, script))
    assert (said.text, said.thoughts, said.models) == ("ab", "hm", {"m"})


@pytest.mark.parametrize(
    ("choice", "reason", "sequence"),
    [
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "matched_stop": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "stop_reason": 151645}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": None}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": "end_turn"}, "end_turn", None),
        ({"finish_reason": "length", "stop_reason": "END"}, "max_tokens", None),
        ({"finish_reason": "MAX_TOKENS"}, "max_tokens", None),
        ({"finish_reason": "eos_token"}, "end_turn", None),
        ({"finish_reason": "SAFETY"}, "refusal", None),
    ],
)
async def test_an_answer_of_messages_has_the_reason_of_its_end(choice, reason, sequence):
    """A stop sequence that the engine reports is the client's."""
    whole = {"choices": [{"index": 0, "message": {"content": "a"}} | choice]}
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}} | choice]}
    script = rl.stream(b"data: %b\n\n" % json.dumps(chunk).encode(), rl.DONE)
    async with rl.open_lab(rl.config_of(rl.cloud("gpt")), gpt=(rl.answer(body=whole), script)) as lab:
        message = json.loads((await lab.ask(rl.MESSAGE, "/v1/messages")).body)
        _, data, _ = await lab.read(rl.MESSAGE | {"stream": True}, "/v1/messages")
    delta = rl.events_of(data)[-2]["delta"]
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert (delta["stop_reason"], delta["stop_sequence"]) == (reason, sequence)
    assert message["content"] == [{"type": "text", "text": "a"}]


async def test_a_stop_sequence_of_anthropic_comes_back():
    """It passes through the form of chat completions, whole and as a stream."""
    end = {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    whole = {"type": "message", "model": "opus", "content": [{"type": "text", "text": "a", "citations": None}]} | end
    events = [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
              {"type": "message_delta", "delta": end}, {"type": "message_stop"}]  # fmt: skip
    script = rl.stream(*[b"data: %b\n\n" % json.dumps(each).encode() for each in events])
    async with rl.open_lab(rl.config_of(CLAUDE), gpt=(rl.answer(body=whole), script)) as lab:
        message = json.loads((await lab.ask(rl.MESSAGE, "/v1/messages")).body)
        _, data, _ = await lab.read(rl.MESSAGE | {"stream": True}, "/v1/messages")
    assert {name: message[name] for name in end} == rl.events_of(data)[-2]["delta"] == end
    assert message["content"] == [{"type": "text", "text": "a"}]


# -- C22: names of models ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        (rl.CHAT, rl.ASKED, rl.ANSWER | {"model": "provider/id-7"}),
        ("/v1/completions", {"prompt": "x"}, {"model": "gpt-0613", "choices": [{"text": "a", "finish_reason": "eos"}]}),
        ("/v1/embeddings", {"input": "x"}, {"model": "embed-3", "data": [{"embedding": [0.5, 1e-9], "index": 0}]}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, {"model": "rank-2", "results": [{"index": 0}]}),
    ],
)
async def test_an_answer_has_the_name_in_the_request(path, body, answer):
    """Nothing else of it changes; the audit log has the provider's name."""
    async with rl.open_lab(rl.config_of(rl.cloud("gpt")), gpt=rl.answer(body=answer)) as lab:
        found = json.loads((await lab.ask(body | {"model": "m"}, path)).body)
    if "choices" in answer and path != rl.CHAT:
        answer["choices"][0]["finish_reason"] = "stop"
    assert found == answer | {"model": "m"}
    assert lab.audit[0]["answeredModel"] == answer["model"]


# -- C23: errors -------------------------------------------------------------------------------------------------------

WORDS = "temperature must be at most 1"
ERRORS = {
    "openai": {"error": {"message": WORDS, "type": "invalid_request_error", "code": None}},
    "a text": {"error": WORDS},
    "vllm": {"object": "error", "message": WORDS, "type": "BadRequestError", "param": None, "code": 400},
    "gemini": [{"error": {"code": 400, "message": WORDS, "status": "INVALID_ARGUMENT"}}],
    "a detail": {"detail": WORDS},
    "invalid fields": {"detail": [{"type": "missing", "loc": ["body", "x"], "msg": WORDS}]},
    "nested": {"object": "error", "message": {"detail": [{"loc": ["body"], "msg": WORDS}]}, "type": "invalid"},
    "message": {"message": WORDS, "request_id": "7"},
    "errors": {"success": False, "errors": [{"code": 7, "message": WORDS}]},
    "name and sentence": {"statusCode": 400, "error": "Bad Request", "message": WORDS},
    "problem": {"type": "about:blank", "title": "Bad Request", "detail": WORDS, "status": 400},
    "plain": WORDS.encode(),
    "a json text": WORDS,
    "an event": b'id:1\nevent:error\ndata:{"code":"InvalidParameter","message":"%b"}\n\n' % WORDS.encode(),
}


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", ERRORS)
async def test_a_refusal_has_the_words_of_the_provider(name, dialect):
    """Its shape is that of the client's dialect, for whole answers and streams, from providers of both dialects."""
    path, body = PATHS[dialect]
    data = ERRORS[name] if isinstance(ERRORS[name], bytes) else json.dumps(ERRORS[name]).encode()
    for backend in (rl.cloud("gpt"), CLAUDE):
        async with rl.open_lab(rl.config_of(backend), gpt=rl.answer(400, data)) as lab:
            for streams in (False, True):
                answer = await lab.ask(body | {"stream": streams}, path)
                error = json.loads(answer.body)["error"]
                message = error if dialect == "ollama" else error["message"]
                assert (answer.status, WORDS in message, "{" in message) == (400, True, False)


@pytest.mark.parametrize("event", [
    b'data: {"object":"error","message":"%b","code":400}\n\n',
    b'data: [{"error":{"message":"%b","code":400}}]\n\n',
    b'event: error\ndata: {"message":"%b","code":400}\n\n',
    b'error: {"message":"%b","code":400}\n\n',
])  # fmt: skip
async def test_an_error_in_a_stream_has_the_words_of_the_provider(event, autojump_clock):
    """Before the first content it is a refusal, later it ends the stream."""
    event %= WORDS.encode()
    later = rl.saying(rl.stream(rl.piece("one"), end=b""), rl.chunk(event), seconds=1)
    async with rl.open_lab(rl.MAC, mac=(rl.stream(event), later)) as lab:
        answer = await lab.ask(rl.STREAMED)
        _, data, clean = await lab.read()
    assert (answer.status, WORDS in json.loads(answer.body)["error"]["message"]) == (400, True)
    assert (clean, rl.events_of(data)[-1]["error"]["message"]) == (False, WORDS)


@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b"{}", b"[]", b"null"])
async def test_a_refusal_without_words_says_so(body):
    """A page for browsers is not passed on."""
    async with rl.open_lab(rl.MAC, mac=rl.answer(400, body)) as lab:
        error = json.loads((await lab.ask()).body)["error"]
    assert error["message"] == "the backend returned HTTP 400 without a readable error"


async def test_words_have_no_addresses():
    """An address of the local network is not shown in any shape."""
    async with rl.open_lab(rl.MAC, mac=rl.answer(400, b"no route to http://10.0.0.7:8000/v1")) as lab:
        assert json.loads((await lab.ask()).body)["error"]["message"] == "no route to (an address)"
