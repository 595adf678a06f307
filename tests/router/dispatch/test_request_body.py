"""Parts of a client's body that a backend gets."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dispatch.request_body import FIELDS, BodyError, check_types, parse_body, rebuild, refuse_urls
from router.proxy.router_lab import cloud, local

CANARY = "canary-7f3a"
NAMES = ["api_base", "api_key", "base_url", "url", "endpoint", "headers", "extra_body", "litellm_params", "model_info"]


def sent(body, backend, path="/chat/completions"):
    return json.loads(rebuild(path, parse_body(json.dumps(body).encode()), backend).body)


FULL = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"url": {"type": "string"}}}}}
    ],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "http://x"}}},
    "stop": ["a", "b"],
    "logit_bias": {"50256": -100},
    "metadata": {"a": "b"},
}


def test_what_a_request_has_passes_as_it_is():
    """OpenAI gets every field of its API, at every depth; only the model is replaced."""
    assert sent(FULL, cloud("c")) == FULL | {"model": "gpt"}


def test_metadata_goes_to_those_who_only_store_it():
    """A gateway would interpret it."""
    assert "metadata" not in sent(FULL, cloud("c", provider="litellm"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completions", {"model": "m", "prompt": [[1, 2], [3]], "suffix": "s"}),
        ("/embeddings", {"model": "m", "input": ["a", "b"], "dimensions": 3}),
        ("/rerank", {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
    ],
)
def test_each_path_has_its_own_fields(path, body):
    """Fields of another path are dropped."""
    assert sent(body | {"messages": []}, cloud("c"), path) == body | {"model": "gpt"}


def test_an_engine_of_ours_gets_the_further_fields_of_its_server():
    """The model is the client's, unless the backend has another name for it."""
    body = {"model": "m", "messages": [], "top_k": 3, "cache_prompt": True, "grammar": "root ::= .", "id_slot": 1}
    assert sent(body, local("mac")) == body
    assert sent(body, local("mac", model="phi"))["model"] == "phi"


@pytest.mark.parametrize(
    "field",
    [
        *("adapters", "draft_model", "kv_transfer_params", "bootstrap_host", "lora_path", "custom_logit_processor"),
        *("chat_template", "mm_processor_kwargs", "priority", "api_base", "slot_restore"),
    ],
)
@pytest.mark.parametrize("path", FIELDS)
def test_an_engine_of_ours_is_named_no_file_host_or_model(field, path):
    """Only listed fields pass; else a client could make it load, connect to or run anything."""
    found = rebuild(path, {"model": "m", "messages": [], field: "x"}, local("a"))
    assert field not in json.loads(found.body)
    assert field in found.dropped


def test_openai_gets_a_limit_by_its_newer_name():
    """OpenAI's newer models refuse `max_tokens`; other servers of its API may know only that name."""
    own = cloud("c", base_url="https://api.openai.com/v1")
    assert sent({"model": "m", "max_tokens": 5}, own)["max_completion_tokens"] == 5
    assert "max_tokens" not in sent({"model": "m", "max_tokens": 5, "max_completion_tokens": 6}, own)
    assert sent({"model": "m", "max_tokens": 5}, cloud("c"))["max_tokens"] == 5
    assert sent({"model": "m", "prompt": "", "max_tokens": 5}, own, "/completions")["max_tokens"] == 5


def test_what_was_dropped_is_known():
    """The audit log gets their paths."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x", "api_key": "k"}], "api_base": "http://x"}
    rebuilt = rebuild("/chat/completions", parse_body(json.dumps(body).encode()), cloud("c"))
    assert rebuilt.dropped == ("messages[0].api_key", "api_base")


def test_usage_is_asked_for_in_streams():
    """The client's own request for it is remembered; other stream options are not passed on."""
    asked = parse_body(json.dumps({"model": "m", "stream": True, "stream_options": {"x": 1}}).encode())
    rebuilt = rebuild("/chat/completions", asked, cloud("c"))
    assert (json.loads(rebuilt.body)["stream_options"], rebuilt.usage_added) == ({"include_usage": True}, True)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_url", "image_url": "https://x/y.png"},
        {"type": "input_audio", "input_audio": {"url": "file:///etc/passwd"}},
        {"type": "video_url", "video_url": {"url": "HTTP://x"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "https://x/a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": " http://x/a.wav", "format": "wav"}},
    ],
)
def test_nothing_is_fetched_for_a_client(part):
    """Neither a provider nor our engine fetches a URL."""
    with pytest.raises(BodyError, match=r"messages\[0\]\.content\[0\].*data:"):
        refuse_urls({"model": "m", "messages": [{"content": [part]}]})


