"""One change of an object, and indexes that follow from changes: which objects have a value? Pure."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import attrs

from llmkube.k8s.resource import Key, Object

T = TypeVar("T", bound=Object)
V = TypeVar("V", bound=Hashable)


@attrs.frozen
class Event(Generic[T]):
    """One change of an object.

    Attributes:
        key: The object.
        before: As it was at the handler's last call; None when it is new.
        now: As it is; None when it is gone. Of an object that cannot be read it is the last state that could.
        was_readable: Whether its newest state could be read then.
        is_readable: Whether its newest state can be read now.
    """

    key: Key
    before: T | None
    now: T | None
    was_readable: bool = True
    is_readable: bool = True


@attrs.define(eq=False)
class Index(Generic[T, V]):
    """Find the objects that have a value; an object may have several values, or none.

    Attributes:
        values_of: The values of an object, from nothing but the object.
    """

    values_of: Callable[[T], Iterable[V]]
    _keys: dict[V, set[Key]] = attrs.field(factory=dict, init=False)

    def update(self, event: Event[T]) -> None:
        """Take in a change."""
        before, now = self._values(event.before), self._values(event.now)
        for value in before - now:
            self._keys[value].discard(event.key)
            if not self._keys[value]:
                del self._keys[value]
        for value in now - before:
            self._keys.setdefault(value, set()).add(event.key)

    def values(self, event: Event[T]) -> frozenset[V]:
        """Return the values that an object has or had: all that its change may concern."""
        return self._values(event.before) | self._values(event.now)

    def count(self, value: V) -> int:
        """Return how many objects have a value."""
        return len(self._keys.get(value, ()))

    def keys(self, value: V) -> frozenset[Key]:
        """Return the keys of the objects that have a value."""
        return frozenset(self._keys.get(value, ()))

    def _values(self, obj: T | None) -> frozenset[V]:
        return frozenset(self.values_of(obj)) if obj is not None else frozenset()
