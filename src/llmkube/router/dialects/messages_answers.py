"""Translates answers of chat completions for clients of Anthropic's Messages API. Pure.

The blocks of a stream are sequential: `message_start`, then start, deltas and stop of each block, then `message_delta`
with stop reason and usage, and `message_stop`. https://docs.anthropic.com/en/api/messages-streaming
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.dialects.dialect import (
    AnswerTranslator,
    DialectError,
    JsonObject,
    arguments_of,
    choice_in,
    count_in,
    index_of,
    message_of,
    named_event,
    object_in,
    objects_in,
    text_in,
)
from llmkube.router.dialects.error_shapes import CONTEXT_FULL
from llmkube.router.dialects.messages_backend import thoughts_of
from llmkube.router.dialects.providers import TABLE

STOP_REASONS: Final[Mapping[str, str]] = TABLE["messages"]["reasons"]
_STOP_NAMES: Final = frozenset({*STOP_REASONS, *STOP_REASONS.values(), "stop_sequence"})
_ERRORS: Final[Mapping[str, str]] = TABLE["messages"]["errors"]
_ANTHROPIC_USAGE: Final = dict.fromkeys(
    ("cache_creation", "inference_geo", "output_tokens_details", "server_tool_use", "service_tier")
)
"""Mandatory members of `usage` that only Anthropic knows."""
PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


def messages_error(status: int, error: Mapping[str, Any]) -> JsonObject:
    """Return an error in Anthropic's format."""
    kind = _ERRORS.get(str(status)) or ("invalid_request_error" if status < 500 else "api_error")
    body: JsonObject = {"type": kind, "message": message_of(error)}
    needed, limit = count_in(error, "n_prompt_tokens"), count_in(error, "n_ctx")
    if error.get("code") == CONTEXT_FULL and (
        needed > limit or not limit
    ):  # Claude Code then compacts its conversation
        body["message"] = f"prompt is too long: {f'{needed} tokens > {limit} maximum' if limit else body['message']}"
    if isinstance(error.get("code"), str):
        body["code"] = error["code"]
    return {"type": "error", "error": body}


def message_of_chat(chat: Mapping[str, Any], model: str) -> JsonObject:
    """Translate a whole answer."""
    choice = choice_in(chat)
    body = object_in(choice.get("message"), "message")
    content = thoughts_of(body, "message", [])
    if body.get("reasoning_content") and not content:
        content.append({"type": "thinking", "thinking": body["reasoning_content"], "signature": ""})
    texts = [text for text in (body.get("content"), body.get("refusal")) if isinstance(text, str) and text]
    content += [{"type": "text", "text": text} for text in texts]
    for at, call in enumerate(objects_in(body.get("tool_calls"), "tool_calls")):
        function = object_in(call.get("function"), "function")
        given = arguments_of(function.get("arguments"), f"tool_calls[{at}].function.arguments")
        call_id = call.get("id") or f"call_{at}"
        content.append({"type": "tool_use", "id": call_id, "name": function.get("name"), "input": given})
    return {
        "id": f"msg_{chat.get('id') or 'unnamed'}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **_ending(choice),
        "stop_details": None,
        "container": None,
        "usage": _ANTHROPIC_USAGE | usage_of_chat(chat),
    }


def _ending(choice: Mapping[str, Any]) -> JsonObject:
    """Return why an answer ended; vLLM and SGLang report the stop sequence that ended it."""
    reason = STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn")
    matched = choice.get("stop_reason") or choice.get("matched_stop")
    if reason == "end_turn" and isinstance(matched, str) and matched not in _STOP_NAMES:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": reason, "stop_sequence": None}


def usage_of_chat(chat: Mapping[str, Any]) -> JsonObject:
    """Translate the usage: `input_tokens` excludes tokens read from the cache or written to it."""
    usage = object_in(chat.get("usage"), "usage")
    cached = count_in(object_in(usage.get("prompt_tokens_details"), "prompt_tokens_details"), "cached_tokens")
    prompt = count_in(usage, "prompt_tokens")
    cached = min(cached, prompt)
    written = min(count_in(usage, "cache_creation_input_tokens"), prompt - cached)
    periods = {"cache_creation": usage["cache_creation"]} if written and "cache_creation" in usage else {}
    return periods | {
        "input_tokens": prompt - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": count_in(usage, "completion_tokens"),
    }


