"""Translates chat completions for backends with Anthropic's Messages API. Pure.

https://docs.anthropic.com/en/api/messages. Features that it lacks (several answers, log probabilities, audio) are
errors, which cause a fallback to another backend; sampling parameters that it lacks are left out, and logged in the
audit log.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.dialects.dialect import (
    DialectError,
    JsonObject,
    arguments_of,
    cache_of,
    call_of,
    count_in,
    dumped,
    object_in,
    objects_in,
    text_in,
)
from llmkube.router.dialects.providers import PROVIDERS, REASONS, fitted

DEFAULT_TOKENS: Final = 4096
"""Limit for requests without one: it is mandatory in the Messages API."""

VERSION: Final = "2023-06-01"
"""Version of the API, for its header."""

_SAME: Final = ("model", "temperature", "top_p", "top_k", "stream", "thinking")
_TOOL_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "required": "any", "none": "none"}


def messages_request(chat: Mapping[str, Any], *, count: bool = False) -> tuple[JsonObject, tuple[str, ...]]:
    """Translate a request; return its body, and the fields that were left out.

    Args:
        chat: Request of chat completions.
        count: Whether to count its tokens only.

    Raises:
        DialectError: It cannot be translated.
    """
    _refuse_unsupported(chat)
    dropped: list[str] = []
    chat = fitted(dict(chat), PROVIDERS["anthropic"], dropped)
    body: JsonObject = {name: chat[name] for name in _SAME if chat.get(name) is not None}
    limit = chat.get("max_completion_tokens") or chat.get("max_tokens")
    body["max_tokens"] = limit or DEFAULT_TOKENS
    system, body["messages"] = _turns(objects_in(chat.get("messages"), "messages"), dropped)
    last = body["messages"][-1] if body["messages"] else {}
    if last.get("role") == "assistant" and last["content"][-1]["type"] == "text":
        last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()  # refused at the end of a request
    if system:
        body["system"] = system[0]["text"] if len(system) == 1 and "cache_control" not in system[0] else system
    if stop := chat.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if tools := objects_in(chat.get("tools"), "tools"):
        body["tools"] = [_tool(each, f"tools[{at}]") for at, each in enumerate(tools)]
    if (choice := _tool_choice(chat, bool(tools))) is not None:
        body["tool_choice"] = choice
    if isinstance(chat.get("user"), str):
        body["metadata"] = {"user_id": chat["user"]}
    if (wanted := _output_format(chat)) is not None:
        body["output_config"] = {"format": wanted}
    if count:
        body = {name: each for name, each in body.items() if name in _COUNT_FIELDS}
    return body, tuple(dropped)


_COUNT_FIELDS: Final = frozenset({"model", "messages", "system", "thinking", "tools", "tool_choice"})
SIGNED: Final = "anthropic-claude-v1"
"""Format of Anthropic's thoughts in `reasoning_details`, where OpenRouter writes them as well."""
THOUGHTS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "thinking": ("reasoning.text", {"thinking": "text", "signature": "signature"}),
    "redacted_thinking": ("reasoning.encrypted", {"data": "data"}),
}
"""For each type of a block, the type of the detail and its names; without the last one Anthropic refuses the block."""
THOUGHT_KINDS: Final = tuple(THOUGHTS)


def detail_of(block: Mapping[str, Any], index: int) -> JsonObject:
    """Return a thought, or a piece of one, as a detail of a chat completion."""
    kind, names = THOUGHTS[block["type"]]
    found = {name: each for own, name in names.items() if (each := text_in(block, own))}
    return {"type": kind, "format": SIGNED, "index": index} | found


def thought_fields(blocks: list[JsonObject]) -> JsonObject:
    """Return the fields of a chat's message for thoughts: their text, and the details if any is signed."""
    details = [detail_of(block, at) for at, block in enumerate(blocks)]
    text = "".join(each.get("text", "") for each in details)
    is_signed = any("signature" in each or "data" in each for each in details)
    return ({"reasoning_content": text} if text else {}) | ({"reasoning_details": details} if is_signed else {})


