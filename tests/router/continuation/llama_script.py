"""A scripted llama.cpp server: answers with prefill, limits, timings and usage."""

import json
import re

import orjson

PIECES = [("Hel", 1), ("lo", 1), (" w", 1), ("ö", 2), ("rld", 1), (" 😀", 3), (" </s", 2), ("top>", 1), ("!", 1)]
"""Pieces of the answer, with their tokens. A token that ends in the middle of a character is not a piece."""

TEXT = "".join(text for text, _ in PIECES)
TOKENS = sum(tokens for _, tokens in PIECES)
PROMPT = "<|user|>hi<|assistant|>"
PROMPT_TOKENS = 7
CHAT, COMPLETIONS = "/chat/completions", "/completions"


def begun(path, body):
    """Return the text that a request gives as the beginning of the answer."""
    if path == COMPLETIONS:
        return body["prompt"].removeprefix(PROMPT)
    last = body["messages"][-1]
    return last["content"] if last["role"] == "assistant" else ""


def answer(path, body, name="a", *, model="m.gguf", extra_prompt=0):  # noqa: C901 (one script, from its top to its end)
    """Return the events of the answer to one request, from the engine of this name."""
    so_far, at = begun(path, body), 0
    while "".join(text for text, _ in PIECES[:at]) != so_far:
        at += 1
        assert at <= len(PIECES), f"{so_far!r} is no beginning of {TEXT!r}"
    before = sum(tokens for _, tokens in PIECES[:at])
    cached, read = (3, PROMPT_TOKENS + before - 3 + extra_prompt)
    written, limit, finish = 0, body.get("max_tokens", 10_000), "stop"
    assert limit > 0, "an engine is asked for nothing"
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    names = {"created": len(name) + 100, "id": f"chatcmpl-{name}", "model": model, "system_fingerprint": "b1-x"}

    def event(choices, **more):
        return b"data: %b\n\n" % orjson.dumps({"choices": choices, **names, "object": kind, **more})

    def choice(text, finish=None):
        if path == CHAT:
            return [{"finish_reason": finish, "index": 0, "delta": {} if text is None else {"content": text}}]
        return [{"text": text or "", "index": 0, "logprobs": None, "finish_reason": finish}]

    def timings():
        return {"cache_n": cached, "prompt_n": read, "prompt_ms": 1.5, "predicted_n": written, "predicted_ms": 2.5}

    if path == CHAT:
        yield event([{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}])
    for text, tokens in PIECES[at:]:
        if written + tokens > limit:
            written, finish = limit, "length"
            break
        written += tokens
        yield event(choice(text), **({"timings": timings()} if body.get("timings_per_token") else {}))
        if written == limit:
            finish = "length"
            break
    if finish == "stop":
        written += 1  # the token that ends it
    total = cached + read
    usage = {
        "completion_tokens": written,
        "prompt_tokens": total,
        "total_tokens": total + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    counts = {"usage": usage, "timings": timings()}
    if path == COMPLETIONS:
        yield event(choice(None, finish), **counts)
    else:
        yield event(choice(None, finish))
        if body.get("stream_options", {}).get("include_usage"):
            yield event([], **counts)
    yield b"data: [DONE]\n\n"


def text_in(data):
    """Return the text of a stream."""
    found = ""
    for line in re.findall(rb"^data: (\{.*)$", data, re.MULTILINE):
        for one in json.loads(line).get("choices", []):
            found += one.get("text") or one.get("delta", {}).get("content") or ""
    return found
