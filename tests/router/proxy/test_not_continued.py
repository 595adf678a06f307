"""An answer that no other engine can continue ends with an error event, in every dialect and for every death.

The table has a row for each dialect and kind: a property of the request or of the answer.
"""

import json

import pytest

from lengths import sample_rows
from llmkube.router.continuation import joined_answer
from router.proxy import router_lab as rl

TWINS = (rl.local("a", model_digest="x", first_byte_seconds=5), rl.local("b", model_digest="x", first_byte_seconds=5))
TURNS = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
PROMPT = {"model": "m", "prompt": "hi", "stream": True}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE = "/v1/messages", "/api/chat", "/api/generate"

PLAIN = {
    CHAT: TURNS,
    COMPLETIONS: PROMPT,
    RESPONSES: {"model": "m", "input": "hi", "stream": True},
    MESSAGES: TURNS | {"max_tokens": 99},
    OLLAMA_CHAT: TURNS,
    OLLAMA_GENERATE: PROMPT,
}
"""A request of each dialect with a text answer."""

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "f", "parameters": SCHEMA}
AS_TOOL = {"tools": [{"type": "function", "function": TOOL}]}
AS_FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}

TOOLS = {
    CHAT: AS_TOOL,
    RESPONSES: {"tools": [{"type": "function", **TOOL}]},
    MESSAGES: {"tools": [{"name": "f", "input_schema": SCHEMA}]},
    OLLAMA_CHAT: AS_TOOL,
}
GRAMMARS = {
    CHAT: AS_FORMAT,
    COMPLETIONS: {"grammar": 'root ::= "a"*'},
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    OLLAMA_CHAT: {"format": SCHEMA},
    OLLAMA_GENERATE: {"format": "json"},
}
PROBABILITIES = {CHAT: {"logprobs": True, "top_logprobs": 2}, COMPLETIONS: {"logprobs": 2}}

NAMES = {"id": "x", "created": 1, "model": "m.gguf", "object": "chat.completion.chunk", "system_fingerprint": "b1-x"}


def event(delta=None, finish=None, **more):
    """Return one event of a chat."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish} | more
    return b"data: %b\n\n" % json.dumps(NAMES | {"choices": [choice]}).encode()


def text_event(text, finish=None, **more):
    """Return one event of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": finish} | more
    return b"data: %b\n\n" % json.dumps(NAMES | {"choices": [choice]}).encode()


LOGPROBS = {"logprobs": {"content": [{"token": "one", "logprob": -0.5}]}}
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
MORE = {"index": 0, "function": {"arguments": '{"a": "b"}'}}
ROLE, TEXT = event({"role": "assistant", "content": None}), (event({"content": "one"}), event({"content": " two"}))
END = event(finish="stop")

TEXTS = (ROLE, *TEXT, END)
CALLS = (ROLE, event({"tool_calls": [CALL]}), event({"tool_calls": [MORE]}), event(finish="tool_calls"))
LATE_CALLS = (ROLE, *TEXT, *CALLS[1:])
THOUGHTS = (ROLE, event({"reasoning_content": "hm"}), event({"reasoning_content": " hm"}), *TEXT, END)
LIKELY = (ROLE, event({"content": "one"}, **LOGPROBS), event({"content": " two"}, **LOGPROBS), END)
COMPLETED = (text_event("one"), text_event(" two"), text_event("", "stop"))
LIKELY_COMPLETED = (text_event("one", **LOGPROBS), text_event(" two", **LOGPROBS), text_event("", "stop"))

CHATS = tuple(path for path in PLAIN if path != COMPLETIONS)


def _rows():
    """Yield dialect, kind, request, the first engine's events, and the event from which it cannot be continued."""
    for path, more in TOOLS.items():
        yield path, "tools are offered", PLAIN[path] | more, TEXTS, 1
        yield path, "a tool is called", PLAIN[path] | more, CALLS, 1
        yield path, "a tool is called after text", PLAIN[path] | more, LATE_CALLS, 1
        yield path, "a tool is called that none has offered", PLAIN[path], LATE_CALLS, 4
    for path in CHATS:
        yield path, "thoughts, and text after them", PLAIN[path], THOUGHTS, 2
    for path, more in GRAMMARS.items():
        yield path, "a grammar", PLAIN[path] | more, COMPLETED if path == COMPLETIONS else TEXTS, 1
    for path, more in PROBABILITIES.items():
        likely = LIKELY_COMPLETED if path == COMPLETIONS else LIKELY
        yield path, "logprobs", PLAIN[path] | more, likely, 1
        yield path, "logprobs that none has asked for", PLAIN[path], likely, 1 if path == COMPLETIONS else 2


ROWS = {f"{path}: {kind}": (path, *row) for path, kind, *row in _rows()}
DEATHS = ("broken", "in an event", "cut", "silent")


def counted(events):
    """Return the events with token counts, as the router requests: without them, a limit prevents a continuation."""
    for number, each in enumerate(events):
        timings = {"cache_n": 0, "prompt_n": 3, "predicted_n": number, "prompt_ms": 1.0, "predicted_ms": 1.0}
        yield b"data: %b\n\n" % json.dumps(json.loads(each[6:]) | {"timings": timings}).encode()


