"""Defaulting and pruning: an object is brought into its stored form before it is validated."""

import operator
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import attrs

from llmkube.apiserver.schema.structural import JsonObject, Schema
from llmkube.apiserver.values.api_errors import too_large
from llmkube.apiserver.values.field_errors import at, at_item
from llmkube.apiserver.values.json_text import MAX_VALUES
from llmkube.apiserver.values.json_values import ABSENT, SCALARS, copy, is_list, is_object

MAX_COMPLAINTS: Final = 100
"""Unknown or duplicate fields of an object that are named; as many as kube-apiserver's decoder names."""


def apply_defaults(obj: Mapping[str, Any], schema: Schema) -> JsonObject:
    """Return a copy with defaults filled in; a default below a missing parent does not apply.

    A null where the schema does not allow one is treated as missing if there is a default; other nulls stay and are
    validated later.
    """
    filled: JsonObject = copy(obj)
    fill(filled, schema)
    return filled


def drop_unset(value: Any, schema: Schema, *, builtin: bool) -> None:
    """Remove, in place, what is not stored: fields that are null where the schema does not allow null.

    The Go structure of a built-in kind also writes a null in a map of texts as the empty text, and omits empty lists
    and maps. An empty structure (`{}` where fields are declared) stays, because it has a meaning.
    """
    if isinstance(value, list) and schema.items is not None:
        for item in value:
            drop_unset(item, schema.items, builtin=builtin)
    for name in list(value) if isinstance(value, dict) else ():
        inner = schema.child(name)
        if inner is None:
            continue
        if builtin and value[name] is None and schema.additional is not None and inner.type == "string":
            value[name] = ""
        drop_unset(value[name], inner, builtin=builtin)
        unset = value[name] is None and not inner.nullable
        empty = builtin and not value[name] and (inner.type == "array" or inner.additional is not None)
        if (unset or empty) and not inner.has_default:
            del value[name]


def fill(value: Any, schema: Schema) -> None:
    """Fill in defaults, in place.

    Raises:
        RequestRefusedError: 413, they are more values than a body may have.
    """
    _DefaultFiller().fill(value, schema)


@attrs.define(eq=False)
class _DefaultFiller:
    """Fills in defaults and counts them: a large default for each item of a long list would exhaust memory."""

    values: int = 0

    def default(self, schema: Schema) -> Any:
        self.values += schema.default_size
        if self.values > MAX_VALUES:
            raise too_large(f"limit is {MAX_VALUES} values, and the object with its defaults has more")
        return copy(schema.raw["default"])

    def fill(self, value: Any, schema: Schema) -> None:
        if isinstance(value, dict):
            for name in [*value, *(name for name in schema.defaulted if name not in value)]:
                inner = schema.child(name)
                if inner is not None:
                    self._fill_part(value, name, inner)
        elif isinstance(value, list) and schema.items is not None:
            for index in range(len(value)):
                self._fill_part(value, index, schema.items)

    def _fill_part(self, container: Any, key: str | int, schema: Schema) -> None:
        missing = key not in container if isinstance(container, dict) else False
        if schema.has_default and (missing or (container[key] is None and not schema.nullable)):
            container[key] = self.default(schema)
        self.fill(container[key], schema)


def nullified(value: Any, schema: Schema) -> Any:
    """Return the value with null for the empty lists that the Go structure of a built-in kind writes as null.

    The result shares what does not change; it is the value itself if nothing does.
    """
    if not _has_null_lists(schema):
        return value
    if isinstance(value, dict):
        parts = {name: _nullified_field(item, inner) for name, item in value.items() if (inner := schema.child(name))}
        return value if all(value[name] is part for name, part in parts.items()) else {**value, **parts}
    if isinstance(value, list) and schema.items is not None:
        items = [nullified(item, schema.items) for item in value]
        return value if all(map(operator.is_, value, items)) else items
    return value


@lru_cache(maxsize=4096)
def _has_null_lists(schema: Schema) -> bool:
    """Whether an empty list anywhere below is written as null; only a few kinds have such lists."""
    return any(field.raw["default"] is None or _has_null_lists(field) for field in schema.defaulted.values()) or any(
        _has_null_lists(inner) for inner in (*schema.properties.values(), schema.additional, schema.items) if inner
    )


def _nullified_field(item: Any, schema: Schema) -> Any:
    return None if item == [] and schema.raw.get("default", ABSENT) is None else nullified(item, schema)


def is_complete(value: Any, schema: Schema) -> bool:
    """Whether a value is certainly in its stored form: nothing unknown, null or empty in it, no default missing.

    If so, pruning and filling in would change nothing. The result is False for some complete values: those with a null
    that is allowed, or an empty list that stays.
    """
    if type(value) is dict:
        return value.keys() >= schema.defaulted.keys() and all(
            _is_complete_field(item, inner) if (inner := schema.child(name)) else schema.preserve_unknown
            for name, item in value.items()
        )
    if type(value) is list and schema.items is not None:
        return all(item is not None and is_complete(item, schema.items) for item in value)
    return type(value) in SCALARS or type(value) is list


def _is_complete_field(item: Any, schema: Schema) -> bool:
    if type(item) is str:
        return True  # most values are texts
    if not item and (item is None or schema.type == "array" or schema.additional is not None):
        return False
    return is_complete(item, schema)


def zero(schema: Schema) -> JsonObject:
    """Return a built-in kind's object before anything is set, such as `{"spec": {}}`.

    Kubernetes' own types have structures that always exist; field ownership on create is computed relative to them.
    These structures are the empty and the null defaults.
    """
    empty: JsonObject = {}
    for name, inner in schema.properties.items():
        if inner.has_default and not inner.raw["default"]:
            value = inner.raw["default"]
            empty[name] = zero(inner) if is_object(value) else copy(value)
    return empty


def prune(obj: Mapping[str, Any], schema: Schema) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a copy without the fields that the schema does not declare, and their paths (`spec.items[0].colour`).

    All are removed, but at most `MAX_COMPLAINTS` are named.
    """
    pruned: JsonObject = copy(obj)
    dropped = _drop_unknown(pruned, schema, "")
    named = tuple(islice(dropped, MAX_COMPLAINTS))
    deque(dropped, maxlen=0)  # removes the rest
    return pruned, named


def _drop_unknown(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in list(value):
            inner = schema.child(name)
            below = at(path, name)
            if inner is not None:
                yield from _drop_unknown(value[name], inner, below)
            elif not schema.preserve_unknown:
                del value[name]
                yield below
    elif is_list(value) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _drop_unknown(item, schema.items, at_item(path, index))


def unknown_fields(paths: tuple[str, ...]) -> list[str]:
    """Return the errors of strict field validation: `unknown field "spec.colour"`.

    With `fieldValidation=Strict` the server answers 400 with `strict decoding error: ` and these, joined by `, `; with
    `Warn` each is a warning of its own.
    """
    return [f'unknown field "{path}"' for path in paths]
