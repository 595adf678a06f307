"""What was made of a value that is never edited is found again by the value itself, without looking into it."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

K = TypeVar("K")
V = TypeVar("V")


@attrs.define(eq=False)
class IdentityCache(Generic[K, V]):
    """A function of frozen values that remembers its newest results.

    It holds on to the values, so that no identity is used twice; an old one gives way to a new one.
    """

    make: Callable[[K], V]
    capacity: int
    _made: dict[int, tuple[K, V]] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __call__(self, value: K) -> V:
        """Return what `make` makes of the value, made once."""
        found = self._made.get(id(value))
        if found is not None:
            return found[1]
        made = self.make(value)
        self.remember(value, made)
        return made

    def remember(self, value: K, made: V) -> None:
        """Take it as known what `make` makes of the value."""
        with self._lock:  # heavy requests are worked on in a thread
            if len(self._made) >= self.capacity:
                del self._made[next(iter(self._made))]
            self._made[id(value)] = value, made
