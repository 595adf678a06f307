"""Events of a stream, and the end of a complete answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_lab import cut
from llmkube.router.budgets.usage import Usage
from llmkube.router.dispatch import event_stream
from llmkube.router.dispatch.event_stream import AnswerState, EventSplitter, Kind, OversizedEventError, data_of
from router.proxy.router_lab import DONE, piece

EVENTS = [b": comment\n\n", piece("one"), b"data: a\r\ndata: b\r\n\r\n", b"event: x\rdata: y\r\r", DONE]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_events_are_the_same_however_the_network_cut_them(positions):
    """Each of the three line endings works."""
    splitter, found = EventSplitter(), []
    for each in cut(b"".join(EVENTS) + b"data: rest", positions):
        found += splitter.feed(each)
    assert b"".join(found) + splitter.rest == b"".join(EVENTS) + b"data: rest"
    assert [data_of(each) for each in found if data_of(each)] == [data_of(each) for each in EVENTS if data_of(each)]
    assert splitter.rest == b"data: rest"


def test_the_data_of_an_event_is_all_of_its_lines():
    """One space after the colon is not part of it."""
    assert data_of(b"id: 1\ndata: a\ndata:b\ndata\n\n") == b"a\nb"
    assert data_of(b": x\n\n") is None


def test_an_event_without_an_end_is_refused(monkeypatch):
    """It is refused before it fills the memory."""
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    splitter = EventSplitter()
    for _ in range(10):
        splitter.feed(b"x" * 10)
    with pytest.raises(OversizedEventError):
        splitter.feed(b"x")


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
    ],
)
def test_what_one_event_is(event, kind):
    """Unreadable data is never taken for a piece of an answer."""
    assert AnswerState().take(event) is kind


def test_an_answer_is_whole_when_every_choice_is_finished():
    """The `[DONE]` marker completes it as well."""
    state = AnswerState()
    assert not state.is_complete
    state.take(piece("x"))
    state.take(b'data: {"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}\n\n')
    assert not state.is_complete
    state.take(piece("", "length"))
    assert state.is_complete
    state = AnswerState()
    state.take(DONE)
    assert state.is_complete


def test_tokens_are_those_of_the_last_event_that_has_some():
    """They are OpenAI's usage, llama.cpp's timings, or both."""
    state = AnswerState()
    state.take(piece("x", timings={"prompt_n": 3, "cache_n": 7, "predicted_n": 5, "prompt_ms": 1.5, "predicted_ms": 2}))
    assert state.usage == Usage(10, 5, 7, 1.5, 2.0)
    state.take(b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6}}\n\n')
    assert state.usage == Usage(11, 6, 7, 1.5, 2.0)
    state.take(b'data: {"choices":[],"usage":null}\n\n')
    assert state.usage.prompt + state.usage.completion == 17
