"""Requests whose answer can be continued: those that generate plain text."""

import pytest

from llmkube.router.continuation.continuable import is_limit, obstacle
from router.proxy.router_lab import STREAMED

CHAT, COMPLETIONS = "/chat/completions", "/completions"
PROMPT = {"model": "m", "prompt": "Once", "stream": True}
USER = {"role": "user", "content": "hi"}
TEXT_PART = {"type": "text", "text": "I "}
PICTURE = {"type": "image_url", "image_url": {"url": "data:x"}}

GOES_ON = {
    "plain": (CHAT, {}),
    "a seed, stop words, penalties": (CHAT, {"seed": 1, "stop": ["x"], "repeat_penalty": 1.1, "temperature": 1}),
    "one answer": (CHAT, {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "tools": []}),
    "tools that it may not call": (CHAT, {"tools": [{}], "tool_choice": "none"}),
    "one limit under two names": (CHAT, {"max_tokens": 5, "max_completion_tokens": 5}),
    "a picture": (CHAT, {"messages": [{"role": "user", "content": [PICTURE]}]}),
    "begun by the client": (CHAT, {"messages": [USER, {"role": "assistant", "content": "I "}]}),
    "begun in parts": (CHAT, {"messages": [USER, {"role": "assistant", "content": [TEXT_PART]}]}),
    "begun with continue_final_message": (
        CHAT,
        {"messages": [{"role": "assistant", "content": "I "}], "continue_final_message": True},
    ),
    "a prompt": (COMPLETIONS, {}),
}
DOES_NOT = {
    "no stream": (CHAT, {"stream": False}),
    "vectors": ("/embeddings", {"input": "x"}),
    "ranks": ("/rerank", {"query": "x"}),
    "counting": ("/messages/count_tokens", {}),
    "several answers": (CHAT, {"n": 2}),
    "several that are text": (CHAT, {"n": "2"}),
    "the best of several": (COMPLETIONS, {"best_of": 3}),
    "probabilities": (CHAT, {"logprobs": True}),
    "no other tokens' probabilities": (COMPLETIONS, {"logprobs": 0}),
    "llama.cpp's probabilities": (CHAT, {"n_probs": 5}),
    "a grammar": (CHAT, {"grammar": 'root ::= "x"'}),
    "a schema": (CHAT, {"json_schema": {"type": "object"}}),
    "JSON": (CHAT, {"response_format": {"type": "json_object"}}),
    "a format that is none": (CHAT, {"response_format": "json"}),
    "tools": (CHAT, {"tools": [{"type": "function"}]}),
    "functions": (CHAT, {"functions": [{}]}),
    "sound": (CHAT, {"modalities": ["text", "audio"]}),
    "two limits": (CHAT, {"max_tokens": 5, "n_predict": 6}),
    "no messages": (CHAT, {"messages": []}),
    "messages that are none": (CHAT, {"messages": "hi"}),
    "a message that is none": (CHAT, {"messages": [7]}),
    "a call at the end": (CHAT, {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}),
    "thoughts at the end": (CHAT, {"messages": [{"role": "assistant", "content": "", "reasoning_content": "h"}]}),
    "a beginning that is no text": (CHAT, {"messages": [{"role": "assistant", "content": [PICTURE]}]}),
    "no beginning at the end": (CHAT, {"messages": [{"role": "assistant", "content": None}]}),
    "no prompt for the answer": (CHAT, {"add_generation_prompt": False}),
    "tokens as prompt": (COMPLETIONS, {"prompt": [1, 2]}),
    "several prompts": (COMPLETIONS, {"prompt": ["a", "b"]}),
    "the prompt again": (COMPLETIONS, {"echo": True}),
    "what comes after": (COMPLETIONS, {"suffix": "end"}),
}


def request(path, changes):
    return (PROMPT if path == COMPLETIONS else STREAMED) | changes


@pytest.mark.parametrize("name", GOES_ON)
def test_plain_text_can_be_continued(name):
    path, changes = GOES_ON[name]
    assert obstacle(path, request(path, changes)) == ""


@pytest.mark.parametrize("name", DOES_NOT)
def test_other_output_cannot_be_continued(name):
    """The reason is given."""
    path, changes = DOES_NOT[name]
    assert obstacle(path, request(path, changes))


def test_a_limit_is_a_whole_number_above_0():
    """llama.cpp's -1, a boolean and a string are not limits."""
    assert [value for value in (5, -1, 0, True, "5", 1.5, None) if is_limit(value)] == [5]