def thoughts_of(message: Mapping[str, Any], where: str, dropped: list[str]) -> list[JsonObject]:
    """Return the blocks of the thoughts in a message, or in a piece of one, and name those without a signature."""
    whole: list[JsonObject] = []
    for piece in objects_in(message.get("reasoning_details"), f"{where}.reasoning_details"):
        last = whole[-1] if whole and "signature" not in whole[-1] else {}
        if last and (last.get("type"), last.get("index")) == (piece.get("type"), piece.get("index")):
            text = text_in(last, "text") + text_in(piece, "text")
            whole[-1] = last | piece | {"text": text}
        else:
            whole.append(piece)
    found = []
    for at, detail in enumerate(whole):
        own, names = next(((own, row[1]) for own, row in THOUGHTS.items() if row[0] == detail.get("type")), ("", {}))
        block = {"type": own} | {name: text_in(detail, each) for name, each in names.items()}
        if detail.get("format") == SIGNED and list(block.values())[-1] and names:
            found.append(block)
        else:
            dropped.append(f"{where}.reasoning_details[{at}]")
    has_text = any(each["type"] == "thinking" for each in found)
    dropped += [f"{where}.{name}" for name in ("reasoning", "reasoning_content") if message.get(name) and not has_text]
    return found


def _refuse_unsupported(chat: Mapping[str, Any]) -> None:
    if chat.get("n") not in (None, 1):
        raise DialectError(f"n is {chat['n']}; the Messages API supports one answer only")
    if chat.get("logprobs"):
        raise DialectError("logprobs is true; the Messages API does not support it")
    if chat.get("functions"):
        raise DialectError("functions is set; write tools")
    modalities = chat.get("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        raise DialectError("modalities has audio; the Messages API does not support it")


def _output_format(chat: Mapping[str, Any]) -> JsonObject | None:
    wanted = object_in(chat.get("response_format"), "response_format")
    kind = wanted.get("type")
    if kind in (None, "text"):
        return None
    if kind != "json_schema":
        raise DialectError(f"response_format.type is {kind!r}; the Messages API supports json_schema only")
    schema = object_in(wanted.get("json_schema"), "response_format.json_schema").get("schema")
    return {"type": "json_schema", "schema": schema}


def _turns(messages: list[JsonObject], dropped: list[str]) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the system blocks, and the turns; consecutive turns of one role are merged."""
    system: list[JsonObject] = []
    turns: list[JsonObject] = []
    for at, message in enumerate(messages):
        where, role = f"messages[{at}]", message.get("role")
        content = message.get("content")
        if role in ("system", "developer") and not turns:
            system += _blocks(content, f"{where}.content")
            continue
        if role == "tool":
            mapped = "user"
            result: JsonObject = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
            if message.get("is_error") is True:
                result["is_error"] = True
            blocks = [result | ({"content": _tool_content(content, f"{where}.content")} if content else {})]
        elif role == "assistant":
            mapped, blocks = "assistant", _assistant_blocks(message, where, dropped)
        elif role in ("user", "system", "developer"):  # Anthropic's models read a later system turn in its place
            mapped, blocks = "user" if role == "user" else "system", _blocks(content, f"{where}.content")
        else:
            raise DialectError(f"{where}.role is {role!r}; write system, user, assistant or tool")
        if turns and turns[-1]["role"] == mapped:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": mapped, "content": blocks})
    return system, turns


def _tool_content(content: object, where: str) -> str | list[JsonObject]:
    return content if isinstance(content, str) else _blocks(content, where)


def _assistant_blocks(message: Mapping[str, Any], where: str, dropped: list[str]) -> list[JsonObject]:
    blocks = thoughts_of(message, where, dropped) + _blocks(message.get("content"), f"{where}.content")
    if isinstance(message.get("refusal"), str):
        blocks.append({"type": "text", "text": message["refusal"]})
    for at, call in enumerate(objects_in(message.get("tool_calls"), f"{where}.tool_calls")):
        function = object_in(call.get("function"), f"{where}.tool_calls[{at}].function")
        given = arguments_of(function.get("arguments"), f"{where}.tool_calls[{at}].function.arguments")
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given})
    return blocks


def _blocks(content: object, where: str) -> list[JsonObject]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block(each, f"{where}[{at}]") for at, each in enumerate(objects_in(content, where))]


def _block(part: Mapping[str, Any], where: str) -> JsonObject:
    kind = part.get("type")
    block: JsonObject
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise DialectError(f'{where} is of type {kind!r}; write {{"type": "text", "text": …}}')
        block = {"type": "text", "text": part["text"]}
    elif kind == "image_url":
        url = object_in(part.get("image_url"), f"{where}.image_url").get("url")
        block = {"type": "image", "source": _source(url, f"{where}.image_url.url")}
    elif kind == "file":
        file = object_in(part.get("file"), f"{where}.file")
        block = {"type": "document", "source": _source(file.get("file_data"), f"{where}.file.file_data")}
        if isinstance(file.get("filename"), str):
            block["title"] = file["filename"]
    else:
        raise DialectError(f"{where}.type is {kind!r}; supported here: text, image_url and file")
    return block | cache_of(part)


def _source(url: object, where: str) -> JsonObject:
    head, comma, data = str(url).partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise DialectError(f"{where} must be a base64 data: URL")
    return {"type": "base64", "media_type": head[5:-7], "data": data}


def _tool(tool: Mapping[str, Any], where: str) -> JsonObject:
    function = object_in(tool.get("function"), f"{where}.function")
    if not function.get("name"):
        raise DialectError(f"{where}.function.name is missing; the Messages API supports functions only")
    mapped: JsonObject = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    for name in ("description", "strict"):
        if function.get(name) is not None:
            mapped[name] = function[name]
    return mapped | cache_of(tool)


def _tool_choice(chat: Mapping[str, Any], any_tool: bool) -> JsonObject | None:
    choice, parallel = chat.get("tool_choice"), chat.get("parallel_tool_calls")
    if not any_tool:
        return None
    mapped: JsonObject | None = None
    if isinstance(choice, dict):
        name = object_in(choice.get("function"), "tool_choice.function").get("name")
        mapped = {"type": "tool", "name": name}
    elif choice is not None:
        if not isinstance(choice, str) or choice not in _TOOL_CHOICES:
            raise DialectError(f"tool_choice is {choice!r}; write auto, required, none or a function")
        mapped = {"type": _TOOL_CHOICES[choice]}
    if parallel is not None and (mapped is None or mapped["type"] != "none"):
        mapped = (mapped or {"type": "auto"}) | {"disable_parallel_tool_use": not parallel}
    return mapped


def chat_of_message(message: Mapping[str, Any]) -> JsonObject:
    """Translate a whole answer to chat completions; an error keeps its message, and its type becomes its code."""
    if message.get("type") == "error" or "error" in message:
        error = object_in(message.get("error"), "error")
        return {"error": {**error, "code": error.get("code") or error.get("type")}}
    if "input_tokens" in message:  # a token count, which costs no tokens
        none = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return {"input_tokens": message["input_tokens"], "usage": none}
    text = ""
    calls: list[JsonObject] = []
    thoughts: list[JsonObject] = []
    for block in objects_in(message.get("content"), "content"):
        if block.get("type") == "text":
            text += str(block.get("text") or "")
        elif block.get("type") in THOUGHT_KINDS:
            thoughts.append(block)
        elif block.get("type") == "tool_use":
            calls.append(call_of(block.get("id"), block.get("name"), block.get("input")))
    mapped: JsonObject = {"role": "assistant", "content": text or None, "refusal": None} | thought_fields(thoughts)
    if calls:
        mapped["tool_calls"] = calls
    reason = REASONS.get(str(message.get("stop_reason")), "stop")
    return {
        "id": message.get("id"),
        "object": "chat.completion",
        "created": 0,
        "model": message.get("model"),
        "choices": [
            {"index": 0, "message": mapped, "finish_reason": reason, "logprobs": None} | _matched_stop(message)
        ],
        "usage": usage_of_message(object_in(message.get("usage"), "usage")) or None,
    }


def _matched_stop(ending: Mapping[str, Any]) -> JsonObject:
    """Return the stop sequence that ended an answer, in vLLM's field; empty if none did."""
    matched = ending.get("stop_sequence")
    return {"stop_reason": matched} if isinstance(matched, str) else {}


def usage_of_message(usage: Mapping[str, Any]) -> JsonObject:
    """Translate the usage: the prompt includes tokens written to the cache and read from it.

    It is empty if a number is negative. Cache writes, which chat completions do not have, keep their names.
    """
    if not usage or any(isinstance(each, int) and each < 0 for each in usage.values()):
        return {}
    cached, written = count_in(usage, "cache_read_input_tokens"), count_in(usage, "cache_creation_input_tokens")
    prompt, answer = count_in(usage, "input_tokens") + written + cached, count_in(usage, "output_tokens")
    names = ("cache_creation_input_tokens", "cache_creation") if written else ()
    return {name: usage[name] for name in names if name in usage} | {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@attrs.define(eq=False)
class MessageEvents:
    """Translates the events of one answer.

    Attributes:
        done: Whether `message_stop` was received.
    """

    done: bool = False
    _id: str = ""
    _model: str = ""
    _usage: JsonObject = attrs.field(factory=dict)
    _call: int = -1
    _thought: int = -1
    _role: JsonObject = attrs.field(factory=dict)
    _input: JsonObject | None = None  # of the open call, whose arguments have not begun

    def take(self, event: Mapping[str, Any]) -> list[JsonObject]:
        """Translate one event to events of chat completions; none if it has no counterpart.

        Raises:
            DialectError: It is malformed.
        """
        kind = event.get("type")
        if kind == "message_start":
            message = object_in(event.get("message"), "message")
            self._id, self._model = str(message.get("id") or ""), str(message.get("model") or "")
            self._usage = dict(object_in(message.get("usage"), "usage"))
            self._role = {"role": "assistant"}  # sent with the first content: until then a fallback is possible
            return []
        if kind == "content_block_start":
            return self._start(object_in(event.get("content_block"), "content_block"))
        if kind == "content_block_delta":
            return self._piece(object_in(event.get("delta"), "delta"))
        if kind == "content_block_stop":
            return self._arguments(dumped(self._input)) if self._input is not None else []
        if kind == "message_delta":
            mapped = object_in(event.get("usage"), "usage")
            self._usage |= {name: each for name, each in mapped.items() if each is not None}
            delta = object_in(event.get("delta"), "delta")
            reason = delta.get("stop_reason")
            if not reason:
                return []
            end = self._chunk({}, REASONS.get(str(reason), "stop"))
            end["choices"][0] |= _matched_stop(delta)
            usage = {"choices": [], "usage": usage_of_message(self._usage)}
            return [end, self._chunk({}) | usage] if usage["usage"] else [end]
        if kind == "message_stop":
            self.done = True
        if kind == "error":
            return [chat_of_message(event)]
        return []

    def _start(self, block: Mapping[str, Any]) -> list[JsonObject]:
        if block.get("type") == "tool_use":
            self._call += 1
            self._input = object_in(block.get("input"), "input")
            function = {"name": block.get("name"), "arguments": ""}
            call = {"index": self._call, "id": block.get("id"), "type": "function", "function": function}
            return [self._chunk({"tool_calls": [call]})]
        if block.get("type") in THOUGHT_KINDS:
            self._thought += 1
            return self._detail(block)
        return [self._chunk({"content": block["text"]})] if block.get("text") else []

    def _piece(self, delta: Mapping[str, Any]) -> list[JsonObject]:
        kind = delta.get("type")
        if kind == "text_delta":
            return [self._chunk({"content": delta.get("text")})]
        if kind in ("thinking_delta", "signature_delta"):
            return self._detail({**delta, "type": "thinking"})
        if kind == "input_json_delta" and delta.get("partial_json"):
            return self._arguments(delta["partial_json"])
        return []

    def _detail(self, block: Mapping[str, Any]) -> list[JsonObject]:
        detail = detail_of(block, self._thought)
        text = {"reasoning_content": detail["text"]} if "text" in detail else {}
        is_empty = detail.keys().isdisjoint(("text", "signature", "data"))
        return [] if is_empty else [self._chunk(text | {"reasoning_details": [detail]})]

    def _arguments(self, text: object) -> list[JsonObject]:
        self._input = None
        return [self._chunk({"tool_calls": [{"index": self._call, "function": {"arguments": text}}]})]

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> JsonObject:
        role, self._role = self._role, {}
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": 0,
            "model": self._model,
            "choices": [{"index": 0, "delta": role | delta, "finish_reason": reason}],
        }