def engine(events, death="", written=None):
    """Return an engine that dies after this many events; with None it lives."""

    async def play(connection):
        data = rl.SSE + b"".join(map(rl.chunk, (*counted(events), rl.DONE)[:written]))
        await connection.send_all(data)
        if death == "in an event":
            await connection.send_all(rl.chunk(b'data: {"choices": [{"index": 0, "del'))
        elif death == "silent":
            await rl.until_gone(connection)
        if not death or death == "cut":
            await connection.send_all(b"0\r\n\r\n")

    return rl.Player((play,))


async def answered(path, body, first, second):
    players = {"a": first, "b": second}
    async with rl.open_lab(rl.config_of(*TWINS), players) as lab:
        status, data, clean = await lab.read(body, path)
    assert status == 200
    (line,) = lab.audit
    return data.decode(), clean, line, len(players["b"].asked)


def is_error(path, data):
    """Return whether a stream ends with an error in its dialect, and without a sign of success."""
    blocks = data.strip().split("\n" if path.startswith("/api/") else "\n\n")
    if blocks[-1] == "data: [DONE]":
        return False
    last = json.loads(blocks[-1].rpartition("data: ")[2])
    ends = {
        CHAT: ("[DONE]",),
        COMPLETIONS: ("[DONE]",),
        RESPONSES: ("response.completed", "response.incomplete"),
        MESSAGES: ("message_stop", "message_delta"),
        OLLAMA_CHAT: ('"done":true',),
        OLLAMA_GENERATE: ('"done":true',),
    }[path]
    is_reported = bool(last.get("error"))
    if path in (RESPONSES, MESSAGES):
        is_reported = is_reported and last["type"] == "error" and bool(last["error"]["message"])
    if path == RESPONSES:
        is_reported = is_reported and "response.failed" in data
    return is_reported and not any(each in data for each in ends)


async def _play(name):
    """Kill the engine of one row after each of its events, in each way."""
    path, body, events, first = ROWS[name]
    for written in range(first, len(events)):
        for death in DEATHS:
            data, clean, line, asked = await answered(path, body, engine(events, death, written), engine(TEXTS))
            where = f"{death} after {written} events: {data}"
            assert (clean, is_error(path, data)) == (False, True), where
            assert (asked, line["continuations"]) == (0, 0), where
            assert line["notContinued"], where
            assert line["outcome"].startswith("stream_"), where


@pytest.mark.parametrize("name", sample_rows(ROWS))
async def test_what_cannot_be_continued_ends_with_an_error(name, autojump_clock):
    """The second engine, which would continue any text, is never asked; the audit log has the reason."""
    await _play(name)


@pytest.mark.parametrize("name", sample_rows(ROWS))
async def test_an_engine_that_lives_ends_its_answer(name):
    """The complete scripts have a clean end, and no error."""
    path, body, events, _ = ROWS[name]
    data, clean, line, _ = await answered(path, body, engine(events), engine(()))
    assert (clean, is_error(path, data), line["outcome"], "error" in line["notContinued"]) == (True, False, "ok", False)


@pytest.mark.parametrize("path", PLAIN)
async def test_plain_text_is_continued(path, autojump_clock):
    """This is so in every dialect: each row of the table differs from it."""
    events = COMPLETED if path == COMPLETIONS else TEXTS
    data, clean, line, asked = await answered(path, PLAIN[path], engine(events, "broken", 2), engine(events))
    assert (clean, asked, line["continuations"], line["outcome"]) == (True, 1, 1, "ok")
    assert not is_error(path, data)


@pytest.mark.parametrize("path", PLAIN)
@pytest.mark.parametrize("kind", ["calls", "thoughts", "logprobs"])
async def test_a_continuation_of_another_kind_ends_with_an_error(path, kind, autojump_clock):
    """The client has text; a tool call, thoughts or logprobs of the second engine do not continue it."""
    events = COMPLETED if path == COMPLETIONS else TEXTS
    other = {"calls": CALLS, "thoughts": THOUGHTS, "logprobs": LIKELY}[kind]
    if path == COMPLETIONS:
        other = LIKELY_COMPLETED
    data, clean, line, asked = await answered(path, PLAIN[path], engine(events, "broken", 2), engine(other))
    assert (clean, is_error(path, data), asked, line["outcome"]) == (False, True, 1, "stream_not_joined")


# -- deliberate bugs --------------------------------------------------------------------------------------------------

BY_REQUEST = [name for name in ROWS if name.endswith(("are offered", "a grammar", "chat/completions: logprobs"))]
BY_ANSWER = [name for name in ROWS if name.endswith(("after them", "has offered", "asked for"))]


def _all_goes_on(patch):
    patch.setattr(joined_answer, "obstacle", lambda path, body: "")


def _all_is_text(patch):
    patch.setattr(joined_answer, "choice_of", lambda event: (event["choices"][0] if event.get("choices") else None, ""))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "bug"), [(name, _all_goes_on) for name in BY_REQUEST] + [(name, _all_is_text) for name in BY_ANSWER]
)
async def test_each_row_catches_a_wrong_continuation(name, bug, monkeypatch, autojump_clock):
    """A bug that allows each continuation fails in each row that it concerns."""
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        await _play(name)
