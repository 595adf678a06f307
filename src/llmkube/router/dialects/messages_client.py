"""Translates requests of clients of Anthropic's Messages API to chat completions. Pure.

https://docs.anthropic.com/en/api/messages. Fields, tools and blocks of the history without a counterpart are left out,
and logged in the audit log. A request is refused if it forces such a tool, or if a part of its newest user turn cannot
be translated. Anthropic's tools that clients run get their published schemas.
"""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.base.package_data import read_table
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
from llmkube.router.dialects.messages_backend import THOUGHT_KINDS, thought_fields

_SAME: Final = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "thinking")
_SCALARS: Final = {"max_tokens": int, "temperature": int | float, "top_p": int | float, "top_k": int, "thinking": dict}
_TOOL_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "any": "required", "none": "none"}
_TOOL_FIELDS: Final = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})
CLIENT_TOOLS: Final = read_table(__package__, "client_tools")
"""Description and input schema of Anthropic's tools that clients run, by the start of their type."""

_READ: Final = frozenset(
    {*_SAME, "messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "output_config"}
)


def read_messages(body: JsonObject) -> Translation:
    """Translate a request at `/v1/messages`."""
    if "max_tokens" not in body:
        raise DialectError("max_tokens is missing; write the token limit of the answer")
    dropped = [name for name in body if name not in _READ]
    chat, translator = chat_request(body, dropped), MessagesTranslator(model=str(body.get("model")))
    return Translation(path="/chat/completions", body=chat, translator=translator, dropped=tuple(dropped))


def read_count(body: JsonObject) -> Translation:
    """Translate a request at `/v1/messages/count_tokens`, which backends answer without using tokens."""
    dropped = [name for name in body if name not in _READ]
    chat = chat_request({name: each for name, each in body.items() if name not in ("stream", "max_tokens")}, dropped)
    path = "/messages/count_tokens"
    return Translation(path=path, body=chat, translator=CountTranslator(), dropped=tuple(dropped))


def chat_request(body: Mapping[str, Any], dropped: list[str]) -> JsonObject:
    """Translate a request to chat completions.

    Args:
        body: The request.
        dropped: List to which the names of parts are added that are left out.

    Raises:
        DialectError: It has no counterpart.
    """
    check_kinds(body, _SCALARS)
    chat: JsonObject = {name: body[name] for name in _SAME if name in body}
    messages: list[JsonObject] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _texts(body["system"], "system", dropped)})
    turns = objects_in(body.get("messages"), "messages")
    newest = max((at for at, turn in enumerate(turns) if turn.get("role") == "user"), default=-1)
    for at, turn in enumerate(turns):
        messages += _turn(turn, f"messages[{at}]", dropped, is_newest=at == newest)
    if not messages:
        raise DialectError("messages is empty; write at least one message")
    chat["messages"] = messages
    if stops := body.get("stop_sequences"):
        if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
            raise DialectError("stop_sequences must be a list of strings")
        chat["stop"] = stops
    chat |= _tools(body, dropped)
    user = object_in(body.get("metadata"), "metadata").get("user_id")
    if isinstance(user, str):
        chat["user"] = user
    wanted = object_in(object_in(body.get("output_config"), "output_config").get("format"), "output_config.format")
    if wanted:
        chat["response_format"] = _format(wanted)
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _tools(body: Mapping[str, Any], dropped: list[str]) -> JsonObject:
    tools, choice = objects_in(body.get("tools"), "tools"), object_in(body.get("tool_choice"), "tool_choice")
    found: JsonObject = {}
    usable = [tool for at, each in enumerate(tools) if (tool := _tool(each, f"tools[{at}]", dropped)) is not None]
    kind, name, names = choice.get("type"), choice.get("name"), [tool["function"]["name"] for tool in usable]
    is_usable = bool(usable) if kind == "any" else name in names
    if len(usable) < len(tools) and kind in ("any", "tool") and not is_usable:
        raise DialectError(
            f"tool_choice forces {name or 'a tool'!r:.80}, which Anthropic would run; write auto or none"
        )
    if usable:
        found["tools"] = usable
    if choice and (usable or not tools):
        found["tool_choice"] = _tool_choice(choice)
        if "disable_parallel_tool_use" in choice:
            found["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return found


def _format(wanted: Mapping[str, Any]) -> JsonObject:
    if wanted.get("type") != "json_schema":
        raise DialectError(f"output_config.format.type is {wanted.get('type')!r}; write json_schema")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted.get("schema"), "strict": True}}


