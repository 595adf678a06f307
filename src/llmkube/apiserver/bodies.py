"""Bodies are JSON or YAML objects; what is wrong with one is said before anything looks inside."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from llmkube.apiserver import protobuf, schemas
from llmkube.apiserver.failures import RequestRefusedError, bad_request, too_large
from llmkube.apiserver.fielderrors import at, at_index
from llmkube.apiserver.jsonvalues import is_integer, is_list, is_number
from llmkube.apiserver.schema import Schema

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
"""The largest body accepted, as in kube-apiserver (etcd's limit of 1.5 MiB applies to what is stored)."""


def check_size(body: bytes) -> None:
    """Refuse a body over the limit.

    Raises:
        RequestRefusedError: 413.
    """
    if len(body) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)


def parse(body: bytes, media: str) -> tuple[Any, list[str]]:
    """Return the parsed body and what a strict decoder would complain about: fields that are there twice.

    Raises:
        RequestRefusedError: 400, not JSON (or YAML); 413, too large.
    """
    check_size(body)
    if media == protobuf.MEDIA_TYPE:
        return protobuf.decode(body), []
    duplicates: list[str] = []
    try:
        if media.endswith("yaml"):
            return _yaml(body, duplicates), duplicates
        return json.loads(body, object_pairs_hook=_noting(duplicates), parse_constant=_no_constant), duplicates
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as exc:
        raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc


def parse_object(body: bytes, media: str) -> tuple[dict[str, Any], list[str]]:
    """Return the body as an object whose metadata is an object too.

    Raises:
        RequestRefusedError: 400, it is something else.
    """
    content, duplicates = parse(body, media)
    if not isinstance(content, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is not an object")
    check_shape(content)
    return content, duplicates


def check_shape(content: Mapping[str, Any]) -> None:
    """Refuse metadata that no kind allows, so that everything behind this line can rely on its shape.

    Raises:
        RequestRefusedError: 400.
    """
    metadata = content.get("metadata")
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        raise cannot_unmarshal("metadata", "object")
    check_types({name: metadata[name] for name in metadata}, OBJECT_META, "metadata")


def check_types(value: Any, schema: Schema, path: str) -> None:
    """Refuse a value whose JSON types are not those of a built-in kind's schema; unknown fields and nulls pass.

    kube-apiserver decodes built-in kinds into structures before it looks at them; this is the same door.

    Raises:
        RequestRefusedError: 400, naming the field.
    """
    if value is None:
        return
    if schema.int_or_string:
        fits = isinstance(value, str) or is_integer(value)
    else:
        fits = _TYPES.get(schema.type, _anything)(value)
    if not fits:
        raise cannot_unmarshal(path, schema.type or "integer or string")
    if isinstance(value, Mapping):
        for name, item in value.items():
            inner = schema.child(name)
            if inner is not None:
                check_types(item, inner, at(path, name))
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            if item is None and schema.items.type in {"object", "string"}:
                raise cannot_unmarshal(at_index(path, index), schema.items.type)
            check_types(item, schema.items, at_index(path, index))


def cannot_unmarshal(path: str, wanted: str) -> RequestRefusedError:
    """Refuse a body because one of its fields has the wrong JSON type."""
    return bad_request(f"json: cannot unmarshal value into Go struct field .{path} of type {wanted}")


def _anything(_: Any) -> bool:
    return True


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": is_list,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "number": is_number,
}
OBJECT_META: Final = Schema.parse(schemas.OBJECT_META)


def _noting(duplicates: list[str]) -> Any:
    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            names = [name for name, _ in pairs]
            duplicates.extend(f'duplicate field "{name}"' for name in dict.fromkeys(names) if names.count(name) > 1)
        return content

    return hook


def _no_constant(name: str) -> Any:
    raise ValueError(f"invalid character: {name} is not JSON")


def _yaml(body: bytes, duplicates: list[str]) -> Any:
    try:  # kubectl calls an apply patch YAML and sends JSON, which is quick to read
        return json.loads(body, object_pairs_hook=_noting(duplicates), parse_constant=_no_constant)
    except ValueError:
        duplicates.clear()
    content = yaml.load(body, Loader=_Loader)  # noqa: S506  # _Loader is a SafeLoader that reads less
    # Through JSON, so that whatever YAML allows beyond it (numbers as keys, sets) is refused or spelled as JSON
    return json.loads(json.dumps(content, allow_nan=False))


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
