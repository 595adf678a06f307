"""What was made once is not made again: one value per key, for as long as what it was made from is the same. Pure."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@attrs.define(eq=False)
class Memo(Generic[K, V]):
    """Keep the newest value of each key; hand over values that nobody changes, for all callers get the same one."""

    _kept: dict[K, tuple[tuple[Any, ...], V]] = attrs.field(factory=dict, init=False)

    def get(self, key: K, made_from: tuple[Any, ...], make: Callable[[], V]) -> V:
        """Return the value that is kept, if it was made from equal things; else make it. An error is not kept."""
        kept = self._kept.get(key)
        if kept is not None and kept[0] == made_from:
            return kept[1]
        value = make()
        self._kept[key] = (made_from, value)
        return value

    def forget(self, key: K) -> None:
        """Drop what is kept for a key that is gone."""
        self._kept.pop(key, None)
