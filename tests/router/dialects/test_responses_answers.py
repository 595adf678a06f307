"""Answers in the Responses API: whole ones, and streams with the same content."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.dialects import responses_answers
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.responses_answers import ResponsesTranslator
from llmkube.router.dialects.responses_client import read_responses
from router.dialects.drawn_chats import chat_answers, chunks_of

CALLS = [
    {"id": f"c{at}", "type": "function", "function": {"name": f"f{at}", "arguments": f'{{"a":{at}}}'}}
    for at in range(2)
]
MESSAGE = {"role": "assistant", "content": "hello", "refusal": None, "reasoning_content": "hm", "tool_calls": CALLS}
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
ANSWER = {"id": "x", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}], "usage": USAGE}


def limited(reason="length", **message):
    turn = {"role": "assistant", "content": "a", "refusal": None} | message
    return {"id": "x", "choices": [{"index": 0, "message": turn, "finish_reason": reason}], "usage": USAGE}


def new(kept=None, **more):
    """Return a translator of answers; those to store are added to a list."""
    translator = read_responses({"model": "m", "input": "hi"} | more).translator
    translator.response_id, translator.now = "resp_1", lambda: 7
    if kept is not None:
        translator.save = lambda response, output: bool(kept.append((response, output))) or True
    return translator


def events_of(data):
    found = []
    for block in data.split(b"\n\n")[:-1]:
        name, _, line = block.partition(b"\n")
        found.append(json.loads(line.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def streamed(answer, cut=3, translator=None):
    """Return the stream events of an answer."""
    translator, chunks = translator or new(), chunks_of(answer, cut)
    if refusal := answer["choices"][0]["message"].get("refusal"):
        chunks[1:1] = [{"choices": [{"index": 0, "delta": {"refusal": piece}}]} for piece in refusal]
    return events_of(b"".join(map(translator.event, chunks)) + translator.end())


def rebuilt(events):
    """Return what a client has at the end of a stream, from deltas alone; check the order of events."""
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    items, is_open, parts = [], set(), set()
    for event in events[2:-1]:
        kind, at = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert at == len(items)
            assert not parts, "a text is not ended where something else begins"
            items.append(event["item"])
            is_open.add(at)
            continue
        assert at in is_open
        item = items[at]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "response.content_part.added":
            item["content"].append(event["part"])
            parts.add(at)
        elif kind == "response.function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        elif kind.endswith(".delta"):
            assert at in parts
            assert event["content_index"] == 0
            field = "refusal" if "refusal" in kind else "text"
            assert kind == f"response.{item['content'][0]['type']}.delta"
            item["content"][0][field] += event["delta"]
        elif kind == "response.content_part.done":
            assert event["part"] == item["content"][0]
            parts.remove(at)
        elif kind == "response.output_item.done":
            assert at not in parts
            assert {name: each for name, each in event["item"].items() if name != "status"} == {
                name: each for name, each in item.items() if name != "status"
            }
            items[at] = event["item"]
            is_open.remove(at)
        else:
            assert kind.endswith(".done")
            assert event.get("text", event.get("refusal")) == item["content"][0].get("text", event.get("refusal"))
    assert not is_open
    return items


def play():
    """Translate answers whole and as streams; check that both equal the chat completion."""
    for answer in (ANSWER, limited(), limited("content_filter"), limited("stop", content=None, refusal="no")):
        complete, events = new().complete(200, answer), streamed(answer)
        last = events[-1]
        assert last["response"] == complete
        assert last["type"] == f"response.{complete['status']}"
        assert rebuilt(events) == complete["output"]
    assert complete["output"][0]["content"] == [{"type": "refusal", "refusal": "no"}]
    complete = new().complete(200, ANSWER)
    assert [item["type"] for item in complete["output"]] == ["reasoning", "message", "function_call", "function_call"]
    thought, message, *calls = complete["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"] == [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]
    assert [(each["call_id"], each["name"], each["arguments"]) for each in calls] == [
        ("c0", "f0", '{"a":0}'),
        ("c1", "f1", '{"a":1}'),
    ]
    assert len({item["id"] for item in complete["output"]}) == 4
    assert complete["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 13,
    }
    assert (complete["status"], complete["completed_at"], complete["incomplete_details"]) == ("completed", 7, None)
    for reason, name in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
        cut = new().complete(200, limited(reason))
        assert (cut["status"], cut["incomplete_details"], cut["completed_at"]) == ("incomplete", {"reason": name}, None)
        assert cut["output"][-1]["status"] == "incomplete"
    kept = []
    response = streamed(ANSWER, translator=new(kept))[-1]["response"]
    assert kept == [(response, response["output"])]
    assert response["store"] is True
    assert new(kept, store=False).complete(200, ANSWER)["store"] is False
    assert len(kept) == 1


def test_a_stream_equals_a_whole_answer():
    """Events are in the API's order, numbered from 0; both answers are stored once at their end, unless disabled."""
    play()


@given(chat_answers(), st.integers(0, 9))
def test_whatever_is_answered_comes_whole_and_as_a_stream(answer, cut):
    """Pieces may be cut anywhere."""
    complete, events = new().complete(200, answer), streamed(answer, cut)
    assert rebuilt(events) == complete["output"] == events[-1]["response"]["output"]
    assert complete["usage"] == events[-1]["response"]["usage"]


