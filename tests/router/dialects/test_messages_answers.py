"""Chat completions as Anthropic Messages answers: whole answers and streams, in both directions and event by event."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.messages_answers import CountTranslator, MessagesTranslator
from llmkube.router.dialects.messages_backend import MessageEvents, chat_of_message
from router.dialects.drawn_chats import chat_answers, chunks_of, joined


def events_of(data):
    """Return the events of a stream; each has the name of its type."""
    found = []
    for each in data.decode().split("\n\n")[:-1]:
        name, _, line = each.partition("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


@given(chat_answers())
def test_a_whole_answer_comes_back_as_it_was(answer):
    """Text, thoughts, calls, the reason, tokens and cached tokens are preserved."""
    message = MessagesTranslator(model="m").complete(200, answer)
    again = chat_of_message(json.loads(json.dumps(message)))
    assert again["usage"] == answer["usage"]
    assert again["choices"] == answer["choices"]
    assert message["model"] == "m"


@given(chat_answers(), st.integers(0, 30))
def test_a_stream_comes_back_as_it_was(answer, at):
    """Texts may be cut anywhere; content blocks come in the documented order."""
    translator, backend = MessagesTranslator(model="m"), MessageEvents()
    data = b"".join(translator.event(each) for each in chunks_of(answer, at)) + translator.end()
    events = events_of(data)
    again = joined([chunk for event in events for chunk in backend.take(event)])
    assert backend.done
    assert again["choices"] == answer["choices"]
    assert again["usage"] == answer["usage"]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    open_at = None
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_at is None
            open_at = event["index"]
        assert event["index"] == open_at
        if event["type"] == "content_block_stop":
            open_at = None
    assert open_at is None


def test_a_tool_call_that_continues_after_its_end_is_an_error():
    """Its arguments would be another call's, or incomplete."""
    translator = MessagesTranslator(model="m")
    calls = [{"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "{"}} for at in (0, 1, 0)]
    for call in calls[:2]:
        translator.event({"choices": [{"delta": {"tool_calls": [call]}}]})
    with pytest.raises(DialectError, match="a tool call that had ended"):
        translator.event({"choices": [{"delta": {"tool_calls": [calls[2]]}}]})


def test_a_waiting_client_gets_a_ping():
    """A stream that fails ends with an error event."""
    translator = MessagesTranslator(model="m")
    assert events_of(translator.waiting()) == [{"type": "ping"}]
    assert events_of(translator.failed({"message": "gone"}))[0]["error"]["message"] == "gone"


def test_a_count_is_only_a_count():
    """The charged tokens are not part of it."""
    assert CountTranslator().complete(200, {"input_tokens": 7, "usage": {}}) == {"input_tokens": 7}
    assert CountTranslator().complete(404, {"error": {"message": "no"}})["error"]["type"] == "not_found_error"
