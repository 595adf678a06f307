"""Facts about engines and providers from `providers.toml`, and requests in the form that one of them takes. Pure.

A part of a request passes whole, is translated, or is dropped and named. A request is refused if it depends on a part
that would be dropped: a picture in the newest user turn, or a forced tool.
"""

import base64
import functools
import hashlib
import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from llmkube.base.package_data import read_table
from llmkube.router.dialects.dialect import DialectError, JsonObject, dumped, object_in, objects_in

TABLE: Final = read_table(__package__, "providers")
REASONS: Final = {other: name for name, others in TABLE["writes"]["reasons"].items() for other in others}
"""OpenAI's reason for the end of an answer, by the name that another API has for it."""


class Leaf:
    """A value without named members."""


@attrs.frozen
class ListOf:
    """A list of a shape, or one scalar."""

    each: "Shape"


Shape = Leaf | ListOf | Mapping[str, "Shape"]

PLAIN: Final = Leaf()
"""A scalar, or lists of scalars."""

DATA_URL: Final = Leaf()
"""A `data:` URL."""

FREE: Final = Leaf()
"""Arbitrary JSON that only the model interprets, such as the schema of a tool's arguments."""

NUMBERS: Final = Leaf()
"""An object of numbers by token ID."""

STRINGS: Final = Leaf()
"""An object of strings."""

_LEAVES: Final = {"data_url": DATA_URL, "free": FREE, "numbers": NUMBERS, "strings": STRINGS}


@functools.cache
def _shape(name: str) -> Shape:
    if name.startswith("["):
        return ListOf(_shape(name[1:-1]))
    return _LEAVES.get(name) or _members(name)


def _members(name: str) -> Mapping[str, Shape]:
    row = TABLE["shapes"][name]
    inherited = _members(row["extends"]) if "extends" in row else {}
    nested = {member: _shape(kind) for member, kind in row.items() if member not in ("extends", "plain")}
    return {**inherited, **dict.fromkeys(row["plain"].split() if "plain" in row else (), PLAIN), **nested}


FIELDS: Final = {path: _members(name) for path, name in TABLE["paths"].items()}
"""Allowed fields of a request to a provider, by path below `/v1`, before translation to another dialect."""

ENGINE_FIELDS: Final = frozenset(name for names in TABLE["engine_fields"].values() for name in names.split())
"""Additional fields for engines of ours."""


@attrs.frozen(kw_only=True)
class Limit:
    """Range of a value, or of each value in a list or an object; see `providers.toml`."""

    min: float = -math.inf
    max: float = math.inf
    length: float = math.inf
    items: float = math.inf
    pattern: str = ""

    def allows(self, value: object) -> bool:
        """Return whether a value is in the range; true for types that it does not limit."""
        if isinstance(value, str):
            return len(value) <= self.length and re.search(self.pattern, value) is not None
        if isinstance(value, list | dict):
            each = value.values() if isinstance(value, dict) else value
            return len(value) <= self.items and all(map(self.allows, each))
        return not isinstance(value, int | float) or self.min <= value <= self.max


def _limits(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Limit]:
    return {name: Limit(**row) for name, row in rows.items()}


@attrs.frozen(kw_only=True, eq=False)
class Provider:
    """A row of the table; see `providers.toml`."""

    sources: Sequence[str]
    hosts: Sequence[str] = ()
    takes: Sequence[str] | None = None
    drops: Sequence[str] = ()
    limits: Mapping[str, Limit] = attrs.field(factory=dict, converter=_limits)
    parts: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    tools: Sequence[str]
    choices: Sequence[str]
    renames: Mapping[str, str] = attrs.field(factory=dict)
    ids: str = ""
    id_length: int = 40
    name_length: float = math.inf
    blank: bool = True
    signed: str = ""
    adds: Mapping[str, str] = attrs.field(factory=dict)

    @functools.cache  # noqa: B019 (rows are never freed)
    def shape(self, path: str) -> Mapping[str, Shape]:
        """Return the allowed fields of a request at a path below `/v1`."""
        known = {**FIELDS[path], **{name: _shape(each) for name, each in self.adds.items()}}
        return functools.reduce(_without, (each.split(".") for each in self.drops), known)