@attrs.define(eq=False, kw_only=True)
class MessagesTranslator(AnswerTranslator):
    """Translates the answers to one request.

    Attributes:
        model: Model name in the client's request.
    """

    model: str
    _usage: JsonObject = attrs.field(factory=lambda: usage_of_chat({}))
    _ending: JsonObject = attrs.field(factory=lambda: _ending({}))
    _started: bool = False
    _index: int = -1
    _open_block: str = ""
    _tool_index: int = -1

    refusal = staticmethod(messages_error)

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return a message."""
        return message_of_chat(body, self.model)

    def event(self, body: Mapping[str, Any]) -> bytes:
        """Translate one event."""
        return b"".join(map(named_event, self._events(body)))

    def _events(self, body: Mapping[str, Any]) -> list[JsonObject]:
        events: list[JsonObject] = []
        if not self._started:
            self._started = True
            message = message_of_chat({"id": body.get("id")}, self.model) | {"stop_reason": None}
            events.append({"type": "message_start", "message": message})
        if body.get("usage"):
            self._usage = usage_of_chat(body)
        choice = choice_in(body)
        events += self._delta(object_in(choice.get("delta"), "delta"))
        if choice.get("finish_reason"):
            self._ending = _ending(choice)
        return events

    def _delta(self, delta: Mapping[str, Any]) -> list[JsonObject]:
        events: list[JsonObject] = []
        if thought := text_in(delta, "reasoning_content"):
            events += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._piece({"type": "thinking_delta", "thinking": thought}))
        for block in thoughts_of(delta, "delta", []):
            if signature := block.get("signature"):
                events += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                events.append(self._piece({"type": "signature_delta", "signature": signature}))
            else:
                events += self._block(block["type"], block)
            events += self._stop()
        for text in (delta.get("content"), delta.get("refusal")):
            if isinstance(text, str) and text:
                events += self._block("text", {"type": "text", "text": ""})
                events.append(self._piece({"type": "text_delta", "text": text}))
        for call in objects_in(delta.get("tool_calls"), "tool_calls"):
            events += self._tool_call(call)
        return events

    def _tool_call(self, call: Mapping[str, Any]) -> list[JsonObject]:
        events: list[JsonObject] = []
        index, function = index_of(call), object_in(call.get("function"), "function")
        arguments = text_in(function, "arguments")
        if index < self._tool_index or (index == self._tool_index and self._open_block != "tool_use"):
            if arguments == "{}":
                return []  # of a call without arguments: its block has this input
            raise DialectError("the backend continued a tool call that had ended")
        if index > self._tool_index:
            name = call.get("id") or f"call_{index}"
            events += self._stop()
            block: JsonObject = {"type": "tool_use", "id": name, "name": function.get("name"), "input": {}}
            events += self._block("tool_use", block)
            self._tool_index = index
        if arguments:
            events.append(self._piece({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def _block(self, kind: str, block: JsonObject) -> list[JsonObject]:
        if self._open_block == kind:
            return []
        events = self._stop()
        self._index += 1
        self._open_block = kind
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _piece(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> list[JsonObject]:
        if not self._open_block:
            return []
        self._open_block = ""
        return [{"type": "content_block_stop", "index": self._index}]

    def waiting(self) -> bytes:
        """Return a ping."""
        return PING

    def end(self) -> bytes:
        """Return the end of a message."""
        last = {"type": "message_delta", "delta": self._ending, "usage": self._usage}
        return b"".join(map(named_event, (*self._stop(), last, {"type": "message_stop"})))

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return an error event."""
        return named_event(messages_error(502, error))


class CountTranslator(AnswerTranslator):
    """Translates a token count."""

    refusal = staticmethod(messages_error)

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return a token count."""
        return {"input_tokens": count_in(body, "input_tokens")}
