"""Events of a stream, and the end of a complete answer."""

import json

import pytest

from http_lab import cut
from llmkube.router.budgets.usage import Usage
from llmkube.router.dispatch.event_stream import AnswerState, Kind
from router.proxy.router_lab import DONE, piece
from router.recorded_streams import STREAMS, VARIANTS, is_messages


def events_in(name, *pieces):
    """Return kinds and contents of a recorded stream, without comments."""
    state = AnswerState("m", uses_messages=is_messages(name))
    found = [event for piece in pieces for event in state.feed(piece)] + state.end()
    assert state.is_complete
    assert state.model == "provider/id-7"
    assert all(each.body == json.loads(each.encoded[6:]) for each in found if each.body)
    return [(each.kind, each.body) for each in found if each.kind is not Kind.COMMENT]


@pytest.mark.parametrize("name", STREAMS)
def test_an_answer_is_the_same_however_its_stream_is_written_and_split(name):
    """Each event has the client's name of the model; only the parser has to be split at every byte."""
    expected = events_in(name, STREAMS[name])
    assert [kind for kind, _ in expected][-2:] == [Kind.USAGE, Kind.DONE]
    assert {body["model"] for _, body in expected if body} == {"m"}
    for write in VARIANTS.values():
        data = write(STREAMS[name])
        assert events_in(name, data) == events_in(name, *cut(data, range(len(data)))) == expected


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b": hi\n\n", Kind.COMMENT),
        (b"event: ping\n\n", Kind.COMMENT),
        (piece("x"), Kind.PIECE),
        (b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', Kind.USAGE),
        (b'data: {"choices":[],"prompt_filter_results":[]}\n\n', Kind.PIECE),
        (b'data: {"error":{"message":"m"}}\n\n', Kind.ERROR),
        (b'data: {"error":"m"}\n\n', Kind.ERROR),
        (b'data: {"error":null,"choices":[{"index":0}]}\n\n', Kind.PIECE),
        (DONE, Kind.DONE),
        (b"data: {\n\n", Kind.GARBAGE),
        (b"data: 1\n\n", Kind.GARBAGE),
        (b'data: {"hello":1}\n\n', Kind.GARBAGE),
        (b"data:\n\n", Kind.COMMENT),
        (b'data: {"choices":null,"usage":{"prompt_tokens":1}}\n\n', Kind.USAGE),
        (b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n', Kind.PIECE),
        (b'data: {"choices":[{"delta":{"content":' + b"[" * 300 + b"]" * 300 + b"}}]}\n\n", Kind.PIECE),
        (b'data: {"model":"x","choices":[{"x":' + b"[" * 300 + b"]" * 300 + b"}]}\n\n", Kind.GARBAGE),
        (b'data: {"object":"error","message":"m"}\n\n', Kind.ERROR),
        (b'data: [{"error":{"message":"m"}}]\n\n', Kind.ERROR),
        (b'event: error\ndata: {"code":"X","message":"m"}\n\n', Kind.ERROR),
        (b"event: error\ndata: slot lost\n\n", Kind.ERROR),
        (b'error: {"code": 500, "message": "m"}\n\n', Kind.ERROR),
    ],
)
def test_what_one_event_is(event, kind):
    """Unreadable data is never taken for a piece of an answer."""
    assert [each.kind for each in AnswerState("m").feed(event)] == [kind]


def test_an_answer_is_whole_when_every_choice_is_finished():
    """The `[DONE]` marker completes it as well."""
    state = AnswerState("m")
    assert not state.is_complete
    state.feed(piece("x"))
    state.feed(b'data: {"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}\n\n')
    assert not state.is_complete
    state.feed(piece("", "length"))
    assert state.is_complete
    state = AnswerState("m")
    state.feed(DONE)
    assert state.is_complete


def test_tokens_are_those_of_the_last_event_that_has_some():
    """They are OpenAI's usage, llama.cpp's timings, or both."""
    state = AnswerState("m")
    state.feed(piece("x", timings={"prompt_n": 3, "cache_n": 7, "predicted_n": 5, "prompt_ms": 1.5, "predicted_ms": 2}))
    assert state.usage == Usage(10, 5, 7, 1.5, 2.0)
    state.feed(b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6}}\n\n')
    assert state.usage == Usage(11, 6, 7, 1.5, 2.0)
    state.feed(b'data: {"choices":[],"usage":null}\n\n')
    assert state.usage.prompt + state.usage.completion == 17
