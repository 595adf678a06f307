"""Merging, comparing and trimming by schema: maps key by key, keyed lists item by item, atomic values as a whole.

Server-side apply (`fields.ownership`) is built on these functions. A value that the schema does not declare is treated
by its own type: maps merge, lists are atomic.

Facts: `sigs.k8s.io/structured-merge-diff`, package `typed`.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.apiserver.fields import fieldset
from llmkube.apiserver.fields.fieldset import FieldSet, Path
from llmkube.apiserver.schema.structural import ANYTHING, Schema
from llmkube.apiserver.values.json_values import (
    ABSENT,
    SCALARS,
    go_literal,
    go_plain,
    go_type_name,
    is_list,
    is_number,
    is_object,
    same,
)
from llmkube.base.errors import UserError


class _ItemError(Exception):
    """An item has no unique key."""


class MergeError(UserError):
    """The object does not fit its schema and cannot be merged by it; the message names the path."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message, field=fieldset.dotted(path))


@attrs.frozen
class Comparison:
    """The difference between an old and a new object, as paths."""

    added: FieldSet
    modified: FieldSet
    removed: FieldSet

    def __bool__(self) -> bool:
        return bool(self.added or self.modified or self.removed)

    def without_below(self, ignored: FieldSet) -> "Comparison":
        """Return the comparison without what is at or below the given paths."""
        return Comparison(*(part.without_below(ignored) for part in (self.added, self.modified, self.removed)))

    @property
    def written(self) -> FieldSet:
        """The paths that the writer set to a new value."""
        return self.added.union(self.modified)


def paths_of(value: Any, schema: Schema, path: Path = ()) -> FieldSet:
    """Return the paths that a manager owns when it applies `value`.

    Raises:
        MergeError: A keyed list's item lacks its key, or a value has the wrong shape.
    """
    if is_leaf(schema, value):
        return fieldset.NOTHING
    members = set()
    children = {}
    for element, item in _parts(value, schema, path):
        inner = _inner(schema, element)
        leaf = is_leaf(inner, item)
        if leaf or item is None or item == {} or element[0] != "f" or element[2:] not in schema.properties:
            members.add(element)
        if not leaf and (below := paths_of(item, inner, (*path, element))):
            children[element] = below
    return FieldSet(frozenset(members), children)