def _without(shape: Any, place: list[str]) -> Any:
    if isinstance(shape, ListOf):
        return ListOf(_without(shape.each, place))
    if isinstance(shape, Leaf) or place[0] not in shape:
        return shape
    kept = {name: each for name, each in shape.items() if name != place[0] or place[1:]}
    return kept | ({place[0]: _without(shape[place[0]], place[1:])} if place[1:] else {})


_OTHERS: Final = ("shapes", "paths", "types", "engine_fields", "engine_limits", "writes", "messages")
ENGINE_LIMITS: Final = _limits(TABLE["engine_limits"])
"""Fields by whose values engines of ours allocate or loop."""


def check_limits(body: Mapping[str, Any]) -> None:
    """Refuse values that could end an engine of ours, or keep it busy.

    Raises:
        DialectError: A value is out of its range.
    """
    for name in ENGINE_LIMITS.keys() & body.keys():
        if not ENGINE_LIMITS[name].allows(body[name]):
            limits = ", ".join(f"{key} {each}" for key, each in TABLE["engine_limits"][name].items())
            raise DialectError(f"{name} is {reprlib.repr(body[name])}; its limits: {limits}; change or omit it")


def _row(name: str) -> dict[str, Any]:
    row = TABLE[name]
    inherited = {key: each for key, each in _row(row["extends"]).items() if key != "hosts"} if "extends" in row else {}
    return inherited | {key: each for key, each in row.items() if key != "extends"}


PROVIDERS: Final = {name: Provider(**_row(name)) for name in TABLE if name not in _OTHERS}
"""Rows by name."""


@functools.lru_cache(maxsize=1024)
def provider_at(kind: str, url: str, *, is_llama_cpp: bool) -> Provider:
    """Return the row of a backend, given its `provider` and its base URL."""
    if not kind:
        return PROVIDERS["llama.cpp" if is_llama_cpp else "engine"]
    host = f".{urlsplit(url).hostname}"
    known = (each for each in PROVIDERS.values() if any(host.endswith(f".{name}") for name in each.hosts))
    default = {"openai": "compatible", "vertex_ai": "gemini"}.get(kind, kind)
    return (next(known, None) if kind == "openai" else None) or PROVIDERS[default]


def limited(body: JsonObject, provider: Provider, dropped: list[str]) -> JsonObject:
    """Return a request without values that are out of range; single items of a list are dropped from it."""
    found = dict(body)
    for name, limit in provider.limits.items():
        value = body.get(name)
        if isinstance(value, list) and len(value) <= limit.items:
            outside = [at for at, each in enumerate(value) if not limit.allows(each)]
            found[name] = [each for at, each in enumerate(value) if at not in outside]
            dropped += [f"{name}[{at}]" for at in outside]
            if not found[name]:
                del found[name]
        elif not limit.allows(value):
            dropped.append(name)
            del found[name]
    return found


def fitted(body: JsonObject, provider: Provider, dropped: list[str]) -> JsonObject:
    """Return chat completions in the form that a provider takes.

    Args:
        body: The request, with known fields only.
        provider: Receiver.
        dropped: List to which the names of parts are added that are left out.

    Raises:
        DialectError: It depends on a part that the provider does not take.
    """
    if (takes := provider.takes) is not None:
        dropped += [name for name in body if name not in takes]
        body = {name: each for name, each in body.items() if name in takes}
    found = limited(body, provider, dropped)
    if provider.parts:
        turns = objects_in(body.get("messages"), "messages")
        found["messages"] = turns if all(map(_is_plain, turns)) else _turns(turns, provider, dropped)
    if not found.keys().isdisjoint(_TOOL_FIELDS) and not _choose(found, provider, dropped):
        dropped += [name for name in _TOOL_FIELDS[1:] if found.get(name) is not None]
        found = {name: each for name, each in found.items() if name not in _TOOL_FIELDS}
    for name, own in provider.renames.items():
        if name in found:
            found.setdefault(own, found.pop(name))
    return found if "messages" in body else {name: each for name, each in found.items() if name != "messages"}


