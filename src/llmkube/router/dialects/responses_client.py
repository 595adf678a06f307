"""Translates requests of clients of OpenAI's Responses API to chat completions. Pure.

https://platform.openai.com/docs/api-reference/responses/create. Unknown fields, and fields that chat completions cannot
express, are refused; fields that do not change the meaning of an answer are left out, and logged in the audit log.
`router.responses` resolves `previous_response_id`.
"""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final

import attrs

from llmkube.router.dialects.dialect import (
    DialectError,
    JsonObject,
    Translation,
    check_kinds,
    dumped,
    object_in,
    text_in,
)
from llmkube.router.dialects.responses_answers import InputTokensTranslator, ResponsesTranslator
from llmkube.router.dialects.responses_items import TOOLS, items_of, turns_of
from llmkube.router.dialects.responses_tools import API, CLIENT_TOOLS, ToolNames, tool_fields

_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_NAMES: Final = ("user", "safety_identifier", "prompt_cache_key", "service_tier")
_SAME: Final = ("model", "stream", *_SAMPLING, *_NAMES)
"""Fields with the same name and meaning in chat completions."""
_KINDS: Final[Mapping[str, type | UnionType]] = {
    **dict.fromkeys(_SAMPLING, int | float),
    **dict.fromkeys((*_NAMES, "instructions", "previous_response_id", "truncation"), str),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls", "top_logprobs"), int),
    **dict.fromkeys(("background", "parallel_tool_calls", "store"), bool),
}
_ECHOED: Final = ("previous_response_id", "instructions", "max_output_tokens", "safety_identifier", "prompt_cache_key")
"""Fields that a response repeats as they are."""
_READ: Final = frozenset({*_SAME, *_KINDS, "input", "tools", "tool_choice", "text", "reasoning", "metadata", "include"})
_IGNORED_FIELDS: Final = frozenset(
    {"client_metadata", "max_tool_calls", "prompt_cache_options", "prompt_cache_retention", "stream_options"}
)
"""Left out: hints for OpenAI's cache, padding of its streams, a limit for tools that it runs, and client notes."""
_TRUNCATIONS: Final = ("disabled", "auto")
"""Prompts are never truncated: `auto` is left out."""

_MAX_METADATA_ENTRIES: Final = 16
_MAX_METADATA_LENGTH: Final = 512


def read_responses(body: JsonObject, translate: type[ResponsesTranslator] = ResponsesTranslator) -> Translation:
    """Translate a request at `/v1/responses`, without the history that it continues."""
    _refuse_unknown(body)
    check_kinds(body, _KINDS)
    _refuse_unsupported(body)
    dropped = [name for name in body if name in _IGNORED_FIELDS and body[name] is not None]
    if body.get("truncation") == "auto":
        dropped.append("truncation")
    items = items_of(body.get("input"), dropped)
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    if (limit := body.get("max_output_tokens")) is not None:
        if limit < 1:
            raise DialectError(f"max_output_tokens is {limit}; write at least 1, or omit it")
        chat["max_tokens"] = limit
    chat |= _text(body, dropped) | _reasoning(body, dropped)
    _check_included(body, dropped)
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    translator = translate(
        items=tuple(items),
        asked=body,
        store=body.get("store") is not False,
        previous_id=body.get("previous_response_id") or "",
    )
    chat |= _conversation(translator, (), dropped)
    translator.echo = _echo(body)
    dumped({"response": translator.echo})  # as in the events of its answer
    return Translation(path="/chat/completions", body=chat, translator=translator, dropped=tuple(dropped))


def read_input_tokens(body: JsonObject) -> Translation:
    """Translate a request at `/v1/responses/input_tokens`, which backends answer without using tokens."""
    found = read_responses({name: each for name, each in body.items() if name != "stream"}, InputTokensTranslator)
    return attrs.evolve(found, path="/messages/count_tokens")


def with_history(
    translated: Translation, history: Sequence[JsonObject], translator: ResponsesTranslator
) -> Translation:
    """Return a request with a history before its own items; instructions of earlier responses do not apply."""
    return attrs.evolve(translated, body=translated.body | _conversation(translator, history, []))


def _conversation(translator: ResponsesTranslator, history: Sequence[JsonObject], dropped: list[str]) -> JsonObject:
    """Return the fields that depend on the items of a conversation, and set the names of its tools."""
    asked, items, names = translator.asked, [*history, *translator.items], ToolNames()
    translator.names = names
    more = [tool for item in items if item["type"] == TOOLS for tool in item["tools"]]
    fields = tool_fields(asked, more, names, dropped)
    return fields | {"messages": turns_of(asked.get("instructions") or "", items, names)}


