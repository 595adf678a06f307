"""The built-in types as data: fields, types of lists and merging, defaults, and Go's field numbers.

`builtin_types.json` has them by their Kubernetes names, in the form of the published OpenAPI document (a `$ref` is a
name), with the number that a field has in protobuf as `x-field-number`. Every field that a client may set has one.

Facts: the OpenAPI document of Kubernetes 1.32 (types, list types, map keys, patch strategies, defaults); the
`generated.proto` of meta/v1, core/v1, discovery/v1, coordination/v1 and authorization/v1 (field numbers, which never
change). The descriptions of fields are our own, and limited to what `kubectl explain` needs.
"""

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final

JsonObject = dict[str, Any]

OBJECT_META_TYPE: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

Numbers = Mapping[int, tuple[str, Any]]
"""By field number, the name of the field and the `Numbers` of its type."""

_NUMBER: Final = "x-field-number"
_TYPES: Final[JsonObject] = json.loads(resources.files(__package__).joinpath("builtin_types.json").read_bytes())


def type_schema(name: str) -> JsonObject:
    """Return the schema of a type, with the types that it refers to expanded."""
    schema: JsonObject = _expanded(_TYPES[name])
    return schema


def _expanded(raw: Any) -> Any:
    if isinstance(raw, list):
        return [_expanded(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    own = {name: _expanded(value) for name, value in raw.items() if name not in {"$ref", _NUMBER}}
    return _expanded(_TYPES[raw["$ref"]]) | own if "$ref" in raw else own


OBJECT_META: Final = type_schema(OBJECT_META_TYPE)


def type_names(name: str) -> dict[str, str]:
    """Return the type names of a type's parts by path, such as `spec.ports[]`; for other kinds, those of metadata."""
    return dict(_names(_TYPES.get(name) or {"properties": {"metadata": {"$ref": OBJECT_META_TYPE}}}, ""))


def _names(raw: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    if "$ref" in raw:
        yield path, raw["$ref"]
        raw = _TYPES[raw["$ref"]]
    for name, inner in (raw.get("properties") or {}).items():
        yield from _names(inner, f"{path}.{name}" if path else name)
    if "items" in raw:
        yield from _names(raw["items"], f"{path}[]")


def field_numbers(name: str) -> Numbers:
    """Return the numbers of a type's fields in protobuf; empty when it is not read from protobuf."""
    return _numbers({"$ref": name})


def _numbers(raw: Mapping[str, Any]) -> Numbers:
    raw = _TYPES[raw["$ref"]] if "$ref" in raw else raw
    if "items" in raw:
        return _numbers(raw["items"])
    fields = (raw.get("properties") or {}).items()
    return {inner[_NUMBER]: (name, _numbers(inner)) for name, inner in fields if _NUMBER in inner}