# -- messages ----------------------------------------------------------------------------------------------------------

_NEEDED: Final = {"image_url": "url", "input_audio": "data", "file": "file_data", "allowed_tools": "tools"}
"""For each type of a part, the member without which it is a half; for tools `name`, for texts the text itself."""
_MOVED: Final = {"type": "text", "text": "[in the next user message]"}


def _kind(part: Mapping[str, Any], kinds: Iterable[str]) -> str:
    """Return the type of a part, a tool or a call; "" for a half."""
    kind = part.get("type") or next((each for each in kinds if each in part), "")
    inner = part.get(kind) if isinstance(kind, str) else None
    if kind in ("text", "refusal"):
        return kind if isinstance(inner, str) else ""
    return kind if isinstance(inner, dict) and inner.get(_NEEDED.get(kind, "name")) is not None else ""


def _is_plain(turn: JsonObject) -> bool:
    """Return whether every provider takes a message as it is: a role and a text."""
    content = turn.get("content")
    return len(turn) == 2 and "role" in turn and type(content) is str and not content.isspace()


def _turns(messages: list[JsonObject], provider: Provider, dropped: list[str]) -> list[JsonObject]:
    turns: list[JsonObject] = []
    moved: list[JsonObject] = []  # pictures of tool results, for the user turn after all of them
    answered = max((at for at, turn in enumerate(messages) if turn.get("role") == "assistant"), default=-1)
    for at, turn in enumerate(messages):
        where, role, content = f"messages[{at}]", turn.get("role"), turn.get("content")
        taken, fit = provider.parts.get(str(role)), dict(turn)
        if isinstance(content, list) and taken is not None:
            fit["content"] = []
            for number, part in enumerate(content):
                here, kind = f"{where}.content[{number}]", _kind(part, taken)
                if kind in taken and (provider.blank or kind != "text" or part["text"].strip()):
                    fit["content"].append(part)
                elif role == "tool" and kind in provider.parts["user"] and kind not in taken:
                    fit["content"].append(_MOVED)
                    moved.append(part)
                elif role == "user" and at > answered and part.get("type") != "text":
                    supported = ", ".join(taken)
                    raise DialectError(f"{here}.type is {part.get('type')!r:.80}; supported there: {supported}, whole")
                else:
                    dropped.append(here)
                    fit["content"] += [_replaced(part)] if part.get("type") != "text" else []
        elif content and isinstance(content, str) and not provider.blank and not content.strip():
            dropped.append(f"{where}.content")
            fit["content"] = ""
        if moved and role == "user":
            own = fit.get("content") or []
            fit["content"] = [*moved, *([{"type": "text", "text": own}] if isinstance(own, str) else own)]
            moved = []
        elif moved and role != "tool":
            turns.append({"role": "user", "content": moved})
            moved = []
        _identify(fit, provider, where, dropped)
        turns.append(fit)
    return [*turns, {"role": "user", "content": moved}] if moved else turns


def _replaced(part: Mapping[str, Any]) -> JsonObject:
    return {"type": "text", "text": f"[left out: {part.get('type')!s:.40}]"}


def _identify(turn: JsonObject, provider: Provider, where: str, dropped: list[str]) -> None:
    """Give the tool calls of a message, or the result of one, IDs that the provider takes."""
    if isinstance(turn.get("tool_call_id"), str):
        turn["tool_call_id"] = _own_id(turn["tool_call_id"], provider)
    if "tool_calls" not in turn:
        return
    calls = [dict(call) for call in objects_in(turn.pop("tool_calls"), f"{where}.tool_calls")]
    kept: list[JsonObject] = []
    for at, call in enumerate(calls):
        kind = _kind(call, ("function", "custom"))
        if kind == "custom" and kind not in provider.tools:
            custom, kind = call.pop("custom"), "function"
            given = dumped({"input": custom.get("input")})
            call |= {"type": kind, "function": {"name": custom["name"], "arguments": given}}
        if kind not in provider.tools:
            dropped.append(f"{where}.tool_calls[{at}]")
            continue
        for name in _long_names([call], provider):
            call[kind] = call[kind] | {"name": f"{name[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"}
        call_id, signature = signature_in(str(call.get("id") or ""))
        if provider.signed and (signature or not kept):
            own = object_in(object_in(call.get("extra_content"), "extra_content").get("google"), "google")
            call["extra_content"] = {"google": {"thought_signature": signature or provider.signed} | own}
        kept.append(call | ({"id": _own_id(call_id, provider)} if call_id else {}))
    if kept:
        turn["tool_calls"] = kept


