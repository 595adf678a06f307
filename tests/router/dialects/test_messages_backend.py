"""Chat completions for a Messages backend: tables of each field's translation."""

import pytest

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.messages_backend import DEFAULT_TOKENS, MessageEvents, chat_of_message, messages_request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def chat(*messages, **more):
    return CHAT | {"messages": list(messages)} | more


@pytest.mark.parametrize(
    ("chat", "name", "expected"),
    [
        (CHAT, "max_tokens", DEFAULT_TOKENS),
        (CHAT | {"max_tokens": 5}, "max_tokens", 5),
        (CHAT | {"max_completion_tokens": 6, "max_tokens": 5}, "max_tokens", 6),
        (CHAT | {"stop": "x"}, "stop_sequences", ["x"]),
        (CHAT | {"user": "u"}, "metadata", {"user_id": "u"}),
        (CHAT | {"tools": TOOLS, "tool_choice": "required"}, "tool_choice", {"type": "any"}),
        (CHAT | {"tools": TOOLS, "parallel_tool_calls": False}, "tool_choice",
         {"type": "auto", "disable_parallel_tool_use": True}),
        (CHAT | {"tools": TOOLS}, "tools", [{"name": "f", "input_schema": {"type": "object"}}]),
        (chat({"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
              {"role": "user", "content": "q"}), "system",
         [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        (chat({"role": "user", "content": "q"}, {"role": "developer", "content": "b"}), "messages",
         [{"role": "user", "content": [{"type": "text", "text": "q"}]},
          {"role": "system", "content": [{"type": "text", "text": "b"}]}]),
        (chat({"role": "user", "content": "a"}, {"role": "user", "content": "b"}), "messages",
         [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
        (CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
         "output_config", {"format": {"type": "json_schema", "schema": {}}}),
    ],
)  # fmt: skip
def test_what_a_field_becomes(chat, name, expected):
    """Names are those of the API documentation."""
    assert messages_request(chat)[0][name] == expected


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (CHAT | {"n": 2}, "n is 2; the Messages API supports one answer only"),
        (CHAT | {"logprobs": True}, "logprobs"),
        (CHAT | {"functions": [{}]}, "write tools"),
        (CHAT | {"modalities": ["audio"]}, "modalities has audio"),
        (CHAT | {"response_format": {"type": "json_object"}}, "json_schema only"),
        (CHAT | {"tools": [{"type": "web"}]}, r"tools\[0\].function.name is missing"),
        (chat({"role": "user", "content": [{"type": "input_audio"}]}), "input_audio"),
        (chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}), "data: URL"),
        (chat({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}), "arguments must"),
        (chat({"role": "robot", "content": "x"}), "'robot'"),
        (CHAT | {"tools": TOOLS, "tool_choice": "all"}, "tool_choice is 'all'"),
        (CHAT | {"tools": TOOLS, "tool_choice": []}, r"tool_choice is \[\]"),
    ],
)
def test_what_it_cannot_is_an_error(chat, words):
    """A backend that supports it is tried then."""
    with pytest.raises(DialectError, match=words):
        messages_request(chat)


def test_sampling_that_it_does_not_have_is_named():
    """It does not change the shape of an answer."""
    body, dropped = messages_request(CHAT | {"seed": 1, "presence_penalty": 0.5})
    assert dropped == ("seed", "presence_penalty")
    assert "seed" not in body


def test_a_count_has_what_is_counted():
    """It has no limit and no sampling, which Anthropic refuses there."""
    body, _ = messages_request(CHAT | {"temperature": 1, "max_tokens": 3, "stream": True}, count=True)
    assert set(body) == {"model", "messages"}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
    ],
)
def test_why_an_answer_ended(reason, finish):
    """The reason is the same in whole answers and in streams."""
    whole = chat_of_message({"type": "message", "content": [], "stop_reason": reason, "usage": {}})
    assert whole["choices"][0]["finish_reason"] == finish
    ended = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}
    last, usage = MessageEvents().take(ended)
    assert (last["choices"][0]["finish_reason"], usage["choices"]) == (finish, [])


def test_an_answer_without_counts_has_no_usage():
    """A usage of 0 would be charged as 0, and not as reserved."""
    assert chat_of_message({"type": "message", "content": []})["usage"] is None
    chunks = MessageEvents().take({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}})
    assert [each.get("usage") for each in chunks] == [None]


def test_nothing_is_sent_before_the_first_content():
    """Until then another backend can answer: a stream that fails at once has not started."""
    events = MessageEvents()
    assert events.take({"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 3}}}) == []
    assert events.take({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}) == []
    (first,) = events.take({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    (error,) = events.take({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    assert error["error"] == {"type": "overloaded_error", "message": "busy", "code": "overloaded_error"}


def test_tokens_of_a_cache_are_part_of_the_prompt():
    """They are paid for and charged to budgets."""
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 4, "output_tokens": 8}
    counts = chat_of_message({"type": "message", "content": [], "usage": usage})["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (7, 8, 15)
    assert counts["prompt_tokens_details"] == {"cached_tokens": 4}


def test_a_count_costs_nothing():
    """It is not translated."""
    count = chat_of_message({"input_tokens": 9})
    assert (count["input_tokens"], count["usage"]["total_tokens"]) == (9, 0)
