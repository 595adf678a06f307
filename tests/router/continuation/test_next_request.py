"""The request to the next engine: the first request with the text so far."""

import pytest

from llmkube.router.continuation.joined_answer import next_request

CHAT, COMPLETIONS = "/chat/completions", "/completions"
USER = {"role": "user", "content": "hi"}
BODY = {"model": "m", "messages": [USER], "stream": True, "seed": 7, "stop": ["x"], "max_tokens": 10}
MODE = {"continue_final_message": True, "add_generation_prompt": False}


def test_the_text_is_the_last_message_and_its_tokens_are_off_the_limit():
    """Nothing else changes, and the first request is not modified."""
    before = dict(BODY)
    found = next_request(CHAT, BODY, "Once", 3)
    messages = [USER, {"role": "assistant", "content": "Once"}]
    assert found == BODY | MODE | {"messages": messages, "max_tokens": 7}
    assert before == BODY


def test_without_text_it_is_the_first_request():
    """An empty assistant message would be a finished answer."""
    assert next_request(CHAT, BODY, "", 0) == BODY


@pytest.mark.parametrize(
    ("content", "becomes"),
    [
        ("I ", "I am"),
        ([{"type": "text", "text": "I "}], [{"type": "text", "text": "I "}, {"type": "text", "text": "am"}]),
    ],
)
def test_an_answer_that_the_client_has_begun_stays_one_message(content, becomes):
    """llama.cpp's server refuses two assistant messages at the end."""
    body = BODY | {"messages": [USER, {"role": "assistant", "content": content}]}
    assert next_request(CHAT, body, "am", 1)["messages"] == [USER, {"role": "assistant", "content": becomes}]
    assert body["messages"][-1]["content"] == content


def test_a_prompt_grows():
    """It has no messages, and no mode."""
    body = {"model": "m", "prompt": "Once", "n_predict": 4, "max_tokens": -1}
    found = next_request(COMPLETIONS, body, " upon", 1)
    assert found == {"model": "m", "prompt": "Once upon", "n_predict": 3, "max_tokens": -1}
