"""A strategic merge patch merges the lists that the schema names by their keys; built-in kinds only.

Facts: `k8s.io/apimachinery/pkg/util/strategicpatch` and Kubernetes' "strategic-merge-patch" document: the directives
`$patch` (replace, delete, merge), `$retainKeys`, `$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.jsonvalues import compact, copy, is_list, same
from llmkube.apiserver.schema import ANYTHING, JsonObject, Schema
from llmkube.base.errors import UserError

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_DELETE: Final = "$deleteFromPrimitiveList/"


class StrategicPatchError(UserError):
    """The patch is no strategic merge patch for this kind: an HTTP 400."""


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
    if directive not in {None, "merge"}:
        raise StrategicPatchError(f"Unknown patch type found: {directive}")
    if _RETAIN in patch:
        target = _retain(target, patch)
    for name, value in patch.items():
        if not name.startswith("$"):
            _patch_field(target, name, value, schema.child(name) or ANYTHING)
    _arrange(target, patch, schema)
    return target


def _arrange(target: JsonObject, patch: Mapping[str, Any], schema: Schema) -> None:
    """Obey the directives about whole lists, after their items are merged."""
    for name, unwanted in _lists(patch, _DELETE).items():
        if is_list(target.get(name)):
            target[name] = [item for item in target[name] if not any(same(item, each) for each in unwanted)]
    for name, order in _lists(patch, _ORDER).items():
        if is_list(target.get(name)):
            target[name] = _ordered(target[name], order, schema.child(name) or ANYTHING)


def _patch_field(target: JsonObject, name: str, value: Any, inner: Schema) -> None:
    if value is None:
        target.pop(name, None)
    elif isinstance(value, Mapping):
        _patch_map(target, name, value, inner)
    elif is_list(value) and "merge" in inner.patch_strategies:
        target[name] = _merge_lists(target.get(name) or [], value, inner)
    else:
        target[name] = copy(value)


def _patch_map(target: JsonObject, name: str, value: Mapping[str, Any], inner: Schema) -> None:
    if value.get(_PATCH) == "delete":
        target.pop(name, None)
        return
    below = target.get(name)
    if not isinstance(below, dict) or "replace" in inner.patch_strategies:
        below = {}
    target[name] = _merge_maps(below, value, inner)


def _retain(target: JsonObject, patch: Mapping[str, Any]) -> JsonObject:
    """Keep the listed keys only; every key that the patch sets must be among them."""
    kept = patch[_RETAIN]
    if not is_list(kept):
        raise StrategicPatchError(f"{_RETAIN} must be a list")
    for name in patch:
        if not name.startswith("$") and name not in kept:
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
        return [*target, *(copy(item) for item in patch if compact(item) not in known)]
    for item in patch:
        if not isinstance(item, Mapping):
            raise StrategicPatchError("an item of a list that merges by key must be an object")
    if any(item.get(_PATCH) == "replace" for item in patch):
        return [copy(item) for item in patch if _PATCH not in item]
    merged = list(target)
    for item in patch:
        wanted = _key_of(item, schema.patch_merge_key)
        places = [place for place, each in enumerate(merged) if same(each.get(schema.patch_merge_key), wanted)]
        if item.get(_PATCH) == "delete":
            merged = [each for place, each in enumerate(merged) if place not in places]
        elif places:
            merged[places[0]] = _merge_maps(merged[places[0]], item, schema.items or ANYTHING)
        else:
            merged.append(_merge_maps({}, item, schema.items or ANYTHING))
    return merged


def _key_of(item: Mapping[str, Any], key: str) -> Any:
    if key not in item:
        raise StrategicPatchError(f"map: {compact(item)} does not contain declared merge key: {key}")
    return item[key]


def _ordered(items: Sequence[Any], order: Sequence[Any], schema: Schema) -> list[Any]:
    """Sort the listed items as asked; an unlisted one stays behind the neighbour that it stood behind."""
    key = schema.patch_merge_key

    def spelled(item: Any) -> str:
        return compact(item.get(key) if key and isinstance(item, Mapping) else item)

    places = {spelled(item): place for place, item in enumerate(order)}
    listed = sorted((item for item in items if spelled(item) in places), key=lambda item: places[spelled(item)])
    ordered: list[Any] = list(listed)
    behind: str | None = None
    for item in items:
        mark = spelled(item)
        if mark not in places:
            spots = [place for place, each in enumerate(ordered) if spelled(each) == behind]
            ordered.insert(spots[-1] + 1 if spots else 0, item)
        behind = mark
    return ordered
