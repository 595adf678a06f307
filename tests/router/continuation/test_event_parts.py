"""Text in an event, and parts that another engine could not continue."""

import pytest

from llmkube.router.continuation.joined_answer import choice_of, has_role, text_of
from llmkube.router.dialects.dialect import data_event


def chat(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (chat(content="so"), "so"),
        (chat(role="assistant", content=None), ""),
        ({"choices": [{"index": 0, "text": "so", "finish_reason": None}]}, "so"),
        (chat(), ""),
        ({"choices": []}, ""),
        ({"usage": {}}, ""),
    ],
)
def test_text_is_what_an_event_adds(event, text):
    choice, obstacle = choice_of(event)
    assert (text_of(choice), obstacle) == (text, "")


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (chat(tool_calls=[{"index": 0}]), "the answer calls a tool"),
        (chat(reasoning_content="hm"), "the answer has thoughts (reasoning_content)"),
        (chat(content="so", audio={"id": "a"}), "the answer has 'audio'"),
        ({"choices": [{"index": 0, "text": "a", "logprobs": {"tokens": []}}]}, "the answer has logprobs"),
        ({"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {}}]}, "the answer has several choices"),
        ({"choices": [{"index": 1, "delta": {}}]}, "the answer has several choices"),
    ],
)
def test_what_is_no_text_is_named(event, why):
    assert choice_of(event)[1] == why


def test_an_empty_part_is_none():
    """Engines write empty fields."""
    assert choice_of(chat(content="so", tool_calls=[], reasoning_content=None, refusal=""))[1] == ""


def test_a_role_and_an_event():
    assert has_role({"delta": {"role": "assistant"}})
    assert not has_role({"delta": {}})
    assert not has_role(None)
    assert data_event({"a": 1}) == b'data: {"a":1}\n\n'
