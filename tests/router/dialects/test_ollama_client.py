"""Ollama's requests as chat completions and embeddings: tables of each field's translation.

Answers in Ollama's API: whole ones, and streams with the same content.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import DIALECTS
from llmkube.router.dialects.ollama_client import (
    MAX_CALL_CHARACTERS,
    MAX_CALLS,
    EmbedTranslator,
    OllamaTranslator,
    read_chat,
    read_embed,
    read_embeddings,
    read_generate,
)
from router.dialects.drawn_chats import chat_answers, chunks_of

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        (ASKED, "stream", True),
        (ASKED, "stream_options", {"include_usage": True}),
        (ASKED, "messages", ASKED["messages"]),
        (ASKED | {"options": {"num_predict": 7}}, "max_tokens", 7),
        (ASKED | {"options": {"stop": ["x"]}}, "stop", ["x"]),
        (ASKED | {"format": "json"}, "response_format", {"type": "json_object"}),
        (ASKED | {"think": True}, "chat_template_kwargs", {"enable_thinking": True}),
        (ASKED | {"think": "low"}, "reasoning_effort", "low"),
        (ASKED | {"messages": [{"role": "user", "content": "a", "images": ["/9j/x"]}]}, "messages",
         [{"role": "user", "content": [{"type": "text", "text": "a"},
                                       {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/x"}}]}]),
    ],
)  # fmt: skip
def test_what_a_field_becomes(body, name, expected):
    """Names are those of the API documentation."""
    assert read_chat(body).body[name] == expected


def test_an_answer_is_whole_only_on_request():
    """Ollama's default is a stream."""
    assert "stream" not in read_chat(ASKED | {"stream": False}).body
    assert "max_tokens" not in read_chat(ASKED | {"options": {"num_predict": -1}}).body


