import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_lab import cut
from llmkube.cli.commands.inference.sse import MAX_EVENT_BYTES, Delta, EventReader, StreamError, error_text, parse_event


def event(**delta):
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}, ensure_ascii=False).encode() + b"\n\n"


STREAM = (
    b": a comment\r\n\r\n"
    + event(role="assistant", content=None)
    + event(content="Grüß ")
    + b"id: 7\nevent: message\n"
    + event(content="Gott, 世界")
    + b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    + b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n'
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_pieces_may_end_anywhere(positions):
    """Cut at any byte, also within a character, the stream reads the same."""
    reader = EventReader()
    deltas = [delta for piece in cut(STREAM, positions) for delta in reader.feed(piece)]
    assert "".join(delta.text for delta in deltas) == "Grüß Gott, 世界"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert reader.done


def test_thoughts_are_told_apart():
    """What a model thinks is not part of its answer."""
    assert EventReader().feed(event(reasoning_content="hm")) == [Delta(reasoning="hm")]


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b'error: {"code": 500, "message": "slot lost"}\n\n', "slot lost"),
        (b"data: <html>\n\n", "not JSON"),
        (b'data: {"hello": 1}\n\n', "not a chat completion"),
        (b"data: []\n\n", "not a chat completion"),
        (b"x" * (MAX_EVENT_BYTES + 1), "longer than"),
    ],
)
def test_errors_within_a_stream_are_raised(piece, words):
    """An engine that fails half-way, or something that is no engine, ends the answer with its own words."""
    with pytest.raises(StreamError, match=words):
        EventReader().feed(piece)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"error": {"message": "no"}}', "no"),
        ('{"error": "no"}', "no"),
        ('{"message": "no"}', "no"),
        ("no", "no"),
        ("[]", "[]"),
    ],
)
def test_every_shape_of_error_has_a_sentence(text, words):
    """OpenAI's shape, older ones and plain text all give the sentence within."""
    assert error_text(text) == words


def test_strange_deltas_are_empty():
    """A delta of another type adds nothing and breaks nothing."""
    assert parse_event('{"choices": [{"delta": {"content": 7}}]}') == Delta()
    assert parse_event('{"choices": [{"delta": "x"}]}') == Delta()