def _turn(turn: Mapping[str, Any], where: str, dropped: list[str], *, is_newest: bool) -> list[JsonObject]:
    role, content = turn.get("role"), turn.get("content")
    if role == "assistant":
        return [_assistant_message(content, f"{where}.content", dropped)]
    if role == "system":
        return [{"role": "system", "content": _texts(content, f"{where}.content", dropped)}]
    if role != "user":
        raise DialectError(f"{where}.role is {role!r}; write user or assistant")
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    turns: list[JsonObject] = []
    parts: list[JsonObject] = []
    for at, block in enumerate(objects_in(content, f"{where}.content")):
        here = f"{where}.content[{at}]"
        if block.get("type") == "tool_result":
            turns.append(_tool_result(block, here, dropped))
        else:
            parts += [_content_part(block, here)] if is_newest else _part(block, here, dropped)
    if parts or not turns:
        turns.append({"role": "user", "content": parts or ""})
    return turns


def _assistant_message(content: object, where: str, dropped: list[str]) -> JsonObject:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[JsonObject] = []
    calls: list[JsonObject] = []
    thoughts: list[JsonObject] = []
    for at, block in enumerate(objects_in(content, where)):
        kind = block.get("type")
        if kind == "tool_use":
            check_kinds(block, {"id": str, "name": str, "input": dict}, f"{where}[{at}].")
            calls.append(call_of(block.get("id"), block.get("name"), block.get("input")))
        elif kind in THOUGHT_KINDS:
            check_kinds(block, {"thinking": str, "signature": str, "data": str}, f"{where}[{at}].")
            thoughts.append(block)
        else:
            texts += _part(block, f"{where}[{at}]", dropped)
    message: JsonObject = {"role": "assistant", "content": texts or (None if calls else "")}
    if len(texts) == 1 and set(texts[0]) == {"type", "text"}:
        message["content"] = texts[0]["text"]
    if calls:
        message["tool_calls"] = calls
    return message | thought_fields(thoughts)


def _tool_result(block: Mapping[str, Any], where: str, dropped: list[str]) -> JsonObject:
    check_kinds(block, {"tool_use_id": str, "is_error": bool}, f"{where}.")
    content = _texts(block.get("content") or "", f"{where}.content", dropped)
    message: JsonObject = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    if block.get("is_error"):
        message["is_error"] = True  # only for backends with the Messages API: chat completions have no such field
    return message


def _texts(content: object, where: str, dropped: list[str]) -> str | list[JsonObject]:
    """Translate a text or a list of blocks, without unknown ones."""
    if isinstance(content, str):
        return content
    found = enumerate(objects_in(content, where))
    return [part for at, each in found for part in _part(each, f"{where}[{at}]", dropped)] or ""


def _part(block: Mapping[str, Any], where: str, dropped: list[str]) -> list[JsonObject]:
    """Translate a block of the history; none if it is unknown, such as a search that Anthropic ran."""
    if block.get("type") in ("text", "image", "document"):
        return [_content_part(block, where)]
    dropped.append(f"{where} ({block.get('type')!r:.80})")
    return []


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


def _tool(tool: Mapping[str, Any], where: str, dropped: list[str]) -> JsonObject | None:
    """Translate a tool; None if Anthropic runs it."""
    kind = tool.get("type")
    if kind not in (None, "custom"):
        published = next((each for name, each in CLIENT_TOOLS.items() if str(kind).startswith(name)), None)
        if published is None:
            dropped.append(f"{where} ({kind!r:.80})")
            return None
        sizes = "".join(f" {name}: {each}." for name, each in tool.items() if type(each) is int)
        tool = published | {"description": published["description"] + sizes} | dict(tool)
    else:
        dropped.extend(f"{where}.{name}" for name in tool if name not in _TOOL_FIELDS)
    check_kinds(tool, {"name": str, "description": str, "input_schema": dict, "strict": bool}, f"{where}.")
    function: JsonObject = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function} | cache_of(tool)


def _tool_choice(choice: Mapping[str, Any]) -> str | JsonObject:
    kind = choice.get("type")
    if kind == "tool":
        check_kinds(choice, {"name": str}, "tool_choice.")
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in _TOOL_CHOICES:
        raise DialectError(f"tool_choice.type is {kind!r}; write auto, any, none or tool")
    return _TOOL_CHOICES[kind]