KEYS = st.sampled_from([*NAMES, *FIELDS["/chat/completions"], "content", "image_url", "function", "type"])
VALUES = st.recursive(
    st.sampled_from([CANARY, 1, True, None, f"http://{CANARY}/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.sampled_from(sorted(FIELDS)))
@example({"logit_bias": {"api_base": 1}}, "/chat/completions")
@example({"metadata": {"url": CANARY}}, "/chat/completions")
def test_no_field_that_names_a_url_or_a_key_reaches_a_provider(body, path):
    """Nested fields are checked at any depth."""
    try:
        asked = parse_body(json.dumps(body | {"model": "m"}).encode())
        written = json.loads(rebuild(path, asked, cloud("c")).body)
    except (BodyError, DialectError):
        return

    def names(value, free=False):
        if isinstance(value, list):
            for each in value:
                yield from names(each, free)
        elif isinstance(value, dict):
            for name, each in value.items():
                if name in ("parameters", "schema", "metadata"):
                    continue  # text for the model; labels that OpenAI stores and no other provider gets
                yield name, each
                yield from names(each)

    for name, value in names(written):
        if name == "url":
            assert value is None or not isinstance(value, str) or value.startswith("data:")
        else:
            assert name not in NAMES


TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; write a number, or omit it"),
        ({"max_tokens": True}, "max_tokens is True; write a number"),
        ({"top_p": [1]}, "top_p is [1]; write a number"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls is 'no'; write true or false"),
        ({"user": 7}, "user is 7; write a string"),
        ({"response_format": "json"}, "response_format is 'json'; write an object"),
        ({"messages": "hi"}, "messages must be a list of objects"),
        ({"messages": ["hi"]}, "messages must be a list of objects"),
        ({"messages": [TURN, TURN | {"role": 7}]}, "messages[1].role is 7; write a string"),
        ({"messages": [TURN | {"content": 7}]}, "messages[0].content must be a list of objects"),
        ({"messages": [TURN | {"content": ["a"]}]}, "messages[0].content must be a list of objects"),
        ({"messages": [TURN | {"tool_calls": {}}]}, "messages[0].tool_calls must be a list of objects"),
        ({"tools": {}}, "tools must be a list of objects"),
        ({"tool_choice": 7}, "tool_choice is 7; write a string or an object"),
        ({"stop": 7}, "stop is 7; write a string or a list of strings"),
        ({"stop": ["a", 7]}, "stop is ['a', 7]"),
        ({"prompt": {}}, "prompt is {}; write a string or a list"),
        ({"input": 7}, "input is 7; write a string or a list"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(changes, words):
    """The error has the expected type."""
    with pytest.raises(DialectError) as caught:
        check_types({"model": "m", "messages": [TURN]} | changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        dict.fromkeys(("temperature", "max_tokens", "stop", "tools", "tool_choice", "response_format", "user")),
        {"temperature": 1, "top_p": 0.5, "seed": -1, "stop": "x", "tool_choice": "auto", "logprobs": True},
        {"stop": ["x"], "tool_choice": {"type": "function"}, "logit_bias": [[7, 1]], "logprobs": 3},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}, TURN | {"content": [{}]}]},
        {"prompt": [1, 2], "input": ["a"], "documents": ["a", {"text": "b"}]},
    ],
)
def test_what_backends_take_passes(changes):
    """Null values and fields of llama.cpp's server pass, too."""
    check_types({"model": "m", "messages": [TURN]} | changes)