def test_calls_may_be_interleaved():
    """Interleaved pieces of two calls, and a text after them, become separate items."""
    translator = new()

    def delta(**fields):
        return translator.event({"choices": [{"index": 0, "delta": fields}]})

    def called(index, arguments, **named):
        return delta(tool_calls=[{"index": index, "function": {"arguments": arguments} | named} | {"id": f"c{index}"}])

    data = called(0, "[", name="f") + called(1, "{", name="g") + called(0, "]") + delta(content="x") + called(1, "}")
    items = rebuilt(events_of(data + translator.end()))
    assert [item.get("arguments") for item in items] == ["[]", "{}", None]


def test_a_call_without_arguments_has_an_empty_object():
    """Clients parse it as JSON. A call without an id gets one."""
    answer = limited("tool_calls", content=None, tool_calls=[{"function": {"name": "f", "arguments": ""}}])
    complete = new().complete(200, answer)
    assert complete["output"][0]["arguments"] == "{}"
    assert complete["output"][0]["call_id"]
    assert new().complete(200, limited(content=None, tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}]))[
        "output"
    ][0]["arguments"] == ('{"a":1}')


def test_an_error_has_openais_shape():
    """The error has the lengths of a prompt that is too long, whatever other fields the backend sends."""
    error = {
        "error": {"message": "too long", "type": "exceed", "code": 400, "n_prompt_tokens": 9, "n_ctx": 4, "url": "x"}
    }
    found = new().complete(400, error)["error"]
    assert found == {
        "message": "too long (the prompt needs 9 tokens, 4 are available)",
        "type": "exceed",
        "param": None,
        "code": "400",
    }
    assert new().complete(500, {"error": "no"})["error"] == {
        "message": "no",
        "type": "server_error",
        "param": None,
        "code": None,
    }


def test_a_failed_stream_has_two_error_events_and_is_not_stored():
    """`response.failed` has the partial answer, the error event makes clients raise; both follow the start."""
    kept = []
    for before in (b"", b"part"):
        translator = new(kept)
        data = translator.event({"choices": [{"index": 0, "delta": {"content": "half"}}]}) if before else b""
        events = events_of(data + translator.failed({"message": "it broke", "code": "stream_broken_off"}))
        assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
        failed, error = events[-2:]
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"] == {"code": "stream_broken_off", "message": "it broke"}
        assert (failed["response"]["status"], failed["response"]["store"]) == ("failed", False)
        assert (error["type"], error["error"]["message"], error["message"]) == ("error", "it broke", "it broke")
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert kept == []


def test_an_answer_of_nothing_is_a_response_of_nothing():
    """A backend may send only a finish reason."""
    events = streamed(limited("stop", content=None))
    assert events[-1]["response"]["output"] == []
    assert events_of(new().end())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": -1, "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": 7}}]},
        {"tool_calls": 7},
        {"content": ["a"]},
    ],
)
def test_what_is_no_piece_of_an_answer_ends_it(delta):
    """The stream ends with an error, as in other dialects."""
    with pytest.raises(DialectError):
        new().event({"choices": [{"index": 0, "delta": delta}]})


@pytest.mark.parametrize("of_calls", [False, True])
def test_an_endless_answer_is_not_held_forever(monkeypatch, of_calls):
    """The bound covers texts and calls, with or without arguments."""
    monkeypatch.setattr(responses_answers, "MAX_CHARACTERS", 1000)
    translator = new()

    def go_on():
        for at in range(99):
            call = {"index": at, "function": {"name": "f"}}
            delta = {"tool_calls": [call]} if of_calls else {"content": "x" * 20}
            translator.event({"choices": [{"delta": delta}]})

    with pytest.raises(DialectError, match="longer than 1000"):
        go_on()


def test_a_waiting_client_gets_a_comment():
    """Clients ignore comments."""
    assert ResponsesTranslator(echo={}, items=()).waiting().startswith(b":")


def returning(change):
    return lambda real: lambda *args, **kwargs: change(real(*args, **kwargs))


MUTANTS = {
    "a cut answer looks finished": ("INCOMPLETE", lambda real: {}),
    "a filtered answer looks cut": ("INCOMPLETE", lambda real: real | {"content_filter": "max_output_tokens"}),
    "tokens are lost": ("count_in", returning(lambda value: 0)),
    "calls fall together": ("index_of", returning(lambda value: 0)),
    "a refusal looks like a text": ("_FIELDS", lambda real: real | {"refusal": "output_text"}),
    "reasoning looks like a text": ("_FIELDS", lambda real: real | {"reasoning_content": "output_text"}),
    "deltas have another name": ("_DELTAS", lambda real: real | {"output_text": "response.text"}),
    "parts are empty": ("_part_of", lambda real: lambda kind, text: real(kind, "")),
}
METHODS = {
    "an item is not ended": ("_close_text", lambda self: []),
    "nothing is ended": ("_close_all", lambda self: []),
    "a beginning is missing": ("_start_events", lambda self: []),
    "items share a name": ("_item_id", lambda self, kind, at: "x"),
    "every item is complete": ("_status_of_item", lambda self, at: "completed"),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS | METHODS)
def test_a_mutant_is_caught(name, monkeypatch):
    """Each deliberate bug makes the stream differ from the whole answer, or from the chat completion."""
    if name in MUTANTS:
        patched, mutate = MUTANTS[name]
        monkeypatch.setattr(responses_answers, patched, mutate(getattr(responses_answers, patched)))
    else:
        monkeypatch.setattr(ResponsesTranslator, *METHODS[name])
    with pytest.raises((AssertionError, KeyError, IndexError)):
        play()
