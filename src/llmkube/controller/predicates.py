"""What does a change change? Much of what a watch tells is an edited label or annotation: no reconcile reads those."""

import enum
from typing import Generic, TypeVar

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.reflector import Cache
from llmkube.k8s.resource import Key

T = TypeVar("T", Model, InferenceService)


class Change(enum.IntEnum):
    """How much of an object is another: nothing that matters here, its state only, or all of it."""

    NONE = 0
    STATE = 1  # status, finalizers, a deletion that was asked for
    SPEC = 2  # it has come, has gone, has another spec, or is another object of the same name


@attrs.define(eq=False)
class News(Generic[T]):
    """The objects of a kind as they were when they were last asked about."""

    cache: Cache[T]
    _known: dict[Key, T] = attrs.field(factory=dict, init=False)

    def take(self, key: Key) -> Change:
        """Say what has become of an object since the last call.

        Of an object that cannot be read the cache has an older state: that is news, and so is whatever comes next.
        """
        before, now = self._known.pop(key, None), self.cache.get(key)
        if self.cache.misfit(key) is not None:
            return Change.STATE
        if now is not None:
            self._known[key] = now
        if before is None or now is None or _identity(before) != _identity(now):
            return Change.SPEC
        return Change.NONE if _state(before) == _state(now) else Change.STATE


def _identity(obj: T) -> tuple[str, int]:
    return obj.metadata.uid, obj.metadata.generation


def _state(obj: T) -> tuple[object, ...]:
    return obj.status, obj.metadata.deletion_timestamp, obj.metadata.finalizers