def _own_id(call_id: str, provider: Provider) -> str:
    """Return an ID in the provider's form: the same one for a call and for its result."""
    call_id = signature_in(call_id)[0]
    if not provider.ids or re.fullmatch(provider.ids, call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[: provider.id_length]


_SIGNATURE: Final = "__signature_"
"""Between the ID of a tool call and its signature, which clients return only as a part of the ID."""


def with_signature(call_id: str, call: Mapping[str, Any]) -> str:
    """Return the ID of a tool call for clients, with the signature that Gemini requires in the next request."""
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    if not isinstance(signature, str):
        return call_id
    return f"{call_id}{_SIGNATURE}{base64.urlsafe_b64encode(signature.encode()).decode().rstrip('=')}"


def signature_in(call_id: str) -> tuple[str, str]:
    """Return an ID from a client without its signature, and the signature; "" if it has none."""
    own_id, _, encoded = call_id.partition(_SIGNATURE)
    try:
        return own_id, base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return call_id, ""


# -- tools -------------------------------------------------------------------------------------------------------------

_TOOL_FIELDS: Final = ("tools", "tool_choice", "parallel_tool_calls")
"""The tools, and what is only allowed next to them."""


def _choose(body: JsonObject, provider: Provider, dropped: list[str]) -> bool:
    """Leave out tools that the provider does not take, and translate the choice; return whether any tool is left.

    Raises:
        DialectError: The choice forces a tool that is left out.
    """
    tools, choice = objects_in(body.get("tools"), "tools"), body.get("tool_choice")
    kinds = ["" if _long_names([tool], provider) else _kind(tool, ("function", "custom")) for tool in tools]
    usable = [tool for tool, kind in zip(tools, kinds, strict=True) if kind in provider.tools]
    dropped += [f"tools[{at}]" for at, kind in enumerate(kinds) if kind not in provider.tools]
    if isinstance(choice, dict):
        kind = _kind(choice, ("function", "custom", "allowed_tools"))
        if not kind:
            raise DialectError(
                f"tool_choice is {choice!r:.80}; write auto, none, required, or a function with its name"
            )
        allowed = _names(choice["allowed_tools"].get("tools") if kind == "allowed_tools" else [choice])
        chosen = [tool for tool in usable if _names([tool]) & allowed]
        is_forced = kind != "allowed_tools" or choice["allowed_tools"].get("mode") == "required"
        is_changed = len(usable) < len(tools) or kind not in provider.choices
        if is_forced and is_changed and not chosen:
            forced = ", ".join(sorted(allowed))
            raise DialectError(f"tool_choice forces {forced!r:.80}, which is not a tool that is supported; write auto")
        if kind not in provider.choices or (is_changed and kind == "allowed_tools"):
            usable, body["tool_choice"] = chosen, "required" if is_forced else "auto"
    elif choice == "required" and tools and not usable:
        raise DialectError("tool_choice is required, but none of the tools is supported there; write auto")
    if len(usable) < len(tools):
        body["tools"] = usable
    return bool(usable)


def _long_names(tools: object, provider: Provider) -> list[str]:
    return [name for name in _names(tools) if len(name) > provider.name_length]


def _names(tools: object) -> set[str]:
    return {
        str(named["name"])
        for tool in objects_in(tools, "tools")
        for named in (tool, tool.get("function"), tool.get("custom"))
        if isinstance(named, dict) and named.get("name")
    }
