"""Validates items of OpenAI's Responses API by allow-lists, and translates them to turns of chat completions. Pure.

https://platform.openai.com/docs/api-reference/responses/create. Items of requests, of stored responses and of answers
have the same format. Reasoning of earlier turns is not translated: clients return it as a summary or encrypted by its
provider, and chat templates omit it from earlier turns. Items and parts without a counterpart are left out by name,
except for parts of the newest user turn, whose loss would change the question.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llmkube.router.dialects.dialect import DialectError, JsonObject, check_kinds, dumped, objects_in
from llmkube.router.dialects.responses_tools import Tool, ToolNames, client_tools

_ROLES: Final[Mapping[str, str]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",  # most chat templates have no developer role
}
_TEXTS: Final = ("input_text", "output_text", "text")
REFERENCE: Final = "item_reference"
TOOLS: Final = "additional_tools"
_PARTS: Final = "input_text, output_text, refusal, input_image with a data: URL, and input_file with file_data"


def items_of(value: object, dropped: list[str]) -> list[JsonObject]:
    """Return the items of a request, each with its allowed fields.

    Args:
        value: `input` of the request.
        dropped: List to which the names of fields are added that are left out.

    Raises:
        DialectError: An item has no counterpart.
    """
    given = objects_in([{"role": "user", "content": value}] if isinstance(value, str) else value, "input")
    newest = max((at for at, item in enumerate(given) if item.get("role") in (None, "assistant")), default=-1)
    found: list[JsonObject] = []
    lost = set()  # ids of calls that are left out: so are their results
    for at, item in enumerate(given):
        where, call_id = f"input[{at}]", str(item.get("call_id"))
        kind = item.get("type") or (REFERENCE if "id" in item and "role" not in item else "message")
        check_kinds(item, {"type": str, "status": str} | ({} if kind == REFERENCE else {"id": str}), f"{where}.")
        reader = _message_item if kind == "message" and at > newest else _READERS.get(kind)
        is_lost = reader is None or (call_id in lost and kind.endswith("_output"))
        read = None if reader is None or is_lost else reader(item, where, dropped)
        if read is None:
            dropped.append(f"{where} ({kind:.80})")
            lost.add(call_id)
        else:
            found.append(read)
    references = [item["id"] for item in found if item["type"] == REFERENCE]
    if len(references) > len(set(references)):
        raise DialectError("input refers to an item twice; write each item_reference once")
    if not found:
        left_out = f": {', '.join(dropped)[:200]} cannot be used here" if given else ""
        raise DialectError(f"input is empty{left_out}; write a string, or at least one item")
    return found


def turns_of(instructions: str, items: Sequence[JsonObject], names: ToolNames) -> list[JsonObject]:
    """Translate items to chat turns; instructions and leading system messages are merged into one system turn.

    Args:
        instructions: Instructions of the request.
        items: Its items; references among them are left out.
        names: Names of the tools in the request; gets those of the items' calls, too.
    """
    turns: list[JsonObject] = []
    leading = [instructions] if instructions else []
    for item in items:
        kind = item["type"]
        if kind == "message":
            turn: JsonObject = {"role": _ROLES[item["role"]], "content": _content(item["content"])}
            if turn["role"] == "system" and not turns and isinstance(turn["content"], str):
                leading.append(turn["content"])
            else:
                turns.append(turn)
        elif kind in ("function_call", "custom_tool_call"):
            _append_call(turns, item, names)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])})
    return [{"role": "system", "content": "\n\n".join(leading)}, *turns] if leading else turns


def _append_call(turns: list[JsonObject], item: Mapping[str, Any], names: ToolNames) -> None:
    """Add a tool call to the preceding assistant turn: a chat has one turn for text and calls."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": None})
    tool = Tool(item["name"], item.get("namespace") or "", "input" in item)
    given = dumped({"input": item["input"]}) if tool.is_text else item["arguments"]
    function = {"name": names.add(tool), "arguments": given}
    turns[-1].setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})


# -- validation ------------------------------------------------------------------------------------------------------


def _message_item(item: JsonObject, where: str, dropped: list[str], *, is_newest: bool = True) -> JsonObject | None:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise DialectError(f"{where}.role is {role!r:.80}; write user, assistant, system or developer")
    _leave_out(item, ("type", "id", "status", "role", "content"), where, dropped)
    is_output = role == "assistant"
    if isinstance(content, str):
        parts: list[JsonObject] = [_text(content, is_output=is_output)]
    else:
        parts = _parts(content, f"{where}.content", dropped, is_output=is_output, is_newest=is_newest)
    if not parts and is_newest:
        problem = "missing" if content is None else "empty"
        raise DialectError(f"{where}.content is {problem}; write a string, or at least one part")
    read = {"type": "message", "role": role, "status": "completed", "content": parts}
    return read if parts else None


def _call_item(item: JsonObject, where: str, dropped: list[str]) -> JsonObject:
    names = ("call_id", "name", "input" if item["type"] == "custom_tool_call" else "arguments")
    _leave_out(item, ("type", "id", "status", "namespace", *names), where, dropped)
    check_kinds(item, {"namespace": str}, f"{where}.")
    result = {"type": item["type"], "status": "completed"} | _texts(item, names, where)
    return result | ({"namespace": item["namespace"]} if item.get("namespace") else {})


