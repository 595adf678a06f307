"""Which objects point at this one? An inverted index that also knows what an object pointed at before it was gone."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


@attrs.define(eq=False)
class Index(Generic[K, V]):
    """Map each value to the keys that hold it; a key may hold several values, or none."""

    _values: dict[K, frozenset[V]] = attrs.field(factory=dict, init=False)
    _keys: dict[V, set[K]] = attrs.field(factory=dict, init=False)

    def put(self, key: K, values: Iterable[V]) -> frozenset[V]:
        """Say what a key holds now, and return what it holds or held before: all that its change may concern."""
        now = frozenset(values)
        before = self._values.pop(key, frozenset())
        if now:
            self._values[key] = now
        for value in before - now:
            self._keys[value].discard(key)
            if not self._keys[value]:
                del self._keys[value]
        for value in now - before:
            self._keys.setdefault(value, set()).add(key)
        return before | now

    def holders(self, value: V) -> frozenset[K]:
        """The keys that hold a value."""
        return frozenset(self._keys.get(value, ()))
