"""The request by which another engine goes on with an answer: the same one, and the text so far. Pure."""

from collections.abc import Mapping
from typing import Any

from llmkube.router.continuation.continuable import CHAT, LIMITS, is_limit


def next_request(path: str, body: Mapping[str, Any], text: str, tokens: int) -> dict[str, Any]:
    """Return the request by which the next engine writes what comes after the text.

    llama.cpp's server takes a last message of the assistant for the beginning of its answer. It is told so as well: one
    that was started with `--no-prefill-assistant` would else begin a second answer. Before anything was said the
    request is what it was.

    Args:
        path: Below `/v1`.
        body: The first request.
        text: What the answer is so far.
        tokens: As many as that took.
    """
    if not text:
        return dict(body)
    limits = {name: body[name] - tokens for name in LIMITS if is_limit(body.get(name))}
    if path != CHAT:
        return {**body, **limits, "prompt": body["prompt"] + text}
    mode = {"continue_final_message": True, "add_generation_prompt": False}
    return {**body, **limits, **mode, "messages": _with_text(body["messages"], text)}


def _with_text(messages: list[Any], text: str) -> list[Any]:
    """Return messages that end with the text: a client may have begun the answer itself."""
    last = messages[-1]
    if last.get("role") != "assistant":
        return [*messages, {"role": "assistant", "content": text}]
    begun = last["content"]
    content = begun + text if isinstance(begun, str) else [*begun, {"type": "text", "text": text}]
    return [*messages[:-1], {**last, "content": content}]
