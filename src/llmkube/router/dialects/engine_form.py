"""Chat completions in the form that engines of ours need: their templates, prompt caches and grammars. Pure.

Many chat templates accept a system turn at the start only, so a later one becomes a part of the user turn next to it:
the turns before it keep their text, and stay in the engine's cache. A line that differs in each request is left out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmkube.router.dialects.dialect import DialectError, JsonObject, arguments_of, dumped, object_in, objects_in

_SYSTEM: Final = ("system", "developer")
_BILLING: Final = "x-anthropic-billing-header"
_BILLING_LINE: Final = re.compile(rf"\A\s*{_BILLING}:[^\n]*\n*")
"""A line of Claude Code's for Anthropic's accounting, with a random value."""
_MAX_BYTES: Final = 16 << 20
_NO_PICTURE: Final = {"type": "text", "text": "[a picture was here; this model reads only text]"}

_KNOWN_PATTERN: Final = re.compile(
    r"""\^(?: [^\\\[\](){}|*+?^$] | \\[][\\$^.()|{}*+?\-tnr"] | \[\^?(?:[^\]\\] | \\[][\\\-tnr"])+\]
    | \((?:\?:)?(?!\?) | [)|*+?] | \{\d+(?:,\d*)?\} | \{,\d+\} )*\$""",
    re.VERBOSE,
)
"""Patterns that llama.cpp's converter from JSON schemas knows, found by experiment; others allow any string."""
_FIX: Final = "which llama.cpp does not enforce; write ^…$ without \\w, \\d, \\s, \\b and lookarounds, or omit strict"
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Members of a schema with schemas by name, whatever their names are."""


def encoded_for_engine(body: bytes, *, is_llama_cpp: bool) -> bytes:
    """Return an encoded request in the form for an engine; unchanged if nothing differs, or if it is very long.

    Raises:
        DialectError: It is not JSON, or the engine would not enforce a strict schema.
    """
    is_strict = b'"strict"' in body and b'"pattern"' in body
    has_system = body.count(b'"system"') + 2 * body.count(b'"developer"') > 1 or _BILLING.encode() in body
    if not (is_strict or has_system) or len(body) > _MAX_BYTES:
        return body
    parsed = arguments_of(body.decode("utf-8", "replace"), "the body")
    found = engine_body(parsed, [], is_llama_cpp=is_llama_cpp)
    return body if found is parsed else dumped(found).encode()


def engine_body(body: Mapping[str, Any], dropped: list[str], *, is_llama_cpp: bool) -> Mapping[str, Any]:
    """Return a request with one system turn at most, at the start; the same one if nothing has changed.

    Args:
        body: Request of chat completions.
        dropped: List to which the names of parts are added that are left out.
        is_llama_cpp: Whether the engine is certainly llama.cpp's server.

    Raises:
        DialectError: The engine would not enforce a strict schema.
    """
    if is_llama_cpp:
        refuse_unknown_patterns(body)
    messages = objects_in(body.get("messages"), "messages")
    if signed := [at for at, turn in enumerate(messages) if "reasoning_details" in turn]:  # no template reads them
        dropped += [f"messages[{at}].reasoning_details" for at in signed]
        messages = [{name: each for name, each in turn.items() if name != "reasoning_details"} for turn in messages]
        body = {**body, "messages": messages}
    roles = [turn.get("role") for turn in messages]
    first = messages[0].get("content") if messages else None
    cleaned = _without_billing(first) if first and roles[0] in _SYSTEM else first
    if cleaned != first:
        dropped.append(f"messages[0].content ({_BILLING})")
    elif "developer" not in roles and "system" not in roles[1:]:
        return body
    turns: list[JsonObject] = []
    waiting: Any = None  # content of a system turn, for the next user turn
    for at, turn in enumerate(messages):
        role, content = turn.get("role"), turn.get("content") if at else cleaned
        if role in _SYSTEM and waiting is None and turns and turns[-1].get("role") in ("system", "user"):
            turns[-1] = turns[-1] | {"content": _joined(turns[-1].get("content"), content)}
        elif role in _SYSTEM and not turns:
            turns += [{"role": "system", "content": content}] if content else []
        elif role in _SYSTEM:
            waiting = _joined(waiting, content)
        elif not waiting or role == "tool":  # results have to follow their calls
            turns.append(turn)
        else:
            before = {"role": "user", "content": waiting}
            turns += [turn | {"content": _joined(waiting, content)}] if role == "user" else [before, turn]
            waiting = None
    return {**body, "messages": [*turns, {"role": "user", "content": waiting}] if waiting else turns}


def _without_billing(content: Any) -> Any:
    if isinstance(content, str):
        return _BILLING_LINE.sub("", content)
    parts = objects_in(content, "messages[0].content")
    text = str(parts[0].get("text"))
    rest = _BILLING_LINE.sub("", text)
    return parts if rest == text else [*([parts[0] | {"text": rest}] if rest else []), *parts[1:]]


def _joined(first: Any, second: Any) -> Any:
    """Return the content of two turns as that of one."""
    if not first or not second or (isinstance(first, str) and isinstance(second, str)):
        return f"{first}\n\n{second}" if first and second else first or second
    lists = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second))
    return [part for each in lists for part in objects_in(each, "messages.content")]


def without_old_pictures(messages: list[JsonObject], dropped: list[str]) -> list[JsonObject]:
    """Return messages with a text for each picture, except for those in user turns after the last answer."""
    newest = max((at for at, turn in enumerate(messages) if turn.get("role") == "assistant"), default=-1)
    found = []
    for at, turn in enumerate(messages):
        content = turn.get("content")
        if isinstance(content, list) and (at < newest or turn.get("role") != "user"):
            pictures = [number for number, part in enumerate(content) if part.get("type") == "image_url"]
            dropped += [f"messages[{at}].content[{number}] (image_url)" for number in pictures]
            content = [_NO_PICTURE if number in pictures else part for number, part in enumerate(content)]
        found.append(turn | {"content": content} if isinstance(content, list) else turn)
    return found


def refuse_unknown_patterns(body: Mapping[str, Any]) -> None:
    """Refuse strict schemas with a pattern that llama.cpp would not enforce.

    Raises:
        DialectError: A schema has such a pattern.
    """
    wanted = object_in(body.get("response_format"), "response_format").get("json_schema")
    holders: list[tuple[str, Any]] = [("response_format.json_schema.schema", wanted)]
    for at, tool in enumerate(objects_in(body.get("tools"), "tools")):
        holders.append((f"tools[{at}].function.parameters", tool.get("function")))
    for where, holder in holders:
        is_strict = isinstance(holder, dict) and holder.get("strict") is True
        for pattern in _patterns(holder.get(where.rpartition(".")[2])) if is_strict else ():
            if not _KNOWN_PATTERN.fullmatch(pattern):
                raise DialectError(f"{where} has the pattern {pattern!r:.80}, {_FIX}")


def _patterns(schema: object) -> Iterator[str]:
    """Yield the patterns of a schema and of those in it."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            for name, each in value.items():
                left += each.values() if name in _MAPS and isinstance(each, dict) else [each] * (name not in _DATA)
            if isinstance(pattern := value.get("pattern"), str):
                yield pattern
