"""Rebuilds request bodies for backends from allow-lists of fields, so that no client can pass a URL or a key.

Providers get listed fields only, at every depth. Engines of ours also get fields of llama.cpp's server and others, from
a second list. No backend fetches anything for a client: images are embedded in the request (`data:`). Pure.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Final

import attrs
import orjson

from llmkube.base.json_text import loads_well_formed
from llmkube.router.budgets.meter import with_most_tokens
from llmkube.router.config.routing_config import Backend
from llmkube.router.continuation.continuable import obstacle
from llmkube.router.dialects.dialect import DialectError, check_kinds, objects_in
from llmkube.router.dialects.engine_form import engine_body
from llmkube.router.dialects.messages_backend import messages_request
from llmkube.router.dialects.providers import (
    DATA_URL,
    ENGINE_FIELDS,
    FIELDS,
    FREE,
    NUMBERS,
    PLAIN,
    STRINGS,
    TABLE,
    ListOf,
    Shape,
    check_limits,
    fitted,
    limited,
    provider_at,
)
from llmkube.router.presets import with_adapters


class BodyError(DialectError):
    """A body is refused as a whole."""

    def __init__(self, message: str, code: str = "invalid_json") -> None:
        super().__init__(message)
        self.code = code


_NESTED: Final = frozenset({dict, list})

MAX_DEPTH: Final = 64
"""Nesting of objects and lists, outside values that only the model interprets."""

MAX_NAME_BYTES: Final = 4096
"""Longest name of a model."""

COUNT_TOKENS: Final = "/messages/count_tokens"
_CACHE_FIELDS: Final = ("cache_prompt", "cache_salt", "id_slot", "n_cache_reuse")
"""Fields that select cached prompts."""

STREAMING: Final = frozenset({"/chat/completions", "/completions"})
"""Paths where a model generates text, as a stream if the client requests one."""

_TYPES: Final[Mapping[str, type | UnionType]] = {
    "numbers": int | float,
    "strings": str,
    "flags": bool,
    "objects": dict,
    "texts": str | list,
    "choices": str | dict,
}
_FIELD_TYPES: Final = {name: _TYPES[group] for group, names in TABLE["types"].items() for name in names.split()}
_MESSAGE_STRINGS: Final[Mapping[str, type | UnionType]] = {"role": str, "name": str, "tool_call_id": str}
_MESSAGE_OBJECTS: Final = frozenset({"content", "tool_calls"})
"""Lists of objects; a content may also be a string."""


def check_types(body: Mapping[str, Any]) -> None:
    """Refuse fields of a type that no backend accepts, or out of range; null is treated as absent.

    Raises:
        DialectError: A field has the wrong type or range; the message names it and the right one.
    """
    check_kinds(body, _FIELD_TYPES)
    check_limits(body)
    for at, turn in enumerate(objects_in(body.get("messages"), "messages")):
        for name, value in turn.items():
            if type(value) is str and name != "tool_calls":
                continue  # the right type of every other field
            if name in _MESSAGE_STRINGS:
                check_kinds({name: value}, _MESSAGE_STRINGS, f"messages[{at}].")
            elif name in _MESSAGE_OBJECTS:
                objects_in(value, f"messages[{at}].{name}")
    objects_in(body.get("tools"), "tools")
    stop = body.get("stop")
    if not isinstance(stop, str | None) and not (isinstance(stop, list) and all(isinstance(one, str) for one in stop)):
        raise DialectError(f"stop is {stop!r:.80}; write a string or a list of strings, or omit it")


def parse_body(body: bytes, other_name: str = "", default: str = "") -> dict[str, Any]:
    """Parse a body in any dialect.

    Args:
        body: The body.
        other_name: Field that is read as `model` if that is missing.
        default: Model of a body that names none.

    Raises:
        BodyError: It is not a JSON object with a `model`, or `stream` is invalid.
    """
    try:
        parsed = loads_well_formed(body)
    except orjson.JSONDecodeError as exc:
        raise BodyError(f"the body must be a JSON object: {exc}") from exc
    if not isinstance(parsed, dict):
        raise BodyError("the body must be a JSON object")
    model = parsed.get("model")
    if not model and other_name and other_name in parsed:
        model = parsed["model"] = parsed[other_name]
    if model is None and default:
        model = parsed["model"] = default
    if not isinstance(model, str) or not model:
        raise BodyError('"model" must be a string; GET /v1/models lists the models', "invalid_model")
    if len(model) > MAX_NAME_BYTES:
        raise BodyError(f'"model" is longer than {MAX_NAME_BYTES} bytes; GET /v1/models lists them', "invalid_model")
    if not isinstance(parsed.get("stream"), bool | None):
        raise BodyError('"stream" must be true or false', "invalid_value")
    return parsed


def known_fields(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a body that any backend may get, and the names of the others; path is below `/v1`."""
    known = FIELDS.get(path, {})
    kept = {name: each for name, each in body.items() if name in known or name in ENGINE_FIELDS}
    return kept, tuple(name for name in body if name not in kept) if len(kept) < len(body) else ()


