"""Translates requests of clients of Anthropic's Messages API to chat completions. Pure.

https://docs.anthropic.com/en/api/messages. A field without a counterpart is refused if its absence would change the
meaning of an answer (one of Anthropic's own tools, a document by URL); otherwise it is left out, and logged in the
audit log.
"""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.router.dialects.dialect import (
    DialectError,
    JsonObject,
    Translation,
    cache_of,
    call_of,
    check_kinds,
    object_in,
    objects_in,
    text_in,
)
from llmkube.router.dialects.messages_answers import CountTranslator, MessagesTranslator

_SAME: Final = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
_SCALARS: Final = {"max_tokens": int, "temperature": int | float, "top_p": int | float, "top_k": int}
_TOOL_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "any": "required", "none": "none"}
_READ: Final = frozenset(
    {*_SAME, "messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "output_config"}
)


def read_messages(body: JsonObject) -> Translation:
    """Translate a request at `/v1/messages`."""
    if "max_tokens" not in body:
        raise DialectError("max_tokens is missing; write the token limit of the answer")
    return Translation(
        path="/chat/completions",
        body=chat_request(body),
        translator=MessagesTranslator(model=str(body.get("model"))),
        dropped=_dropped(body),
    )


def read_count(body: JsonObject) -> Translation:
    """Translate a request at `/v1/messages/count_tokens`, which backends answer without using tokens."""
    chat = chat_request({name: each for name, each in body.items() if name not in ("stream", "max_tokens")})
    path = "/messages/count_tokens"
    return Translation(path=path, body=chat, translator=CountTranslator(), dropped=_dropped(body))


def chat_request(body: Mapping[str, Any]) -> JsonObject:
    """Translate a request to chat completions.

    Raises:
        DialectError: It has no counterpart.
    """
    check_kinds(body, _SCALARS)
    chat: JsonObject = {name: body[name] for name in _SAME if name in body}
    messages: list[JsonObject] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _system(body["system"])})
    for at, turn in enumerate(objects_in(body.get("messages"), "messages")):
        messages += _turn(turn, f"messages[{at}]")
    if not messages:
        raise DialectError("messages is empty; write at least one message")
    chat["messages"] = messages
    if stops := body.get("stop_sequences"):
        if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
            raise DialectError("stop_sequences must be a list of strings")
        chat["stop"] = stops
    chat |= _tools(body)
    user = object_in(body.get("metadata"), "metadata").get("user_id")
    if isinstance(user, str):
        chat["user"] = user
    wanted = object_in(object_in(body.get("output_config"), "output_config").get("format"), "output_config.format")
    if wanted:
        chat["response_format"] = _format(wanted)
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _tools(body: Mapping[str, Any]) -> JsonObject:
    found: JsonObject = {}
    if tools := objects_in(body.get("tools"), "tools"):
        found["tools"] = [_tool(each, f"tools[{at}]") for at, each in enumerate(tools)]
    if choice := object_in(body.get("tool_choice"), "tool_choice"):
        found["tool_choice"] = _tool_choice(choice)
        if "disable_parallel_tool_use" in choice:
            found["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return found


def _dropped(body: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in body if name not in _READ)


def _system(system: object) -> str | list[JsonObject]:
    if isinstance(system, str):
        return system
    return _parts(system, "system")


def _format(wanted: Mapping[str, Any]) -> JsonObject:
    if wanted.get("type") != "json_schema":
        raise DialectError(f"output_config.format.type is {wanted.get('type')!r}; write json_schema")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted.get("schema"), "strict": True}}


