"""Anthropic's requests as chat completions: tables, and round trips of everything that both dialects can express."""

import json

import pytest
from hypothesis import given

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import DIALECTS
from llmkube.router.dialects.messages_backend import messages_request
from llmkube.router.dialects.messages_client import chat_request, read_count, read_messages
from router.dialects.drawn_chats import messages_requests

ASKED = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def turn(*blocks, role="user"):
    return ASKED | {"messages": [{"role": role, "content": list(blocks)}]}


@given(messages_requests())
def test_a_request_comes_back_as_it_was(body):
    """Translating to chat completions and back loses and adds nothing."""
    chat = json.loads(json.dumps(chat_request(body, [])))
    again, dropped = messages_request(chat)
    assert (again, dropped) == (body, ())


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        (ASKED, "messages", [{"role": "user", "content": "hi"}]),
        (ASKED | {"system": "be brief"}, "messages", [{"role": "system", "content": "be brief"}, *ASKED["messages"]]),
        (ASKED | {"stream": True}, "stream_options", {"include_usage": True}),
        (ASKED | {"tool_choice": {"type": "any"}}, "tool_choice", "required"),
        (ASKED | {"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice",
         {"type": "function", "function": {"name": "f"}}),
        (turn({"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "a"},
              role="assistant"), "messages", [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]),
        (turn({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}), "messages",
         [{"role": "user", "content": [{"type": "text", "text": "d"}]}]),
        (ASKED | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
         "response_format",
         {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}),
    ],
)  # fmt: skip
def test_what_a_field_becomes(body, name, expected):
    """Names are those of the API documentation."""
    assert read_messages(body).body[name] == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "m", "messages": ASKED["messages"]}, "max_tokens is missing"),
        (ASKED | {"messages": []}, "messages is empty"),
        (ASKED | {"messages": "hi"}, "messages must be a list of objects"),
        (ASKED | {"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].role is 'tool'; write user"),
        (
            turn({"type": "image", "source": {"type": "url", "url": "http://x"}}),
            "the router fetches nothing for clients",
        ),
        (turn({"type": "video"}), r"messages\[0\].content\[0\].type is 'video'"),
        (ASKED | {"tool_choice": {"type": "all"}}, "tool_choice.type is 'all'"),
        (ASKED | {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type is 'xml'"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_field(body, words):
    """The error has an alternative."""
    with pytest.raises(DialectError, match=words):
        read_messages(body)


def test_what_is_left_out_is_named():
    """The audit log gets the names."""
    assert read_messages(ASKED | {"container": "c", "service_tier": "auto"}).dropped == ("container", "service_tier")


def test_a_count_is_asked_without_a_limit():
    """It needs no limit, and is not a stream."""
    found = read_count({"model": "m", "messages": ASKED["messages"], "stream": True})
    assert (found.path, found.body) == ("/messages/count_tokens", {"model": "m", "messages": ASKED["messages"]})


def test_errors_have_anthropics_types():
    """They contain the length of a prompt that is too long."""
    long = {"message": "too long", "n_prompt_tokens": 900, "n_ctx": 512, "code": 400}
    error = DIALECTS["/v1/messages"].refusal(400, long)
    assert error["error"] == {
        "type": "invalid_request_error",
        "message": "too long (the prompt needs 900 tokens, 512 are available)",
    }
    refusal = DIALECTS["/v1/messages/count_tokens"].refusal
    kinds = {status: refusal(status, {})["error"]["type"] for status in (401, 403, 404, 429, 503, 502)}
    assert kinds == {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        503: "overloaded_error",
        502: "api_error",
    }
