"""Ollama's requests as chat completions and embeddings: tables of what becomes of each field."""

import pytest

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.ollama_client import OllamaChat, OllamaEmbed, OllamaGenerate

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
    """As the documented APIs name it."""
    assert OllamaChat().read(body).body[name] == expected


def test_an_answer_is_whole_only_if_the_client_says_so():
    """Ollama's default is a stream."""
    assert "stream" not in OllamaChat().read(ASKED | {"stream": False}).body
    assert "max_tokens" not in OllamaChat().read(ASKED | {"options": {"num_predict": -1}}).body


def test_results_belong_to_the_calls_before_them():
    """By the tool's name, else by their order: chat completions want names of calls, Ollama has none."""
    called = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g", "f")]
    turns = [
        {"role": "assistant", "content": "", "tool_calls": called},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f", "tool_name": "f"},
        {"role": "tool", "content": "the rest"},
    ]
    said, *results = OllamaChat().read(ASKED | {"messages": turns}).body["messages"]
    assert [call["id"] for call in said["tool_calls"]] == ["call_0", "call_1", "call_2"]
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert [each["tool_call_id"] for each in results] == ["call_1", "call_0", "call_2"]


@pytest.mark.parametrize(
    ("dialect", "body", "words"),
    [
        (OllamaChat(), ASKED | {"messages": []}, "messages is empty"),
        (OllamaChat(), ASKED | {"messages": [{"role": "robot"}]}, "'robot'; write system"),
        (OllamaChat(), ASKED | {"messages": [{"role": "tool", "tool_name": "f"}]}, "which no message before it calls"),
        (OllamaChat(), ASKED | {"messages": [{"role": "user", "content": [1]}]}, "must be a text"),
        (OllamaChat(), ASKED | {"format": "xml"}, "format is 'xml'"),
        (OllamaGenerate(), {"model": "m"}, "prompt is missing"),
        (OllamaGenerate(), PROMPT | {"raw": True}, "raw is set"),
        (OllamaGenerate(), PROMPT | {"suffix": "x"}, "suffix is set"),
        (OllamaGenerate(), PROMPT | {"template": "x"}, "template is set"),
        (OllamaGenerate(), PROMPT | {"context": [1]}, "context is set"),
        (OllamaGenerate(), PROMPT | {"images": [7]}, "images must be a list"),
        (OllamaEmbed(), {"model": "m", "input": [1]}, "input must be a text"),
        (OllamaEmbed(), {"model": "m"}, "input must be a text"),
    ],
)
def test_what_only_ollama_does_is_refused_by_its_field(dialect, body, words):
    """With what to write instead."""
    with pytest.raises(DialectError, match=words):
        dialect.read(body)


def test_how_ollama_would_run_its_engine_is_left_out_and_named():
    """For the audit log."""
    found = OllamaChat().read(ASKED | {"keep_alive": "5m", "options": {"num_ctx": 4096, "seed": 1}})
    assert (found.dropped, found.body["seed"]) == (("keep_alive", "options.num_ctx"), 1)


def test_a_prompt_is_a_chat_of_one_turn():
    """Under the model's own template, as Ollama does it."""
    body = OllamaGenerate().read(PROMPT | {"system": "be brief"}).body
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_texts_are_asked_for_vectors():
    """One text is a list of one."""
    found = OllamaEmbed().read({"model": "m", "input": "a", "truncate": True, "dimensions": 8})
    assert (found.path, found.body) == ("/embeddings", {"model": "m", "input": ["a"], "dimensions": 8})
    assert found.dropped == ("truncate",)


def test_errors_are_ollamas():
    """A message, with how long too long a prompt is."""
    long = {"message": "too long", "n_prompt_tokens": 900, "n_ctx": 512}
    said = {"error": "too long (the prompt needs 900 tokens, 512 are available)"}
    assert (
        OllamaChat().refusal(400, long)
        == OllamaGenerate().refusal(400, long)
        == OllamaEmbed().refusal(400, long)
        == said
    )
