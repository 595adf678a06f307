"""Responses requests as chat completions: translated, omitted and refused fields."""

import pytest

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.responses_client import read_responses, with_history

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
ASKED = {"model": "m", "input": "hi"}
FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": "d"}


def read(**more):
    return read_responses(ASKED | more)


def chat(**more):
    found = read(**more).body
    assert found.pop("model") == "m"
    return found


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"max_output_tokens": 7}, {"max_tokens": 7}),
        ({"temperature": 0.5, "top_p": 0.9, "user": "u"}, {"temperature": 0.5, "top_p": 0.9, "user": "u"}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"presence_penalty": 1, "frequency_penalty": 0.5}, {"presence_penalty": 1, "frequency_penalty": 0.5}),
        ({"prompt_cache_key": "k", "safety_identifier": "s"}, {"prompt_cache_key": "k", "safety_identifier": "s"}),
        ({"service_tier": "flex"}, {"service_tier": "flex"}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": False}, {"stream": False}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": FORMAT}},
            {"response_format": {"type": "json_schema", "json_schema": {k: FORMAT[k] for k in FORMAT if k != "type"}}},
        ),
        (
            {"tools": [TOOL], "tool_choice": "required"},
            {
                "tools": [{"type": "function", "function": {k: TOOL[k] for k in TOOL if k != "type"}}],
                "tool_choice": "required",
            },
        ),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        ({"metadata": {"a": "b"}, "store": False, "truncation": "disabled", "background": False}, {}),
        (dict.fromkeys(("tools", "text", "reasoning", "metadata", "temperature", "conversation", "prompt")), {}),
    ],
)
def test_each_field_has_its_counterpart(more, expected):
    """A null field equals a missing one."""
    assert chat(**more) == {"messages": [{"role": "user", "content": "hi"}]} | expected


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"background": True}, "background is True"),
        ({"conversation": "c"}, "write previous_response_id instead"),
        ({"prompt": {"id": "p"}}, "prompt is"),
        (
            {"truncation": "half"},
            "truncation is 'half'; write disabled or auto, or omit it",
        ),
        ({"top_logprobs": 3}, "top_logprobs is 3"),
        ({"context_management": [{"type": "compaction"}]}, "context_management is"),
        ({"moderation": {"model": "x"}}, "moderation is"),
        ({"seed": 3}, "seed is not a known field of /v1/responses"),
        ({"n": 2}, "n is not a known field"),
        ({"messages": []}, "messages is not a known field"),
        ({"include": ["message.output_text.logprobs"]}, "include[0] is 'message.output_text.logprobs'"),
        ({"include": "x"}, "include must be a list"),
        ({"tools": [{"type": 7}]}, "tools[0].type is 7"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].name is"),
        ({"tools": [{"type": "function"}]}, "tools[0].name is missing"),
        ({"tools": [TOOL | {"parameters": []}]}, "tools[0].parameters is []"),
        ({"tools": {}}, "tools must be a list"),
        ({"tool_choice": "any"}, "tool_choice is 'any'; write auto, none, required, or"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice is"),
        (
            {"text": {"format": {"type": "grammar"}}},
            "text.format.type is 'grammar'; write text, json_schema or json_object",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema is missing"),
        ({"text": "x"}, "text must be an object"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort is 3"),
        ({"metadata": {"a": 1}}, "metadata.a must be a string"),
        ({"metadata": {str(at): "x" for at in range(17)}}, "metadata has 17 entries; write at most 16"),
        ({"metadata": {"a": "x" * 513}}, "at most 512 characters"),
        ({"temperature": "hot"}, "temperature is 'hot'; write a number"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0; write at least 1"),
        ({"max_output_tokens": True}, "max_output_tokens is True"),
        ({"store": "yes"}, "store is 'yes'; write true or false"),
        ({"previous_response_id": 7}, "previous_response_id is 7; write a string"),
        ({"instructions": ["x"]}, "instructions is ['x']; write a string"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(more, words):
    """The error has the value and an alternative."""
    with pytest.raises(DialectError) as caught:
        read(**more)
    assert words in str(caught.value)


def test_what_changes_no_meaning_is_left_out_by_name():
    """The audit log gets the names."""
    more = {
        "client_metadata": {"a": "b"},
        "prompt_cache_retention": "24h",
        "stream_options": {"include_obfuscation": False},
        "max_tool_calls": 3,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "text": {"other": 1},
        "truncation": "auto",
    }
    found = read(**more)
    assert set(found.body) == {"model", "messages", "reasoning_effort"}
    assert set(found.dropped) == {
        *("client_metadata", "prompt_cache_retention", "stream_options", "max_tool_calls", "reasoning.summary"),
        *("include[0] (reasoning.encrypted_content)", "text.other", "truncation"),
    }


def test_the_history_is_between_instructions_and_new_items():
    """Instructions of earlier requests do not apply."""
    translated = read(instructions="now", previous_response_id="resp_1")
    history = [
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "once"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    found = with_history(translated, history, translated.translator)
    assert [(turn["role"], turn["content"]) for turn in found.body["messages"]] == [
        ("system", "now\n\nonce"),
        ("user", "a"),
        ("assistant", None),
        ("user", "hi"),
    ]
    assert (translated.translator.previous_id, translated.translator.store) == ("resp_1", True)
    assert not read(store=False).translator.store


def test_a_response_repeats_the_request_parameters():
    """Omitted fields have the API's defaults."""
    more = {"tools": [{"type": "function", "name": "f"}], "text": {"format": FORMAT}, "metadata": {"a": "b"}}
    echo = read(**more, temperature=0, reasoning={"effort": "low"}).translator.echo
    assert echo["tools"] == [{"type": "function", "name": "f", "description": None, "parameters": {}, "strict": False}]
    assert (echo["text"], echo["metadata"]) == ({"format": FORMAT}, {"a": "b"})
    assert (echo["temperature"], echo["top_p"], echo["reasoning"]["effort"]) == (0, 1.0, "low")
    assert (echo["tool_choice"], echo["truncation"], echo["parallel_tool_calls"]) == ("auto", "disabled", True)
