"""How much of an object has changed? Many changes are of labels and annotations, which no reconcile reads. Pure."""

import enum

from llmkube.controller.indexer import Event
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model


class Change(enum.IntEnum):
    """How much of an object is another: nothing that matters here, its state only, or all of it."""

    NONE = 0
    STATE = 1  # status, finalizers, a deletion that was asked for
    SPEC = 2  # it has come, has gone, has another spec, or is another object of the same name


def change_of(event: Event[Model] | Event[InferenceService]) -> Change:
    """Say how much has changed.

    Of an object that cannot be read the cache has an older state, and no reconcile touches it: that matters, and so
    does whatever comes next.
    """
    before, now = event.before, event.now
    if not event.is_readable:
        return Change.STATE
    if not event.was_readable or before is None or now is None or _identity(before) != _identity(now):
        return Change.SPEC
    return Change.NONE if _state(before) == _state(now) else Change.STATE


def _identity(obj: Model | InferenceService) -> tuple[str, int]:
    return obj.metadata.uid, obj.metadata.generation


def _state(obj: Model | InferenceService) -> tuple[object, ...]:
    return obj.status, obj.metadata.deletion_timestamp, obj.metadata.finalizers