def may_name_urls(body: bytes) -> bool:
    """Return whether a body could contain a member that `refuse_urls` refuses, without parsing it."""
    return any(name in body for name in (b'url"', b'data"', b"\\u"))


def refuse_urls(body: Mapping[str, Any]) -> None:
    """Refuse content that would have to be fetched for the client.

    Raises:
        BodyError: The body contains a URL other than `data:`, or is nested too deeply.
    """
    if where := _find_url(body, None, MAX_DEPTH):
        message = f"{_text_of(where)} must be a data: URL; nothing is fetched for clients, so send the content itself"
        raise BodyError(message, "url_not_allowed")


@attrs.frozen
class BackendRequest:
    """Request for one backend.

    Attributes:
        path: Path below the backend's base URL.
        dropped: Fields of the client's request that were left out, for the audit log.
        usage_added: Whether the router added a request for usage, which must be hidden from the client.
    """

    path: str
    body: bytes
    dropped: tuple[str, ...] = ()
    usage_added: bool = False


def rebuild(path: str, client_body: Mapping[str, Any], backend: Backend, cache_salt: str = "") -> BackendRequest:
    """Rebuild a request for one backend.

    Args:
        path: Path below `/v1`.
        client_body: Parsed body.
        backend: Receiver.
        cache_salt: Separates the prompt caches of tenants; "" if they share them.

    Raises:
        DialectError: It cannot be translated to the backend's dialect.
    """
    dropped: list[str] = []
    provider = provider_at(backend.provider, backend.base_url, is_llama_cpp=backend.is_llama_cpp)
    if backend.provider:
        body = _object(_with_texts(client_body), provider.shape(path), None, dropped)
        _refuse_losses(client_body, body, provider.shape(path))
    else:
        body, others = known_fields(path, dict(client_body))
        if cache_salt:  # vLLM's and SGLang's caches know it; llama.cpp's slots are shared, and so reuse nothing
            others += tuple(name for name in _CACHE_FIELDS if name in body)
            body = {name: each for name, each in body.items() if name not in _CACHE_FIELDS}
            body |= {"cache_salt": cache_salt, "cache_prompt": False}
        dropped += others
        body = dict(with_adapters(body, str(body.get("model")), backend.adapters, backend.presets))
        body = dict(engine_body(body, dropped, is_llama_cpp=bool(backend.model_digest)))
    if backend.model:
        body["model"] = backend.model
    if backend.max_answer_tokens and path in STREAMING:
        body = dict(with_most_tokens(body, backend.max_answer_tokens))
    usage_added = False
    if path in STREAMING and body.get("stream"):
        options = body.get("stream_options")
        options = dict(options) if isinstance(options, dict) else {}
        usage_added = options.get("include_usage") is not True
        if provider.takes is None or "stream_options" in provider.takes:
            body["stream_options"] = options | {"include_usage": True}
        else:
            body.pop("stream_options", None)  # it always reports usage
        if backend.model_digest and not obstacle(path, body):
            body.setdefault("timings_per_token", True)  # to know how many tokens an engine wrote before it died
    if uses_messages_api(path, backend):
        count = path == COUNT_TOKENS
        path = COUNT_TOKENS if count else "/messages"
        body, left_out = messages_request(body, count=count)
        dropped += left_out
    else:
        body = (fitted if path == "/chat/completions" else limited)(body, provider, dropped)
    try:
        written = orjson.dumps(body)
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"the body is nested too deeply: {exc}") from exc
    return BackendRequest(path, written, tuple(dropped), usage_added)


def uses_messages_api(path: str, backend: Backend) -> bool:
    """Return whether the request uses Anthropic's Messages API: for Anthropic backends, and to count tokens.

    llama.cpp's server implements it as well, and counts tokens only there.
    """
    return backend.dialect == "anthropic" or path == COUNT_TOKENS


_TEXTS: Final = ("input", "prompt")
_CONTENT: Final = (*_TEXTS, "documents", "messages", "query")
"""Fields that are the request itself."""