def _result_item(item: JsonObject, where: str, dropped: list[str]) -> JsonObject:
    _leave_out(item, ("type", "id", "status", "call_id", "output"), where, dropped)
    output = item.get("output")
    if not isinstance(output, str):
        if output is None:
            raise DialectError(f"{where}.output is missing; write the function's result as a string")
        output = _parts(output, f"{where}.output", dropped, is_output=False, is_newest=False)
    result: JsonObject = {"type": item["type"], "status": "completed", "output": output}
    return result | _texts(item, ("call_id",), where)


def _reasoning_item(item: JsonObject, where: str, dropped: list[str]) -> JsonObject:
    dropped.append(f"{where} (reasoning)")
    result: JsonObject = {"type": "reasoning", "summary": []}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = item.get(name) if isinstance(item.get(name), list) else ()
        texts = [each.get("text") for each in parts or () if isinstance(each, dict)]
        result |= {name: [{"type": kind, "text": each} for each in texts if isinstance(each, str)]} if texts else {}
    return result


def _tools_item(item: JsonObject, where: str, dropped: list[str]) -> JsonObject | None:
    client_tools(item.get("tools"), f"{where}.tools", dropped)
    dumped(item.get("tools"))  # they are stored as they are
    return {"type": TOOLS, "role": "developer", "tools": item["tools"]} if item.get("tools") else None


def _reference_item(item: JsonObject, where: str, _dropped: list[str]) -> JsonObject:
    return {"type": REFERENCE} | _texts(item, ("id",), where)


_Reader = Callable[[JsonObject, str, list[str]], JsonObject | None]
_READERS: Final[Mapping[str, _Reader]] = {
    "message": functools.partial(_message_item, is_newest=False),
    "reasoning": _reasoning_item,
    REFERENCE: _reference_item,
    **dict.fromkeys((TOOLS, "tool_search_output"), _tools_item),
    **dict.fromkeys(("function_call", "custom_tool_call"), _call_item),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), _result_item),
}
"""Readers by the type of an item; items of other types are left out."""


def _texts(item: Mapping[str, Any], names: Sequence[str], where: str) -> JsonObject:
    for name in names:
        if not isinstance(item.get(name), str):
            raise DialectError(f"{where}.{name} is {item.get(name)!r:.80}; write a string")
    return {name: item[name] for name in names}


def _leave_out(item: Mapping[str, Any], read: Sequence[str], where: str, dropped: list[str]) -> None:
    dropped.extend(f"{where}.{name}" for name, value in item.items() if name not in read and value is not None)


def _text(text: str, *, is_output: bool) -> JsonObject:
    if is_output:
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _parts(content: object, where: str, dropped: list[str], *, is_output: bool, is_newest: bool) -> list[JsonObject]:
    found = []
    for at, part in enumerate(objects_in(content, where)):
        here = f"{where}[{at}]"
        try:
            read = _part(part, here, dropped, is_output=is_output)
            if not is_newest and not read.get("image_url", "data:").startswith("data:"):
                raise DialectError(f"{here}.image_url is not a data: URL")
            found.append(read)
        except DialectError:
            if is_newest:
                raise
            dropped.append(f"{here} ({part.get('type')!s:.80})")
    return found


def _part(part: JsonObject, where: str, dropped: list[str], *, is_output: bool) -> JsonObject:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXTS:
        _leave_out(part, ("type", "text", "annotations", "logprobs"), where, dropped)
        return _text(_texts(part, ("text",), where)["text"], is_output=is_output)
    if kind == "refusal" and is_output:
        return {"type": "refusal"} | _texts(part, ("refusal",), where)
    if kind == "input_image" and not is_output:
        _leave_out(part, ("type", "image_url", "detail", "file_id"), where, dropped)
        check_kinds(part, {"detail": str}, f"{where}.")
        _refuse_ids(part, ("file_id",), "image_url with a data: URL", where)
        url = _texts(part, ("image_url",), where)["image_url"]
        return {"type": "input_image", "image_url": url, "detail": part.get("detail") or "auto"}
    if kind == "input_file" and not is_output:
        _leave_out(part, ("type", "file_data", "filename", "file_id", "file_url"), where, dropped)
        check_kinds(part, {"filename": str}, f"{where}.")
        _refuse_ids(part, ("file_id", "file_url"), "file_data", where)
        result: JsonObject = {"type": "input_file"} | _texts(part, ("file_data",), where)
        return result | ({"filename": part["filename"]} if part.get("filename") else {})
    raise DialectError(f"{where}.type is {kind!r:.80}; supported: {_PARTS}")


def _refuse_ids(part: Mapping[str, Any], names: Sequence[str], instead: str, where: str) -> None:
    for name in names:
        if part.get(name) is not None:
            raise DialectError(f"{where}.{name} refers to a file that this router cannot read; write {instead}")


# -- translation -----------------------------------------------------------------------------------------------------


def _content(parts: str | Sequence[Mapping[str, Any]]) -> str | list[JsonObject]:
    """Translate content parts; if all are text, join them to one string, which every chat template supports."""
    if isinstance(parts, str):
        return parts
    result = [_chat_part(each) for each in parts]
    if all(each["type"] == "text" for each in result):
        return "\n".join(each["text"] for each in result)
    return result


def _chat_part(part: Mapping[str, Any]) -> JsonObject:
    kind = part["type"]
    if kind == "input_image":
        detail = {} if part["detail"] == "auto" else {"detail": part["detail"]}
        return {"type": "image_url", "image_url": {"url": part["image_url"]} | detail}
    if kind == "input_file":
        return {"type": "file", "file": {name: part[name] for name in ("file_data", "filename") if name in part}}
    return {"type": "text", "text": part["refusal"] if kind == "refusal" else part["text"]}
