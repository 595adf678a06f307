"""Bodies are JSON or YAML objects; what is wrong with one is said before anything looks inside."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import yaml

from llmkube.apiserver.protocol import protobuf_bodies
from llmkube.apiserver.schema import parts as schemaparts
from llmkube.apiserver.schema.string_formats import FORMATS
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values.api_errors import bad_request, too_large
from llmkube.apiserver.values.field_errors import at, at_index
from llmkube.apiserver.values.json_values import is_integer, is_list, is_number, is_object

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
"""The largest body accepted, as in kube-apiserver (etcd's limit of 1.5 MiB applies to what is stored)."""


class DecodeError(Exception):
    """A value does not read as what its place asks for; who knows the kind makes an answer of it."""


def check_size(body: bytes) -> None:
    """Refuse a body over the limit.

    Raises:
        RequestRefusedError: 413.
    """
    if len(body) > MAX_BODY_BYTES:
        raise too_large(f"limit is {MAX_BODY_BYTES}")


def parse(body: bytes, media: str) -> tuple[Any, list[str]]:
    """Return the parsed body and what a strict decoder would complain about: fields that are there twice.

    Raises:
        RequestRefusedError: 400, not JSON (or YAML); 413, too large.
    """
    check_size(body)
    if media == protobuf_bodies.MEDIA_TYPE:
        return protobuf_bodies.decode(body), []
    try:
        return _yaml(body) if media.endswith("yaml") else _json(body)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as exc:
        raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc


def parse_object(body: bytes, media: str) -> tuple[dict[str, Any], list[str]]:
    """Return the body as an object whose metadata is an object too.

    Raises:
        RequestRefusedError: 400, it is something else.
        DecodeError: Its metadata is of the wrong type.
    """
    content, duplicates = parse(body, media)
    check_envelope(content)
    check_shape(content)
    return content, duplicates


def check_envelope(content: Any) -> None:
    """Refuse what is no object or does not say in text what it is.

    Raises:
        RequestRefusedError: 400.
    """
    if not isinstance(content, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is not an object")
    for name in ("apiVersion", "kind"):
        if not isinstance(content.get(name) or "", str):
            raise bad_request(f"couldn't get version/kind; json parse error: {name} is not a string")


def check_shape(content: Mapping[str, Any]) -> None:
    """Refuse metadata that no kind allows, so that everything behind this line can rely on its shape.

    Raises:
        DecodeError: A value of the wrong type.
    """
    metadata = content.get("metadata")
    if metadata is None:
        return
    if not is_object(metadata):
        raise cannot_unmarshal("metadata", "object")
    check_types({name: metadata[name] for name in metadata}, OBJECT_META, "metadata")


def check_types(value: Any, schema: Schema, path: str) -> None:
    """Refuse a value whose JSON types are not those of a built-in kind's schema; unknown fields and nulls pass.

    kube-apiserver decodes built-in kinds into structures before it looks at them; this is the same door.

    Raises:
        DecodeError: It names the field.
    """
    if value is None:
        return
    if schema.int_or_string:
        fits = isinstance(value, str) or is_integer(value)
    else:
        fits = _TYPES.get(schema.type, _anything)(value)
    if not fits:
        raise cannot_unmarshal(path, schema.type or "integer or string")
    _check_form(value, schema.raw.get("format", ""), path)
    if is_object(value):
        for name, item in value.items():
            inner = schema.child(name)
            if inner is not None:
                check_types(item, inner, at(path, name))
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            if item is None and schema.items.type in {"object", "string"}:
                raise cannot_unmarshal(at_index(path, index), schema.items.type)
            check_types(item, schema.items, at_index(path, index))


def _check_form(value: Any, form: str, path: str) -> None:
    if form == "date-time" and value and not FORMATS[form](value):
        raise DecodeError(f'parsing time "{value}" in {path}: not as in RFC 3339')
    if form == "byte" and not FORMATS[form](value):
        raise DecodeError(f"illegal base64 data in {path}")


def cannot_unmarshal(path: str, wanted: str) -> DecodeError:
    """Say that a field has the wrong JSON type."""
    return DecodeError(f"json: cannot unmarshal value into Go struct field .{path} of type {wanted}")


def _anything(_: Any) -> bool:
    return True


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": is_object,
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "number": is_number,
}
OBJECT_META: Final = Schema.parse(schemaparts.OBJECT_META)


class _Pairs(dict[str, Any]):
    """An object that says that some of its fields were there twice; JSON readers keep the last."""

    repeated: tuple[str, ...] = ()


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) == len(pairs):
        return content
    noted = _Pairs(content)
    names = [name for name, _ in pairs]
    noted.repeated = tuple(name for name in content if names.count(name) > 1)
    return noted


def _json(body: bytes) -> tuple[Any, list[str]]:
    noted: list[bool] = []

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = _pairs(pairs)
        if type(content) is _Pairs:
            noted.append(True)
        return content

    # as Go reads it: UTF-8, and what is not becomes a question mark
    content = json.loads(body.decode(errors="replace"), object_pairs_hook=hook, parse_constant=_no_constant)
    return content, list(_duplicates(content, "")) if noted else []  # nearly no body has any: no need to look


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in getattr(value, "repeated", ()):
            yield f'duplicate field "{at(path, name)}"'
        for name, item in value.items():
            yield from _duplicates(item, at(path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicates(item, at_index(path, index))


def _no_constant(name: str) -> Any:
    raise ValueError(f"invalid character: {name} is not JSON")


def _yaml(body: bytes) -> tuple[Any, list[str]]:
    try:  # kubectl calls an apply patch YAML and sends JSON, which is quick to read
        return _json(body)
    except ValueError:
        pass
    content = yaml.load(body, Loader=_Loader)  # noqa: S506  # _Loader is a SafeLoader that reads less
    # Through JSON, so that whatever YAML allows beyond it (numbers as keys, sets) is refused or spelled as JSON
    return json.loads(json.dumps(content, allow_nan=False)), []


class _Loader(yaml.SafeLoader):
    """Reads YAML as Kubernetes does: a date is a text. Aliases are refused: a few lines of them fill a memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