def _refuse_unknown(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if value is not None and name not in _READ and name not in _IGNORED_FIELDS and name not in API["unsupported"]:
            raise DialectError(f"{name[:80]} is not a known field of /v1/responses; omit it")


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, instead in API["unsupported"].items():
        value = body.get(name)
        if value in (None, False, 0):
            continue
        raise DialectError(f"{name} is {value!r:.80}, which this router does not support: {instead}")
    if body.get("truncation") not in (None, *_TRUNCATIONS):
        raise DialectError(f"truncation is {body['truncation']!r:.80}; write disabled or auto, or omit it")


def _check_included(body: Mapping[str, Any], dropped: list[str]) -> None:
    included = body.get("include")
    if included is None:
        return
    if not isinstance(included, list) or not all(isinstance(each, str) for each in included):
        raise DialectError("include must be a list of strings")
    for at, each in enumerate(included):
        if each not in API["include"]["accepted"]:
            raise DialectError(f"include[{at}] is {each!r:.80}, which this router does not support; omit it")
        dropped.append(f"include[{at}] ({each})")


def _text(body: Mapping[str, Any], dropped: list[str]) -> JsonObject:
    text = object_in(body.get("text"), "text")
    dropped.extend(f"text.{name}" for name in text if name not in ("format", "verbosity"))
    check_kinds(text, {"verbosity": str}, "text.")
    fields: JsonObject = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    wanted = object_in(text.get("format"), "text.format")
    kind = wanted.get("type")
    if not wanted or kind == "text":
        return fields
    if kind == "json_object":
        return fields | {"response_format": {"type": "json_object"}}
    if kind != "json_schema":
        raise DialectError(f"text.format.type is {kind!r:.80}; write text, json_schema or json_object")
    check_kinds(wanted, {"name": str, "description": str, "schema": dict, "strict": bool}, "text.format.")
    if not isinstance(wanted.get("schema"), dict):
        raise DialectError("text.format.schema is missing; write a JSON schema")
    schema = {name: wanted[name] for name in ("description", "schema", "strict") if wanted.get(name) is not None}
    named = {"name": wanted.get("name") or "answer"} | schema
    return fields | {"response_format": {"type": "json_schema", "json_schema": named}}


def _reasoning(body: Mapping[str, Any], dropped: list[str]) -> JsonObject:
    reasoning = object_in(body.get("reasoning"), "reasoning")
    dropped.extend(f"reasoning.{name}" for name in reasoning if name != "effort" and reasoning[name] is not None)
    check_kinds(reasoning, {"effort": str}, "reasoning.")
    return {"reasoning_effort": reasoning["effort"]} if reasoning.get("effort") else {}


def _echo(body: Mapping[str, Any]) -> JsonObject:
    """Return the members of a response that repeat its request, with the API's defaults for absent fields."""
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    function: JsonObject = {"type": "function", "description": None, "parameters": {}, "strict": False}
    tools = [
        (function if each["type"] == "function" else {})
        | {name: value for name, value in each.items() if value is not None}
        for each in body.get("tools") or ()
        if each.get("type") in CLIENT_TOOLS
    ]
    parallel = body.get("parallel_tool_calls")
    echo: JsonObject = {
        "model": body["model"],
        **{name: body.get(name) for name in _ECHOED},
        "tools": tools,
        "tool_choice": body.get("tool_choice") or "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True if parallel is None else parallel,
        "text": {"format": _echoed_format(text.get("format") or {"type": "text"})},
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "max_tool_calls": None,
        "background": False,
        "service_tier": body.get("service_tier") or "default",
        "metadata": _metadata(body),
        "user": text_in(body, "user") or None,
    }
    if text.get("verbosity"):
        echo["text"]["verbosity"] = text["verbosity"]
    for name, default in {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}.items():
        echo[name] = default if body.get(name) is None else body[name]
    return echo | {"top_logprobs": 0}


def _echoed_format(wanted: Mapping[str, Any]) -> JsonObject:
    if wanted.get("type") != "json_schema":
        return {"type": wanted.get("type") or "text"}
    named = {name: wanted.get(name) for name in ("description", "schema")}
    return {"type": "json_schema", "name": wanted.get("name") or "answer", "strict": bool(wanted.get("strict"))} | named


def _metadata(body: Mapping[str, Any]) -> JsonObject:
    metadata = object_in(body.get("metadata"), "metadata")
    for name, value in metadata.items():
        if not isinstance(value, str) or len(value) > _MAX_METADATA_LENGTH or len(name) > _MAX_METADATA_LENGTH:
            raise DialectError(f"metadata.{name[:80]} must be a string of at most {_MAX_METADATA_LENGTH} characters")
    if len(metadata) > _MAX_METADATA_ENTRIES:
        raise DialectError(f"metadata has {len(metadata)} entries; write at most {_MAX_METADATA_ENTRIES}")
    return metadata