def test_results_belong_to_the_calls_before_them():
    """The tool's name, else the order, selects the call: chat completions require call ids, which Ollama lacks."""
    called = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g", "f")]
    turns = [
        {"role": "assistant", "content": "", "tool_calls": called},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f", "tool_name": "f"},
        {"role": "tool", "content": "the rest"},
    ]
    turn, *results = read_chat(ASKED | {"messages": turns}).body["messages"]
    assert [call["id"] for call in turn["tool_calls"]] == ["call_0", "call_1", "call_2"]
    assert turn["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert [each["tool_call_id"] for each in results] == ["call_1", "call_0", "call_2"]


@pytest.mark.parametrize(
    ("read", "body", "words"),
    [
        (read_generate, {"model": "m", "keep_alive": "soon"}, "keep_alive is 'soon'; write seconds"),
        (read_chat, ASKED | {"messages": [{"role": "robot"}]}, "'robot'; write system"),
        (read_chat, ASKED | {"messages": [{"role": "tool", "tool_name": "f"}]}, "which no earlier message calls"),
        (read_chat, ASKED | {"messages": [{"role": "user", "content": [1]}]}, "must be a string"),
        (read_chat, ASKED | {"format": "xml"}, "format is 'xml'"),
        (read_generate, PROMPT | {"prompt": 7}, "prompt must be a string"),
        (read_generate, PROMPT | {"raw": True}, "raw is set"),
        (read_generate, PROMPT | {"suffix": "x"}, "suffix is set"),
        (read_generate, PROMPT | {"template": "x"}, "template is set"),
        (read_generate, PROMPT | {"context": [1]}, "context is set"),
        (read_generate, PROMPT | {"images": [7]}, "images must be a list"),
        (read_embed, {"model": "m", "input": [1]}, "input must be a string"),
        (read_embed, {"model": "m", "input": 7}, "input must be a string"),
        (read_embeddings, {"model": "m", "prompt": ["a"]}, "prompt must be a string"),
    ],
)
def test_what_only_ollama_does_is_refused_by_its_field(read, body, words):
    """The error has an alternative."""
    with pytest.raises(DialectError, match=words):
        read(body)


def test_engine_options_of_ollama_are_dropped_and_reported():
    """The names are for the audit log."""
    found = read_chat(ASKED | {"keep_alive": "5m", "options": {"num_ctx": 4096, "seed": 1}})
    assert (found.dropped, found.body["seed"]) == (("keep_alive", "options.num_ctx"), 1)
    assert read_chat(ASKED | {"system": "be brief", "images": []}).dropped == ("system", "images")
    assert read_generate(PROMPT | {"messages": []}).dropped == ("messages",)


def test_a_prompt_is_a_chat_of_one_turn():
    """The model's own template applies, as in Ollama."""
    body = read_generate(PROMPT | {"system": "be brief"}).body
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_texts_are_asked_for_vectors():
    """A single text becomes a list."""
    found = read_embed({"model": "m", "input": "a", "truncate": True, "dimensions": 8})
    assert (found.path, found.body) == ("/embeddings", {"model": "m", "input": ["a"], "dimensions": 8})
    assert found.dropped == ("truncate",)


@pytest.mark.parametrize(
    ("read", "body", "answered"),
    [
        (read_chat, {}, {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "load"}),
        (read_chat, {"messages": [], "keep_alive": -1}, {"done_reason": "load"}),
        (read_generate, {}, {"response": "", "done": True, "done_reason": "load"}),
        (read_generate, {"prompt": "", "keep_alive": "10m"}, {"done_reason": "load"}),
        (read_generate, {"prompt": "", "keep_alive": "0s"}, {"done_reason": "unload"}),
        (read_embed, {"input": []}, {"embeddings": []}),
        (read_embed, {"input": ""}, {"embeddings": []}),
        (read_embeddings, {"prompt": ""}, {"embedding": []}),
    ],
)
def test_a_request_without_a_prompt_loads_the_model(read, body, answered):
    """No backend is asked: one that gets requests has loaded its model."""
    found = read({"model": "m", **body})
    found.translator.begin(1_700_000_000)
    line = found.translator.complete(200, {})
    assert (found.path, answered.items() <= line.items()) == ("", True), line
    assert line.get("created_at", "2023-11-14T22:13:20Z") == "2023-11-14T22:13:20Z"


def test_every_line_has_a_time():
    """A backend that sends none gets that of the request; clients in Rust refuse a line without it."""
    translator = OllamaTranslator(model="m")
    translator.begin(1_700_000_000)
    assert {line["created_at"] for line in lines_of(translator.end())} == {"2023-11-14T22:13:20Z"}


def test_the_older_path_for_embeddings_has_one_text():
    """The answer has its only embedding."""
    found = read_embeddings({"model": "m", "prompt": "a", "options": {"num_ctx": 9}})
    assert (found.path, found.body, found.dropped) == ("/embeddings", {"model": "m", "input": ["a"]}, ("options",))
    assert found.translator.complete(200, {"data": [{"index": 0, "embedding": [1.0]}]}) == {"embedding": [1.0]}


def test_errors_are_ollamas():
    """An error is a message, with the length of a prompt that is too long."""
    long = {"message": "too long", "n_prompt_tokens": 900, "n_ctx": 512}
    error = {"error": "too long (the prompt needs 900 tokens, 512 are available)"}
    assert [DIALECTS[f"/api/{path}"].refusal(400, long) for path in ("chat", "generate", "embed")] == [error] * 3


def lines_of(data):
    return [json.loads(line) for line in data.splitlines()]


@given(chat_answers(), st.integers(0, 30))
def test_a_stream_equals_a_whole_answer(answer, at):
    """Texts may be cut anywhere; text, thoughts, calls, reason and tokens are the same; only the last line is done."""
    complete = OllamaTranslator(model="m").complete(200, answer)
    translator = OllamaTranslator(model="m")
    lines = lines_of(b"".join(translator.event(each) for each in chunks_of(answer, at)) + translator.end())
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    joined = {"role": "assistant", "content": "".join(line["message"]["content"] for line in lines)}
    if thought := "".join(line["message"].get("thinking", "") for line in lines):
        joined["thinking"] = thought
    if "tool_calls" in lines[-1]["message"]:
        joined["tool_calls"] = lines[-1]["message"]["tool_calls"]
    assert lines[-1] | {"message": joined} == complete
    assert complete["prompt_eval_count"] == answer["usage"]["prompt_tokens"]
    calls = answer["choices"][0]["message"].get("tool_calls", [])
    given = [json.loads(call["function"]["arguments"]) for call in calls]
    assert [call["function"]["arguments"] for call in joined.get("tool_calls", [])] == given


def test_generate_response_fields():
    """The text is the response; times are llama.cpp's, in nanoseconds."""
    completion = {
        "created": 1_700_000_000,
        "choices": [{"message": {"content": "yes"}, "finish_reason": "length"}],
        "timings": {"prompt_ms": 2.5, "predicted_ms": 4},
    }
    line = OllamaTranslator(model="m", is_generate=True).complete(200, completion)
    assert (line["response"], line["done_reason"], line["created_at"]) == ("yes", "length", "2023-11-14T22:13:20Z")
    assert (line["prompt_eval_duration"], line["eval_duration"], line["total_duration"]) == (2500000, 4000000, 6500000)


def test_half_a_call_ends_in_an_error():
    """Its arguments are not a JSON object."""
    translator = OllamaTranslator(model="m")
    call = {"index": 0, "function": {"name": "f", "arguments": '{"a'}}
    translator.event({"choices": [{"delta": {"tool_calls": [call]}}]})
    with pytest.raises(DialectError, match="must be a JSON object"):
        translator.end()


def test_calls_that_are_held_have_a_bound():
    """Their number and length are bounded, since they are sent with the last line only."""
    for calls in (
        [{"index": at, "function": {"name": "f", "arguments": "{}"}} for at in range(MAX_CALLS + 1)],
        [{"index": 0, "function": {"arguments": "x" * (1 << 20)}} for _ in range((MAX_CALL_CHARACTERS >> 20) + 1)],
    ):
        translator = OllamaTranslator(model="m")
        for call in calls[:-1]:
            translator.event({"choices": [{"delta": {"tool_calls": [call]}}]})
        with pytest.raises(DialectError, match="more than 256 tool calls, or 4194304 characters"):
            translator.event({"choices": [{"delta": {"tool_calls": calls[-1:]}}]})


@pytest.mark.parametrize(
    "changes", [{"created": 10**15}, {"timings": {"prompt_ms": 1e300}}, {"timings": {"prompt_ms": -1}}]
)
def test_odd_numbers_of_a_backend_are_left_out(changes):
    """They do not make an answer fail."""
    assert OllamaTranslator(model="m").complete(200, changes)["total_duration"] == 0


def test_a_waiting_client_gets_no_line():
    """Its format has no comments; a failed request ends with an error line."""
    translator = OllamaTranslator(model="m")
    assert translator.waiting() == b""
    assert lines_of(translator.failed({"message": "gone"})) == [{"error": "gone"}]


def test_vectors_come_in_the_order_of_their_texts():
    """The backend may return them in any order."""
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    vectors = EmbedTranslator(model="m").complete(200, {"data": data, "usage": {"prompt_tokens": 4}})
    assert (vectors["embeddings"], vectors["prompt_eval_count"]) == ([[1.0], [2.0]], 4)
    assert EmbedTranslator(model="m").complete(400, {"error": {"message": "no"}}) == {"error": "no"}
