"""Write a status only where it differs, and only onto the state that it was derived from.

A controller whose own write wakes it up must find nothing to do.

Two things would make a naive comparison write again and again. The cache lags behind our own write, so for a while the
object there is the one that we have just replaced; and a server with an older schema may drop a field that we apply.
The writer therefore keeps one record per object: what it asked for, and the object as it was then.

Every write carries the resourceVersion of the object that it was derived from. That is the one precondition that
kube-apiserver (1.36) honours in an apply: a foreign `metadata.uid` is ignored there, and the status of a deleted object
would land on a new one of the same name. A stale version is a ConflictError. It means that a newer state exists, whose
event wakes the object if it matters here; trying again with the old state could only fail again.
"""

import datetime
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import attrs
import structlog

from llmkube.controller.metrics import Durations
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceStatus
from llmkube.k8s.crd.model import Model, ModelStatus
from llmkube.k8s.crd.modelrouter import ModelRouter, ModelRouterStatus
from llmkube.k8s.events import EventRecorder, EventType
from llmkube.k8s.fields import wire_fields
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import PROGRESSING
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER

log = structlog.get_logger()

T = TypeVar("T", Model, InferenceService, ModelRouter)

PERMISSIONS: Final = tuple(
    Permission(kind, frozenset({"patch"}), subresource="status") for kind in (Model, InferenceService, ModelRouter)
)

EVENT_TYPES: Final[Mapping[str, EventType]] = {"Ready": "Normal", "Failed": "Warning"}
"""The phases whose coming is an Event: those that users wait for, and those that they have to look at."""

_Fields = dict[str, Any]
_Status = ModelStatus | InferenceServiceStatus | ModelRouterStatus


@attrs.frozen
class _Record(Generic[T]):
    """The last status of an object that needs no write, and the request that says so.

    Attributes:
        base_version: The version of the object in the cache, from which the status was derived.
        status: The request, as JSON.
        live: The object: the answer to our write, or what the cache had when it was compared.
    """

    base_version: str
    status: Mapping[str, Any]
    live: T


@attrs.define(eq=False)
class StatusWriter(Generic[T]):
    """The only door through which the controller writes the status of one kind; `emit` is called for what was written.

    It gets the object as it was before, and the status.
    """

    _client: Client
    _kind: type[T]
    _on_write: Callable[[T, Mapping[str, Any]], None] | None = None
    _records: dict[Key, _Record[T]] = attrs.field(factory=dict, init=False)

    def newest(self, cached: T) -> T:
        """Return the object as far as we know it: the answer to our last write while the cache still lags behind it."""
        last = self._last(cached)
        if last is not None and last.base_version == cached.metadata.resource_version:
            return last.live
        return cached

    async def write(
        self, cached: T, status: Mapping[str, Any], *, extra: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Apply a status unless the object has it already; return whether anything was sent.

        Args:
            cached: The object from the cache; compared is what `newest` says of it.
            status: The fields that we own, as JSON.
            extra: Fields that are written with the others but do not cause a write, such as the time of it.

        Raises:
            ConflictError: The object has changed since, or is another one by now; look at it again.
            NotFoundError: It is no more.
            ApiError: The API server could not or would not.
        """
        observed = self.newest(cached)
        last, base_version = self._last(cached), cached.metadata.resource_version
        if last is not None and last.status == status and last.live.status == observed.status:
            return False  # found before; what else changes of an object changes nothing in that
        if observed.status.wire.given:  # else there is nothing yet
            held = self._fields(observed.status, status)
            if held == self._fields(decode(type(observed.status), status), status):
                self._records[cached.key] = _Record(base_version, status, observed)
                return False
            if last is not None and last.status == status and held == self._fields(last.live.status, status):
                return False  # asked for before, and the server keeps something else: asking again changes nothing
        answer = await self._client.apply(
            self._kind,
            self._manifest(observed, {**status, **extra}),
            field_manager=CONTROLLER_FIELD_MANAGER,
            subresource="status",
        )
        self._records[cached.key] = _Record(base_version, status, answer)
        if self._on_write is not None:
            self._on_write(observed, status)
        return True

    def is_own(self, obj: T) -> bool:
        """Whether an object is as our last reconcile has left it: no other program has written since."""
        last = self._last(obj)
        return last is not None and last.live.metadata.resource_version == obj.metadata.resource_version

    def forget(self, key: Key) -> None:
        """Drop the record of an object that is gone or no longer ours."""
        self._records.pop(key, None)

    def _last(self, cached: T) -> _Record[T] | None:
        """Return the record of this very object, not of a predecessor of the same name."""
        last = self._records.get(cached.key)
        return last if last is not None and last.live.metadata.uid == cached.metadata.uid else None

    def _manifest(self, observed: T, status: Mapping[str, Any]) -> dict[str, Any]:
        resource = self._kind.RESOURCE
        metadata = {
            "name": observed.key.name,
            "namespace": observed.key.namespace,
            "resourceVersion": observed.metadata.resource_version,
        }
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}

    @staticmethod
    def _fields(typed: _Status, requested: Mapping[str, Any]) -> _Fields:
        """Return the values of the fields that are asked for; of the conditions, those of the types that are."""
        kind: type = type(typed)
        fields = {slot.key: getattr(typed, slot.attribute) for slot in wire_fields(kind) if slot.key in requested}
        found = {condition.type: condition for condition in typed.conditions}
        return {**fields, "conditions": [found.get(condition["type"]) for condition in requested["conditions"]]}


@attrs.frozen(eq=False)
class PhaseChanges:
    """Where new phases are recorded."""

    recorder: EventRecorder
    durations: Durations
    utcnow: Callable[[], datetime.datetime]

    def emit(self, before: Model | InferenceService, status: Mapping[str, Any]) -> None:
        """Tell of a status that has just been written, if its phase is another one than before."""
        phase = status["phase"]
        if phase == before.status.phase:
            return
        [progressing] = [one for one in status["conditions"] if one["type"] == PROGRESSING]
        reason, message = progressing["reason"], progressing["message"]
        log.info("phase changed", kind=before.RESOURCE.kind, name=str(before.key), phase=phase, reason=reason)
        if phase == "Ready":
            self.durations.observe_ready(before, self.utcnow())
        if phase in EVENT_TYPES:
            self.recorder.emit_nowait(before, reason, message, type=EVENT_TYPES[phase])
