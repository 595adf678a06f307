"""The objects of one kind as the API server has them, their indexes, and a handler that is called for each change.

What client-go calls a shared informer with indexers. A handler gets the object before and after the change, so neither
handlers nor indexes remember anything of their own.

`ControllerHealth` says which kinds cannot be listed, why, and what that costs; everything else goes on without them.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Generic, Never, TypeVar

import attrs
import trio
from prometheus_client.core import GaugeMetricFamily

from llmkube.k8s.client import Client
from llmkube.k8s.reflector import Cache, run_reflector
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


@attrs.define(eq=False)
class Informer(Generic[T]):
    """All objects of one kind, or those that a selector chooses.

    Attributes:
        kind: Their kind.
        label_selector: Which of them, as kubectl takes it.
        cache: The objects; read it, and leave writing to `run`.
        uninstalled: Set when the API server turns out not to serve the kind any more.
    """

    kind: type[T]
    label_selector: str = ""
    cache: Cache[T] = attrs.field(factory=Cache, init=False)
    uninstalled: trio.Event = attrs.field(factory=trio.Event, init=False)
    _indexes: list[Index[T, Any]] = attrs.field(factory=list, init=False)
    _delivered: dict[Key, tuple[T | None, bool]] = attrs.field(factory=dict, init=False)

    def add_index(self, values_of: Callable[[T], Iterable[V]]) -> Index[T, V]:
        """Return an index that is kept up to date from now on; add it before the first object comes."""
        index = Index(values_of)
        self._indexes.append(index)
        return index

    @property
    def is_known(self) -> bool:
        """Whether the first whole list is in: before, nothing can be said to be missing."""
        return self.cache.synced.is_set()

    def get(self, key: Key) -> T | None:
        """Return an object as last seen, or None when there is none as far as the cache knows."""
        return self.cache.get(key)

    def pick(self, keys: Iterable[Key]) -> tuple[T, ...]:
        """Return those of these objects that there are, in the order of their keys."""
        return tuple(found for key in sorted(keys) if (found := self.cache.get(key)) is not None)

    def values(self) -> tuple[T, ...]:
        """Return all objects, as a snapshot."""
        return self.cache.values()

    def is_unreadable(self, key: Key) -> bool:
        """Whether there is an object whose newest state this version cannot read."""
        return self.cache.decode_error(key) is not None

    async def run(
        self, client: Client, handle: Callable[[Event[T]], None], *, namespace: str | None, rng: random.Random
    ) -> Never:
        """Keep the cache and the indexes true until cancelled, and call `handle` for each change; it must not block."""
        deliver = partial(self._deliver, handle)
        await run_reflector(
            client, self.kind, self.cache, deliver, namespace=namespace, label_selector=self.label_selector, rng=rng
        )

    def clear(self) -> None:
        """Forget every object: the API server does not serve the kind any more, or serves it anew."""
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


NOTHING_WORKS: Final = "no Model and no InferenceService is reconciled"
PODS_WAIT: Final = "services in pods stay as they are, with the status that they have"
ROUTERS_WAIT: Final = "routers in pods stay as they are, with the status that they have"
HOSTS_WAIT: Final = "what hosts serve keeps the status that it has"
FETCHES_WAIT: Final = "no weights are fetched for Models in pods, and those keep the status that they have"


@attrs.frozen(eq=False)
class WatchedKind:
    """One collection that the controller follows.

    Attributes:
        name: What it holds.
        cost: What does not happen until it has been listed once.
        cache: Its objects.
    """

    name: str
    cost: str
    cache: Cache[Any]

    @property
    def problem(self) -> str:
        """What cannot be listed, why, and what it costs; empty while the last list has succeeded."""
        if not self.cache.refusal:
            return ""
        cost = "changes of them are not seen" if self.cache.synced.is_set() else self.cost
        return f"cannot list {self.name}: {cost} ({self.cache.refusal})"


@attrs.define(eq=False)
class ControllerHealth:
    """What `/readyz` and the metrics say; one that stands by follows nothing.

    Attributes:
        kinds: What the controller follows while it acts, or is about to.
        acting: Whether it reconciles.
    """

    kinds: tuple[WatchedKind, ...] = ()
    acting: bool = False

    def ready(self) -> tuple[bool, str]:
        """Whether the controller does its work, or could take it over, and what it lacks."""
        lacks = [problem for kind in self.kinds if (problem := kind.problem)]
        does_nothing = any(kind.cost == NOTHING_WORKS and not kind.cache.synced.is_set() for kind in self.kinds)
        state = "acting" if self.acting else "starting" if self.kinds else "standing by"
        return not (lacks and does_nothing), "; ".join((state, *lacks))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Name the series without looking at any kind."""
        yield _family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Say of each kind whether its last list has failed."""
        family = _family()
        for kind in self.kinds:
            family.add_metric([kind.name], bool(kind.cache.refusal))
        yield family


def _family() -> GaugeMetricFamily:
    about = "1 for a kind that the controller cannot list; /readyz says why and what it costs."
    return GaugeMetricFamily("llmkube_controller_kind_unlisted", about, labels=["kind"])
