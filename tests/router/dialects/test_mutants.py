"""Each deliberate bug in a translation is caught by the round trips: else these properties would prove nothing."""

import json

import pytest

from llmkube.router.dialects import messages_answers, messages_backend, messages_client, ollama_client
from router.dialects.drawn_chats import chunks_of, joined

TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}}
REQUEST = {
    "model": "m",
    "max_tokens": 9,
    "system": "s",
    "stop_sequences": ["x"],
    "tools": [TOOL],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r", "is_error": True}]},
    ],
}
MESSAGE = {
    "role": "assistant",
    "content": "hello",
    "refusal": None,
    "reasoning_content": "hm",
    "tool_calls": [
        {"id": f"c{at}", "type": "function", "function": {"name": f"f{at}", "arguments": f'{{"a":{at}}}'}}
        for at in range(2)
    ],
}
ANSWER = {
    "id": "x",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls", "logprobs": None}],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
}
LIMITED = ANSWER | {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a", "refusal": None},
            "finish_reason": "length",
            "logprobs": None,
        }
    ]
}


def play():
    """Round-trip one request, and two answers, whole and as streams."""
    again, dropped = messages_backend.messages_request(messages_client.chat_request(REQUEST, []))
    assert (again, dropped) == (REQUEST, ())
    for answer in (ANSWER, LIMITED):
        complete = messages_backend.chat_of_message(
            messages_answers.MessagesTranslator(model="m").complete(200, answer)
        )
        assert (complete["choices"], complete["usage"]) == (answer["choices"], answer["usage"])
        translator, backend = messages_answers.MessagesTranslator(model="m"), messages_backend.MessageEvents()
        data = b"".join(translator.event(each) for each in chunks_of(answer, 3)) + translator.end()
        events = [json.loads(each.partition(b"data: ")[2]) for each in data.split(b"\n\n")[:-1]]
        stream = joined([chunk for event in events for chunk in backend.take(event)])
        assert (stream["choices"], stream["usage"], backend.done) == (answer["choices"], answer["usage"], True)
        lines = ollama_client.OllamaTranslator(model="m")
        data = b"".join(lines.event(each) for each in chunks_of(answer, 3)) + lines.end()
        last = json.loads(data.splitlines()[-1])
        whole = ollama_client.OllamaTranslator(model="m").complete(200, answer)
        assert (last["eval_count"], last["prompt_eval_count"]) == (4, 9)
        assert last["message"].get("tool_calls") == whole["message"].get("tool_calls")
        calls = [call["function"] for call in whole["message"].get("tool_calls", ())]
        expected = [] if answer is LIMITED else [{"name": f"f{at}", "arguments": {"a": at}} for at in range(2)]
        assert calls == expected
        assert last["done_reason"] == whole["done_reason"] == ("length" if answer is LIMITED else "stop")
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "r", "tool_name": "f"},
    ]
    called, result = ollama_client.read_chat({"model": "m", "messages": turns}).body["messages"]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"]


def returning(change):
    """Return a mutant of a function whose result is changed."""
    return lambda real: lambda *args, **kwargs: change(real(*args, **kwargs))


def without(name):
    return returning(lambda value: {key: each for key, each in value.items() if key != name})


MUTANTS = {
    "a request forgets its tools": (messages_client, "_tools", returning(lambda value: {})),
    "any tool becomes automatic": (messages_client, "_tool_choice", returning(lambda value: "auto")),
    "results become the user's words": (messages_client, "_tool_result", returning(lambda one: one | {"role": "user"})),
    "an error looks like a result": (messages_client, "_tool_result", without("is_error")),
    "an image loses its kind": (messages_client, "_data_url", returning(lambda value: value.replace("jpeg", "png"))),
    "a model's calls are forgotten": (messages_client, "_assistant_message", without("tool_calls")),
    "a backend is not asked for a choice": (messages_backend, "_tool_choice", returning(lambda value: None)),
    "a backend gets half of a turn": (messages_backend, "_blocks", returning(lambda value: value[:1])),
    "a tool loses its schema": (messages_backend, "_tool", without("input_schema")),
    "an image is sent as another": (messages_backend, "_source", returning(lambda value: value | {"data": ""})),
    "cached tokens are lost": (messages_answers, "usage_of_chat", without("cache_read_input_tokens")),
    "cached tokens count twice": (
        messages_answers, "usage_of_chat", returning(lambda value: value | {"input_tokens": 9})),
    "a cut answer looks finished": (messages_answers, "STOP_REASONS", lambda real: real | {"length": "end_turn"}),
    "a call looks like an end": (messages_answers, "STOP_REASONS", lambda real: real | {"tool_calls": "end_turn"}),
    "a cut answer of a backend looks finished": (
        messages_backend, "REASONS", lambda real: real | {"max_tokens": "stop"}),
    "a backend's tokens are not read": (messages_backend, "count_in", returning(lambda value: 0)),
    "Ollama's calls are lost": (ollama_client, "_calls_of", returning(lambda value: value[:1])),
    "Ollama's tokens are lost": (ollama_client, "count_in", returning(lambda value: 0)),
    "a cut answer looks finished to Ollama": (ollama_client, "_REASONS", lambda real: {}),
    "a result belongs to another call": (ollama_client, "_pop_call_id", returning(lambda value: "call_9")),
}  # fmt: skip


@pytest.mark.soak
def test_without_a_bug_everything_comes_back():
    """If this failed, the mutants would prove nothing."""
    play()


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    """An answer or a request does not round-trip."""
    module, patched, mutate = MUTANTS[name]
    monkeypatch.setattr(module, patched, mutate(getattr(module, patched)))
    with pytest.raises((AssertionError, KeyError)):
        play()