def _parts(value: Any, schema: Schema, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the element and the value of each part of a container."""
    if is_object(value):
        for name, item in value.items():
            yield fieldset.field(name), item
    elif is_list(value):
        yield from zip(elements_of(value, schema, path), value, strict=True)


def _inner(schema: Schema, element: str) -> Schema:
    """Return the schema of a container's part."""
    return (schema.child(element[2:]) if element[0] == "f" else schema.items) or ANYTHING


def compare(old: Any, new: Any, schema: Schema) -> Comparison:
    """Return what changed from `old` to `new`.

    Raises:
        MergeError: As for `paths_of`.
    """
    found: dict[str, list[Path]] = {"added": [], "modified": [], "removed": []}
    _compare(old, new, schema, (), found)
    return Comparison(**{name: FieldSet.of(path for path in paths if path) for name, paths in found.items()})


def _compare(old: Any, new: Any, schema: Schema, path: Path, found: dict[str, list[Path]]) -> None:
    if old is new:
        return  # `merge` shares what it does not change
    leaf = _is_leaf_pair(schema, old, new)
    if old is ABSENT:
        found["added"].append(path)
    elif new is ABSENT:
        found["removed"].append(path)
    elif leaf and not same(old, new):
        found["modified"].append(path)
    if leaf:
        return
    for element, left, right, inner in _pairs(old, new, schema, path):
        _compare(left, right, inner, (*path, element), found)


def _pairs(old: Any, new: Any, schema: Schema, path: Path) -> Iterator[tuple[str, Any, Any, Schema]]:
    """Yield the children of two containers of the same shape, matched by name or key."""
    left, right = _by_element(old, schema, path), _by_element(new, schema, path)
    for element in {**left, **right}:
        yield element, left.get(element, ABSENT), right.get(element, ABSENT), _inner(schema, element)


def _by_element(value: Any, schema: Schema, path: Path) -> dict[str, Any]:
    """Return a container's parts by element; of equal elements, the first."""
    found: dict[str, Any] = {}
    for element, item in _parts(value, schema, path):
        found.setdefault(element, item)
    return found


def check(value: Any, schema: Schema, path: Path = ()) -> Iterator[MergeError]:
    """Yield the reasons why a configuration cannot be applied: undeclared fields, wrong types, items without a key."""
    if value is None or schema.int_or_string or not schema.type:
        return
    wanted, has_shape, describe = _SHAPES[schema.type]
    if not has_shape(value):
        yield MergeError(path, f"expected {wanted}, got {describe(value)}")
    elif schema.type == "object":
        yield from _check_fields(value, schema, path)
    elif schema.type == "array" and schema.items is not None:
        yield from _check_items(value, schema, path)


def _check_fields(value: Mapping[str, Any], schema: Schema, path: Path) -> Iterator[MergeError]:
    for name, item in value.items():
        inner = schema.child(name)
        if inner is not None:
            yield from check(item, inner, (*path, fieldset.field(name)))
        elif not schema.preserve_unknown:
            yield MergeError((*path, fieldset.field(name)), "field not declared in schema")


def _check_items(value: Sequence[Any], schema: Schema, path: Path) -> Iterator[MergeError]:
    assert schema.items is not None, "checked by the caller"
    seen: set[str] = set()
    for index, item in enumerate(value):
        element = f"i:{index}"
        if schema.list_type != "atomic":
            try:
                element = _element(item, schema)
            except _ItemError as error:
                yield MergeError(path, f"element {index}: {error}")
                continue
            if element in seen:
                yield MergeError(path, f"duplicate entries for key {fieldset.dotted((element,))}")
            seen.add(element)
        yield from check(item, schema.items, (*path, element))


def _go_reference(value: Any) -> str:
    return f"&{{{go_plain(value)}}}"


def _go_literal_reference(value: Any) -> str:
    return f"&value.valueUnstructured{{Value:{go_literal(value)}}}"


_SHAPES: Final[Mapping[str, tuple[str, Callable[[Any], bool], Callable[[Any], str]]]] = {
    "object": ("map", is_object, _go_reference),
    "array": ("list", is_list, _go_reference),
    "string": ("string", lambda value: isinstance(value, str), _go_literal_reference),
    "boolean": ("boolean", lambda value: isinstance(value, bool), _go_literal_reference),
    "integer": ("numeric (int or float)", is_number, go_type_name),
    "number": ("numeric (int or float)", is_number, go_type_name),
}


def merge(live: Any, applied: Any, schema: Schema, path: Path = ()) -> Any:
    """Return `live` with `applied`, in which `check` finds no error, merged into it.

    The result shares the parts that it takes over unchanged, and is `live` itself if nothing changed: treat it as
    immutable.

    Raises:
        MergeError: As for `paths_of`.
    """
    if applied is ABSENT:
        return live
    if live is ABSENT or _is_leaf_pair(schema, live, applied):
        return live if type(live) is type(applied) and same(live, applied) else applied
    if is_object(live) or is_object(applied):
        merged: Any = {
            element[2:]: merge(left, right, inner, (*path, element))
            for element, left, right, inner in _pairs(live, applied, schema, path)
        }
        shared = is_object(live) and len(live) == len(merged) and all(map(operator.is_, live.values(), merged.values()))
    else:
        merged = _merge_lists(live or [], applied or [], schema, path)
        shared = is_list(live) and len(live) == len(merged) and all(map(operator.is_, live, merged))
    return live if shared else merged


def _merge_lists(live: Sequence[Any], applied: Sequence[Any], schema: Schema, path: Path) -> list[Any]:
    """Merge items of the same key; applied ones keep their order, live ones their place between shared neighbours."""
    left = elements_of(live, schema, path)
    right = elements_of(applied, schema, path)
    first_live = dict(zip(reversed(left), reversed(live), strict=True))
    rest = deque(zip(right, applied, strict=True))
    shared = deque(element for element in right if element in first_live)
    in_right = frozenset(right)
    inner = schema.items or ANYTHING
    merged: list[Any] = []

    def take() -> str:
        element, item = rest.popleft()
        merged.append(merge(first_live.get(element, ABSENT), item, inner, (*path, element)))
        return element

    for element, item in zip(left, live, strict=True):
        if element not in in_right:
            merged.append(item)
        elif shared and element == shared[0]:
            while take() != element:
                pass  # new items before it
            shared.popleft()
    while rest:
        take()
    return merged


def remove(value: Any, unwanted: FieldSet, schema: Schema) -> Any:
    """Return `value` without the items and fields at the given paths; a container that loses all becomes null."""
    if not unwanted or is_leaf(schema, value):
        return value
    kept = [
        (element, remove(item, unwanted.below(element), _inner(schema, element)))
        for element, item in _parts(value, schema, ())
        if element not in unwanted.members
    ]
    if not kept:
        return None if value else value
    return {element[2:]: item for element, item in kept} if is_object(value) else [item for _, item in kept]


def with_named(paths: FieldSet, schema: Schema) -> FieldSet:
    """Return the set with every declared field above a path as a member, so that emptied structures are removed too."""
    children = {element: with_named(below, _inner(schema, element)) for element, below in paths.children.items()}
    declared = {element for element in children if element[0] == "f" and element[2:] in schema.properties}
    return FieldSet(paths.members | declared, children)


def is_leaf(schema: Schema, value: Any) -> bool:
    """Whether the value is owned as a whole: a scalar, or a container that is atomic by its schema or undeclared."""
    if is_object(value):
        return schema.map_atomic or schema.type not in {"", "object"}
    if is_list(value):
        return schema.type != "array" or schema.list_type == "atomic"
    if value is None:
        return (
            schema.type not in {"object", "array"}
            or schema.map_atomic
            or (schema.type == "array" and schema.list_type == "atomic")
        )
    return True


def _is_leaf_pair(schema: Schema, old: Any, new: Any) -> bool:
    """Whether two values are compared as a whole; empty ones are, because null, `{}` and `[]` differ."""
    before, after = (type(side) not in _NON_CONTAINERS for side in (old, new))
    if not (before and old) and not (after and new):
        return True
    if before and after:
        return is_object(old) != is_object(new) or is_leaf(schema, old) or is_leaf(schema, new)
    one, other = (old, new) if before else (new, old)
    if other is not None and other is not ABSENT:
        return True  # the type changed, and the schema does not declare it
    return is_leaf(schema, one)


_NON_CONTAINERS: Final = SCALARS | {type(ABSENT)}


def elements_of(items: Sequence[Any], schema: Schema, path: Path) -> list[str]:
    """Return the path elements of the items of a keyed list or a set.

    Raises:
        MergeError: As for `paths_of`.
    """
    elements = []
    for index, item in enumerate(items):
        try:
            elements.append(_element(item, schema))
        except _ItemError as error:
            raise MergeError(path, f"element {index}: {error}") from error
    return elements


def _element(item: Any, schema: Schema) -> str:
    if schema.list_type == "set":
        if is_object(item) and not (schema.items and schema.items.map_atomic):
            raise _ItemError("associative list without keys has an element that's a map type")
        if item is None:
            raise _ItemError("associative list without keys has an element that's an explicit null")
        return fieldset.value(item)
    if not is_object(item):
        raise _ItemError("associative list with keys may not have non-map elements")
    keys: dict[str, Any] = {}
    for name in schema.list_map_keys:
        inner = schema.items.child(name) if schema.items else None
        if name in item:
            keys[name] = item[name]
        elif inner is not None and inner.has_default:
            keys[name] = inner.raw["default"]
    if not keys:
        listed = " ".join(f'"{name}"' for name in schema.list_map_keys)
        raise _ItemError(
            f"associative list with keys has an element that omits all key fields [{listed}]"
            " (and doesn't have default values for any key fields)"
        )
    return fieldset.key(keys)
