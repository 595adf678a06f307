"""An apply that names exactly what its manager owns changes values in place: no manager gains or loses a field.

Heartbeats and reports are such applies: the same places, other words. Then neither paths have to be gathered nor
objects merged and compared; one walk over the configuration finds what is new, and everything else stays the very same,
so that later steps (`validate`, `same`) see at a glance what has not changed.

The walk gives up (None) at the first sight of anything else, and `ownership.server_side_apply` goes its long way: what
such applies do has to be what that does, only sooner.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.apiserver.fields import fieldset
from llmkube.apiserver.fields.fieldset import FieldSet, Path
from llmkube.apiserver.fields.merge import MergeError, elements_of, fits, is_leaf, misfits
from llmkube.apiserver.schema.structural import ANYTHING, JsonObject, Schema
from llmkube.apiserver.values.json_values import same

_SCALARS: Final = frozenset({str, int, float, bool})
_TYPE: Final = ("apiVersion", "kind")
_PLACE: Final = ("name", "namespace")


@attrs.frozen
class ValueOnlyChange:
    """A live object with new values in places that it had before."""

    object: JsonObject  # shares what did not change with the live one
    changed: tuple[Path, ...]


class _NotValueOnlyError(Exception):
    """It takes more than new values."""


def apply_values_only(
    live: Mapping[str, Any], applied: Mapping[str, Any], owned: FieldSet, schema: Schema
) -> ValueOnlyChange | None:
    """Return the live object with the values of the configuration, or None if that takes more than new values.

    Args:
        live: The stored object.
        applied: What a manager applies.
        owned: What the same manager owns already.
        schema: The schema of the whole object.
    """
    tag, tag_before = applied.get("metadata"), live.get("metadata")
    if type(tag) is not dict or type(tag_before) is not dict:
        return None
    if any(applied.get(name) != live.get(name) for name in _TYPE):
        return None
    if any(name in tag and tag[name] != tag_before.get(name) for name in _PLACE):
        return None
    wanted = {name: value for name, value in applied.items() if name not in _TYPE}
    wanted["metadata"] = {name: value for name, value in tag.items() if name not in _PLACE}
    if not wanted["metadata"]:
        del wanted["metadata"]  # no manager owns an object's identity
    walk = _Walk()
    try:
        renewed = walk.fields(live, wanted, owned, schema, ())
    except (_NotValueOnlyError, MergeError):
        return None
    return ValueOnlyChange(dict(renewed), tuple(walk.changed))


@attrs.define(eq=False)
class _Walk:
    """One walk over a configuration; each step returns the live value itself when nothing in it is new."""

    changed: list[Path] = attrs.field(factory=list)

    def fields(
        self, live: Mapping[str, Any], applied: Mapping[str, Any], owned: FieldSet, schema: Schema, path: Path
    ) -> Mapping[str, Any]:
        fresh = {}
        for name, wanted in applied.items():
            inner = schema.child(name)
            if inner is None:
                if not schema.preserve_unknown:
                    raise _NotValueOnlyError
                inner = ANYTHING
            element, itself = fieldset.field(name), name not in schema.properties or wanted == {}
            before = live.get(name)
            after = self._value(before, wanted, owned, inner, (*path, element), itself=itself)
            if after is not before:
                fresh[name] = after
        if len(applied) != len(owned.elements):
            raise _NotValueOnlyError  # something that was owned is named no longer
        return {**live, **fresh} if fresh else live

    def _value(self, live: Any, wanted: Any, owned: FieldSet, schema: Schema, path: Path, *, itself: bool) -> Any:
        """Return the value at a path, of which `owned` is what is owned beside it; `itself` as in `merge.paths_of`."""
        element, kind = path[-1], type(wanted)
        if kind is not type(live) or not fits(wanted, schema):
            raise _NotValueOnlyError
        leaf = is_leaf(schema, wanted)
        if (element in owned.members) is not (leaf or itself) or (leaf and element in owned.children):
            raise _NotValueOnlyError
        if kind in _SCALARS:
            if wanted != live:
                self.changed.append(path)
                return wanted
        elif leaf:
            if not same(live, wanted) or any(misfits(wanted, schema, path)):
                raise _NotValueOnlyError
        elif kind is dict:
            return self.fields(live, wanted, owned.below(element), schema, path)
        elif kind is list:
            return self._items(live, wanted, owned.below(element), schema, path)
        else:
            raise _NotValueOnlyError
        return live

    def _items(
        self, live: Sequence[Any], applied: Sequence[Any], owned: FieldSet, schema: Schema, path: Path
    ) -> Sequence[Any]:
        """Renew items of a keyed list or set where they are; those of others stay between them."""
        wanted = dict(zip(elements_of(applied, schema, path), applied, strict=True))
        places = {element: place for place, element in enumerate(elements_of(live, schema, path))}
        if len(places) != len(live) or len(wanted) != len(applied) or wanted.keys() != owned.elements:
            raise _NotValueOnlyError
        if not wanted:
            raise _NotValueOnlyError  # without items it owns nothing there, and `fields` would count it for another
        order = [places.get(element, -1) for element in wanted]
        if -1 in order or order != sorted(order):
            raise _NotValueOnlyError  # an item was removed, or the order is another one
        renewed = list(live)
        for element, item in wanted.items():
            place = places[element]
            renewed[place] = self._value(
                live[place], item, owned, schema.items or ANYTHING, (*path, element), itself=True
            )
        return live if all(map(operator.is_, live, renewed)) else renewed
