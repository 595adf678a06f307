"""A strategic merge patch merges lists by the keys that the schema declares; for built-in kinds only.

Facts: `k8s.io/apimachinery/pkg/util/strategicpatch` and Kubernetes' "strategic-merge-patch" document: the directives
`$patch` (replace, delete, merge), `$retainKeys`, `$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.schema.structural import ANYTHING, JsonObject, Schema
from llmkube.apiserver.values.json_values import compact, copy, is_list, is_object
from llmkube.base.errors import UserError

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_DELETE: Final = "$deleteFromPrimitiveList/"


class StrategicPatchError(UserError):
    """The patch is not a strategic merge patch for this kind: in kube-apiserver, an internal error (HTTP 500)."""


def strategic_merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any], schema: Schema) -> JsonObject:
    """Return the target after a strategic merge patch.

    Raises:
        StrategicPatchError: An unknown directive, an item without its merge key, or a directive of the wrong type.
    """
    return _merge_maps(copy(target), patch, schema)


def _merge_maps(target: JsonObject, patch: Mapping[str, Any], schema: Schema) -> JsonObject:
    directive = patch.get(_PATCH)
    if directive == "replace":
        return {name: copy(value) for name, value in patch.items() if name != _PATCH}
    if directive == "delete":
        return {}
    if directive is not None and directive != "merge":
        raise StrategicPatchError(f"unknown patch type: {directive} in map: {compact(patch)}")
    if _RETAIN in patch:
        target = _retain(target, patch)
    before = {name: list(value) for name, value in target.items() if is_list(value)}
    for name, value in patch.items():
        if not name.startswith("$"):
            _patch_field(target, name, value, schema.child(name) or ANYTHING)
    _arrange(target, before, patch, schema)
    return target


def _arrange(target: JsonObject, before: Mapping[str, Sequence[Any]], patch: Mapping[str, Any], schema: Schema) -> None:
    """Apply the directives for whole lists, after their items are merged."""
    for name, unwanted in _lists(patch, _DELETE).items():
        if is_list(target.get(name)):
            dropped = set(map(compact, unwanted))
            target[name] = [item for item in target[name] if compact(item) not in dropped]
    for name, order in _lists(patch, _ORDER).items():
        if is_list(target.get(name)):
            inner = schema.child(name) or ANYTHING
            target[name] = _ordered(target[name], order, before.get(name, ()), inner.patch_merge_key)


def _patch_field(target: JsonObject, name: str, value: Any, inner: Schema) -> None:
    if value is None:
        target.pop(name, None)
    elif is_object(value):
        _patch_map(target, name, value, inner)
    elif is_list(value) and "merge" in inner.patch_strategies:
        # into no list, or an empty one, nothing is merged, not even two items with the same key
        target[name] = _merge_lists(target[name], value, inner) if target.get(name) else _without_directives(value)
    else:
        target[name] = copy(value)


def _without_directives(value: Any) -> Any:
    """Return a part of a patch that is stored as a whole, without its directives and nulls."""
    if is_object(value):
        kept = {name: item for name, item in value.items() if name[:1] != "$" and item is not None}
        return {name: _without_directives(item) for name, item in kept.items()}
    if is_list(value):
        return [_without_directives(item) for item in value if not is_object(item) or _PATCH not in item]
    return value


def _patch_map(target: JsonObject, name: str, value: Mapping[str, Any], inner: Schema) -> None:
    if value.get(_PATCH) == "delete":
        target.pop(name, None)
        return
    below = target.get(name)
    if not isinstance(below, dict) or "replace" in inner.patch_strategies:
        below = {}
    target[name] = _merge_maps(below, value, inner)


def _retain(target: JsonObject, patch: Mapping[str, Any]) -> JsonObject:
    """Drop all keys except the listed ones; every key that the patch sets must be among them."""
    if not is_list(patch[_RETAIN]):
        raise StrategicPatchError(f"{_RETAIN} must be a list")
    kept = {name for name in patch[_RETAIN] if isinstance(name, str)}
    for name, value in patch.items():
        if value is not None and not name.startswith("$") and name not in kept:
            raise StrategicPatchError(f"{_RETAIN} must contain every field that the patch sets; {name!r} is missing")
    return {name: value for name, value in target.items() if name in kept}


def _lists(patch: Mapping[str, Any], prefix: str) -> dict[str, Sequence[Any]]:
    found = {name.removeprefix(prefix): value for name, value in patch.items() if name.startswith(prefix)}
    for name, value in found.items():
        if not is_list(value):
            raise StrategicPatchError(f"{prefix}{name} must be a list")
    return found


def _merge_lists(target: Sequence[Any], patch: Sequence[Any], schema: Schema) -> list[Any]:
    if not schema.patch_merge_key:
        known = {compact(item) for item in target}
        every = [*target, *(copy(item) for item in patch if compact(item) not in known)]
        return _ordered(every, patch, target, "")
    for item in patch:
        if not is_object(item):
            raise StrategicPatchError("an item of a list that merges by key must be an object")
    if any(item.get(_PATCH) == "replace" for item in patch):
        return [copy(item) for item in patch if _PATCH not in item]
    merged: dict[str, list[Any]] = {}  # by key: of duplicates, the first is merged; all are deleted together
    for item in target:
        merged.setdefault(compact(item.get(schema.patch_merge_key)), []).append(item)
    for item in patch:
        wanted = compact(_key_of(item, schema.patch_merge_key))
        if item.get(_PATCH) == "delete":
            merged.pop(wanted, None)
        elif wanted in merged:
            merged[wanted][0] = _merge_maps(merged[wanted][0], item, schema.items or ANYTHING)
        else:
            merged[wanted] = [copy(item)]  # unchanged: to kube-apiserver, a directive in it is an unknown field
    return _ordered([item for items in merged.values() for item in items], patch, target, schema.patch_merge_key)


def _key_of(item: Mapping[str, Any], key: str) -> Any:
    if key not in item:
        raise StrategicPatchError(f"map: {compact(item)} does not contain declared merge key: {key}")
    return item[key]


def _ordered(items: Sequence[Any], requested: Sequence[Any], before: Sequence[Any], key: str) -> list[Any]:
    """Sort a merged list: the items of the patch in the requested order, the others as they were.

    Between one of each, their previous order decides; if either is new, the item of the patch goes first.
    """

    def key_of(item: Any) -> str:
        return compact(item.get(key) if key and is_object(item) else item)

    wanted = {key_of(item): place for place, item in reversed(list(enumerate(requested)))}
    previous = {key_of(item): place for place, item in reversed(list(enumerate(before)))}
    listed = deque(sorted((item for item in items if key_of(item) in wanted), key=lambda item: wanted[key_of(item)]))
    rest = deque(item for item in items if key_of(item) not in wanted)
    ordered: list[Any] = []
    while listed and rest:
        left, right = previous.get(key_of(listed[0])), previous.get(key_of(rest[0]))
        first = rest if left is not None and right is not None and right < left else listed
        ordered.append(first.popleft())
    return [*ordered, *listed, *rest]
