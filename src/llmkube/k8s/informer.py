"""Informers: a cache of all objects of one kind with indexes, and a handler that is called for each change.

This is what client-go calls a shared informer with indexers. A handler gets the object before and after the change, so
handlers and indexes store no objects of their own.
"""

import random
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, Generic, Never, TypeVar

import attrs
import trio

from llmkube.k8s.client import Client
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key, Object

T = TypeVar("T", bound=Object)
V = TypeVar("V", bound=Hashable)


@attrs.frozen
class Event(Generic[T]):
    """One change of an object.

    Attributes:
        before: The object at the handler's last call; None if it is new.
        now: The object now; None if it is gone. If its newest version cannot be read, the last one that could be.
        was_readable: Whether the newest version could be read at the last call.
        is_readable: Whether the newest version can be read now.
    """

    key: Key
    before: T | None
    now: T | None
    was_readable: bool = True
    is_readable: bool = True


@attrs.define(eq=False)
class Index(Generic[T, V]):
    """Objects by a value; an object may have several values, or none.

    Attributes:
        values_of: Returns the values of an object; they depend on nothing else.
    """

    values_of: Callable[[T], Iterable[V]]
    _keys: dict[V, set[Key]] = attrs.field(factory=dict, init=False)

    def update(self, event: Event[T]) -> None:
        """Apply a change."""
        before, now = self._values(event.before), self._values(event.now)
        for value in before - now:
            self._keys[value].discard(event.key)
            if not self._keys[value]:
                del self._keys[value]
        for value in now - before:
            self._keys.setdefault(value, set()).add(event.key)

    def values(self, event: Event[T]) -> frozenset[V]:
        """Return the values that an object had before or has after a change."""
        return self._values(event.before) | self._values(event.now)

    def count(self, value: V) -> int:
        """Return how many objects have a value."""
        return len(self._keys.get(value, ()))

    def keys(self, value: V) -> frozenset[Key]:
        """Return the keys of the objects that have a value."""
        return frozenset(self._keys.get(value, ()))

    def _values(self, obj: T | None) -> frozenset[V]:
        return frozenset(self.values_of(obj)) if obj is not None else frozenset()


@attrs.define(eq=False)
class Informer(Generic[T]):
    """All objects of one kind, or those that a selector matches.

    Attributes:
        label_selector: In kubectl's syntax; empty for all objects.
        cache: The objects; only `run` may write to it.
        uninstalled: Set when the API server no longer serves the kind.
    """

    kind: type[T]
    label_selector: str = ""
    cache: Cache[T] = attrs.field(factory=Cache, init=False)
    uninstalled: trio.Event = attrs.field(factory=trio.Event, init=False)
    _indexes: list[Index[T, Any]] = attrs.field(factory=list, init=False)
    _delivered: dict[Key, tuple[T | None, bool]] = attrs.field(factory=dict, init=False)

    def add_index(self, values_of: Callable[[T], Iterable[V]]) -> Index[T, V]:
        """Return a new index, updated from now on; add it before the first object arrives."""
        index = Index(values_of)
        self._indexes.append(index)
        return index

    @property
    def is_known(self) -> bool:
        """Whether the first complete list has arrived; until then no object can be called missing."""
        return self.cache.synced.is_set()

    def get(self, key: Key) -> T | None:
        """Return the cached object, or None."""
        return self.cache.get(key)

    def pick(self, keys: Iterable[Key]) -> tuple[T, ...]:
        """Return the cached objects with these keys, in the order of the keys."""
        return tuple(found for key in sorted(keys) if (found := self.cache.get(key)) is not None)

    def values(self) -> tuple[T, ...]:
        """Return a snapshot of all objects."""
        return self.cache.values()

    def is_unreadable(self, key: Key) -> bool:
        """Whether the object exists, but this program cannot read its newest version."""
        return self.cache.decode_error(key) is not None

    async def run(
        self, client: Client, handle: Callable[[Event[T]], None], *, namespace: str | None, rng: random.Random
    ) -> Never:
        """Update the cache and the indexes until cancelled, and call `handle` for each change; it must not block."""
        deliver = partial(self._deliver, handle)
        await run_reflector(
            client, self.kind, self.cache, deliver, namespace=namespace, label_selector=self.label_selector, rng=rng
        )

    def clear(self) -> None:
        """Drop every object: the API server no longer serves the kind, or serves it again."""
        self.cache, self.uninstalled = Cache(), trio.Event()
        for key, (before, was_readable) in self._delivered.items():
            self._index(Event(key, before, None, was_readable))
        self._delivered.clear()

    def _deliver(self, handle: Callable[[Event[T]], None], key: Key) -> None:
        before, was_readable = self._delivered.pop(key, (None, True))
        now, is_readable = self.cache.get(key), not self.is_unreadable(key)
        if now is not None or not is_readable:
            self._delivered[key] = now, is_readable
        event = Event(key, before, now, was_readable, is_readable)
        self._index(event)
        handle(event)

    def _index(self, event: Event[T]) -> None:
        for index in self._indexes:
            index.update(event)