def _with_texts(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a body with strings instead of text parts in the fields for texts.

    Raises:
        DialectError: There is another part.
    """
    for name in _TEXTS:
        parts = body.get(name)
        if isinstance(parts, list) and any(type(each) is dict for each in parts):
            texts = [each.get("text") if type(each) is dict else each for each in parts]
            if None in texts or any(type(each) is dict and len(each.keys() - {"type", "text"}) for each in parts):
                raise DialectError(f"{name} has a part that is more than a text; write a string or a list of strings")
            body = {**body, name: texts}
    return body


def _refuse_losses(before: Mapping[str, Any], after: Mapping[str, Any], known: Mapping[str, Shape]) -> None:
    """Refuse a request whose content would get lost.

    Raises:
        DialectError: Some content has no form that the provider takes.
    """
    for name in _CONTENT:
        is_lost = name in known and name in before and name not in after
        if is_lost or (name == "documents" and {} in (after.get(name) or ())):
            raise DialectError(f"{name} is in a form that no provider takes; write strings, or objects with a text")


_Place = tuple["_Place | None", str | int]
"""Path of a member: that of its parent, and its name or index; a text is only made of it for an error or a log."""


def _find_url(value: Mapping[str, Any] | list[Any], where: _Place | None, depth_left: int) -> _Place | None:
    """Return the first member with a URL that would have to be fetched; None if there is none.

    Such URLs are values of `_URL_FIELDS`, or of `_BASE64_FIELDS` in place of the content.

    Raises:
        BodyError: It is nested too deeply.
    """
    if depth_left < 0:
        raise BodyError(f"the body is nested more than {MAX_DEPTH} deep, at {_text_of(where)[:80]}…", "invalid_value")
    for name, each in enumerate(value) if type(value) is list else value.items():  # type: ignore[union-attr]
        if type(each) is str:
            if name in _FETCHED_FIELDS and not each.startswith("data:") and (name in _URL_FIELDS or ":" in each):
                return where, name
        elif type(each) in _NESTED and each and name not in _OPAQUE:
            found = _find_url(each, (where, name), depth_left - 1)
            if found is not None:
                return found
    return None


def _text_of(where: _Place | None) -> str:
    if where is None:
        return ""
    parent, name = where
    if isinstance(name, int):
        return f"{_text_of(parent)}[{name}]"
    return f"{_text_of(parent)}.{name}" if parent else name


_OPAQUE: Final = frozenset(["parameters", "schema", "json_schema", "arguments", "grammar", "metadata", "annotations"])
"""Fields that only the model or nothing interprets, whatever their members are called."""

_BASE64_FIELDS: Final = frozenset({"data", "file_data"})
"""Base64 fields: a value with a colon may be a URL, which a gateway would fetch."""

_URL_FIELDS: Final = frozenset({"url", "image_url", "audio_url", "video_url", "file_url", "server_url"})
_FETCHED_FIELDS: Final = _URL_FIELDS | _BASE64_FIELDS


def _object(
    value: Mapping[str, Any], shape: Mapping[str, Shape], where: _Place | None, dropped: list[str]
) -> dict[str, Any]:
    if _NESTED.isdisjoint(map(type, value.values())) and value.keys() <= shape.keys() and "url" not in value:
        return dict(value)  # most objects: scalars with known names
    kept: dict[str, Any] = {}
    for name, each in value.items():
        part, is_nested = shape.get(name), type(each) in _NESTED
        if part is None or ((is_nested or part is DATA_URL) and not _fits(each, part)):
            dropped.append(_text_of((where, name)))
        else:
            kept[name] = _filtered(each, part, (where, name), dropped) if is_nested else each
    return kept


def _filtered(value: Any, shape: Shape, where: _Place, dropped: list[str]) -> Any:
    if type(value) is dict and isinstance(shape, dict):
        return _object(value, shape, where, dropped)
    if type(value) is not list or not isinstance(shape, ListOf):
        return value
    kept, each = [], shape.each
    for at, one in enumerate(value):
        if type(one) is dict and isinstance(each, dict):
            kept.append(_object(one, each, (where, at), dropped))
        elif _fits(one, each):
            kept.append(_filtered(one, each, (where, at), dropped))
        else:
            dropped.append(_text_of((where, at)))
    return kept


def _fits(value: Any, shape: Shape) -> bool:
    if shape is FREE or (type(value) is list and type(shape) is ListOf):
        return True
    if isinstance(value, dict):
        if shape is NUMBERS:
            return all(name.isdigit() and isinstance(each, int | float) for name, each in value.items())
        if shape is STRINGS:
            return all(isinstance(each, str) for each in value.values())
        return isinstance(shape, dict)
    if isinstance(value, list):
        return shape is PLAIN and all(_fits(each, PLAIN) for each in value)
    if shape is DATA_URL:
        return isinstance(value, str) and value.startswith("data:")
    return True