def _turn(turn: Mapping[str, Any], where: str) -> list[JsonObject]:
    role, content = turn.get("role"), turn.get("content")
    if role == "assistant":
        return [_assistant_message(content, f"{where}.content")]
    if role == "system":
        return [{"role": "system", "content": _system(content)}]
    if role != "user":
        raise DialectError(f"{where}.role is {role!r}; write user or assistant")
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    turns: list[JsonObject] = []
    parts: list[JsonObject] = []
    for at, block in enumerate(objects_in(content, f"{where}.content")):
        here = f"{where}.content[{at}]"
        if block.get("type") == "tool_result":
            turns.append(_tool_result(block, here))
        else:
            parts.append(_content_part(block, here))
    if parts or not turns:
        turns.append({"role": "user", "content": parts})
    return turns


def _assistant_message(content: object, where: str) -> JsonObject:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[JsonObject] = []
    calls: list[JsonObject] = []
    thoughts = ""
    for at, block in enumerate(objects_in(content, where)):
        kind = block.get("type")
        if kind == "tool_use":
            check_kinds(block, {"id": str, "name": str, "input": dict}, f"{where}[{at}].")
            calls.append(call_of(block.get("id"), block.get("name"), block.get("input")))
        elif kind == "thinking":
            thoughts += text_in(block, "thinking")
        elif kind != "redacted_thinking":
            texts.append(_content_part(block, f"{where}[{at}]"))
    message: JsonObject = {"role": "assistant", "content": texts or None}
    if len(texts) == 1 and set(texts[0]) == {"type", "text"}:
        message["content"] = texts[0]["text"]
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_result(block: Mapping[str, Any], where: str) -> JsonObject:
    content = block.get("content")
    check_kinds(block, {"tool_use_id": str, "is_error": bool}, f"{where}.")
    message: JsonObject = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content or ""}
    if block.get("is_error"):
        message["is_error"] = True  # only for backends with the Messages API: chat completions have no such field
    if content and not isinstance(content, str):
        message["content"] = _parts(content, f"{where}.content")
    return message


def _parts(blocks: object, where: str) -> list[JsonObject]:
    return [_content_part(each, f"{where}[{at}]") for at, each in enumerate(objects_in(blocks, where))]


def _content_part(block: Mapping[str, Any], where: str) -> JsonObject:
    kind, source = block.get("type"), object_in(block.get("source"), f"{where}.source")
    part: JsonObject
    if kind == "text" and isinstance(block.get("text"), str):
        part = {"type": "text", "text": block["text"]}
    elif kind == "image":
        part = {"type": "image_url", "image_url": {"url": _data_url(source, where)}}
    elif kind == "document" and source.get("type") == "text":
        part = {"type": "text", "text": text_in(source, "data")}
    elif kind == "document":
        part = {"type": "file", "file": {"file_data": _data_url(source, where)}}
        if isinstance(block.get("title"), str):
            part["file"]["filename"] = block["title"]
    else:
        raise DialectError(f"{where}.type is {kind!r}; supported: text, image, document, tool_use, tool_result")
    return part | cache_of(block)


def _data_url(source: Mapping[str, Any], where: str) -> str:
    if source.get("type") != "base64":
        error = f"{where}.source.type is {source.get('type')!r}"
        raise DialectError(f"{error}; the router fetches nothing for clients, so write base64, and the content in data")
    check_kinds(source, {"media_type": str, "data": str}, f"{where}.source.")
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def _tool(tool: Mapping[str, Any], where: str) -> JsonObject:
    if tool.get("type") not in (None, "custom"):
        error = f"{where}.type is {tool.get('type')!r}, a tool run by Anthropic; write tools with an input_schema"
        raise DialectError(error)
    check_kinds(tool, {"name": str, "description": str, "input_schema": dict}, f"{where}.")
    function: JsonObject = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function} | cache_of(tool)


def _tool_choice(choice: Mapping[str, Any]) -> str | JsonObject:
    kind = choice.get("type")
    if kind == "tool":
        check_kinds(choice, {"name": str}, "tool_choice.")
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in _TOOL_CHOICES:
        raise DialectError(f"tool_choice.type is {kind!r}; write auto, any, none or tool")
    return _TOOL_CHOICES[kind]
