"""Answers in Ollama's API: whole ones, and streams that say the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.ollama_answers import MOST_CALLS, MOST_HELD, EmbedAnswers, OllamaAnswers
from router.dialects.drawn_chats import chat_answers, chunks_of


def lines_of(data):
    return [json.loads(line) for line in data.splitlines()]


@given(chat_answers(), st.integers(0, 30))
def test_a_stream_says_what_a_whole_answer_says(answer, at):
    """However its texts are cut: text, thoughts, calls, reason and tokens; only the last line is done."""
    whole = OllamaAnswers(model="m").whole(200, answer)
    answers = OllamaAnswers(model="m")
    lines = lines_of(b"".join(answers.event(each) for each in chunks_of(answer, at)) + answers.end())
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    joined = {"role": "assistant", "content": "".join(line["message"]["content"] for line in lines)}
    if thought := "".join(line["message"].get("thinking", "") for line in lines):
        joined["thinking"] = thought
    if "tool_calls" in lines[-1]["message"]:
        joined["tool_calls"] = lines[-1]["message"]["tool_calls"]
    assert lines[-1] | {"message": joined} == whole
    assert whole["prompt_eval_count"] == answer["usage"]["prompt_tokens"]
    calls = answer["choices"][0]["message"].get("tool_calls", [])
    given = [json.loads(call["function"]["arguments"]) for call in calls]
    assert [call["function"]["arguments"] for call in joined.get("tool_calls", [])] == given


def test_what_generate_says():
    """The text is the response; times are llama.cpp's, in nanoseconds."""
    said = {
        "created": 1_700_000_000,
        "choices": [{"message": {"content": "yes"}, "finish_reason": "length"}],
        "timings": {"prompt_ms": 2.5, "predicted_ms": 4},
    }
    line = OllamaAnswers(model="m", generates=True).whole(200, said)
    assert (line["response"], line["done_reason"], line["created_at"]) == ("yes", "length", "2023-11-14T22:13:20Z")
    assert (line["prompt_eval_duration"], line["eval_duration"], line["total_duration"]) == (2500000, 4000000, 6500000)


def test_half_a_call_ends_in_an_error():
    """Its arguments are no JSON object."""
    answers = OllamaAnswers(model="m")
    call = {"index": 0, "function": {"name": "f", "arguments": '{"a'}}
    answers.event({"choices": [{"delta": {"tool_calls": [call]}}]})
    with pytest.raises(DialectError, match="must be a JSON object"):
        answers.end()


def test_calls_that_are_held_have_a_bound():
    """In how many they are, and in how long: they go to the client with the last line only."""
    for calls in (
        [{"index": at, "function": {"name": "f", "arguments": "{}"}} for at in range(MOST_CALLS + 1)],
        [{"index": 0, "function": {"arguments": "x" * (1 << 20)}} for _ in range((MOST_HELD >> 20) + 1)],
    ):
        answers = OllamaAnswers(model="m")
        for call in calls[:-1]:
            answers.event({"choices": [{"delta": {"tool_calls": [call]}}]})
        with pytest.raises(DialectError, match="or longer than"):
            answers.event({"choices": [{"delta": {"tool_calls": calls[-1:]}}]})


@pytest.mark.parametrize(
    "said", [{"created": 10**15}, {"timings": {"prompt_ms": 1e300}}, {"timings": {"prompt_ms": -1}}]
)
def test_odd_numbers_of_a_backend_are_left_out(said):
    """They make no answer fail."""
    assert OllamaAnswers(model="m").whole(200, said)["total_duration"] == 0


def test_who_waits_reads_a_line_without_text():
    """And who fails, an error."""
    answers = OllamaAnswers(model="m")
    (line,) = lines_of(answers.waiting())
    assert (line["message"]["content"], line["done"]) == ("", False)
    assert lines_of(answers.failed({"message": "gone"})) == [{"error": "gone"}]


def test_vectors_come_in_the_order_of_their_texts():
    """Whatever order the backend gives them."""
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    said = EmbedAnswers(model="m").whole(200, {"data": data, "usage": {"prompt_tokens": 4}})
    assert (said["embeddings"], said["prompt_eval_count"]) == ([[1.0], [2.0]], 4)
    assert EmbedAnswers(model="m").whole(400, {"error": {"message": "no"}}) == {"error": "no"}
