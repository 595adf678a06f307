"""Write a status only if it differs, and only at the version of the object that it was derived from.

A reconcile that our own write has triggered must have nothing to write.

A naive comparison would write again and again for two reasons. The cache lags behind our own write, so for a while it
has the object that was just replaced; and a server with an older schema may drop a field that we apply. The writer
therefore stores one record per object: the status that it applied, and the object at that time.

Every write has the resourceVersion of the object that the status was derived from. This is the only precondition that
kube-apiserver (1.36) checks in an apply: it ignores a wrong `metadata.uid`, so the status of a deleted object would be
written to a new one of the same name. A stale version is a ConflictError: a newer version exists, whose event triggers
a reconcile if it matters here. A retry with the old version would fail again.
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
from llmkube.k8s.crd.sharing import GPUQuota, GPUQuotaStatus, ModelPool, ModelPoolStatus
from llmkube.k8s.events import EventRecorder, EventType
from llmkube.k8s.fields import wire_fields
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import PROGRESSING
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER

log = structlog.get_logger()

T = TypeVar("T", Model, InferenceService, ModelRouter, GPUQuota, ModelPool)

PERMISSIONS: Final = tuple(
    Permission(kind, frozenset({"patch"}), subresource="status")
    for kind in (Model, InferenceService, ModelRouter, GPUQuota, ModelPool)
)

EVENT_TYPES: Final[Mapping[str, EventType]] = {"Ready": "Normal", "Failed": "Warning"}
"""Phases that emit an Event when they begin: users wait for one, and have to act on the other."""

_Fields = dict[str, Any]
_Status = ModelStatus | InferenceServiceStatus | ModelRouterStatus | GPUQuotaStatus | ModelPoolStatus


@attrs.frozen
class _Record(Generic[T]):
    """The last state of an object that matched the status to write.

    Attributes:
        base_version: Version of the cached object from which the status was derived.
        status: The status to write, as JSON.
        live: The object: the response to our write, or the cached object that was compared.
    """

    base_version: str
    status: Mapping[str, Any]
    live: T


@attrs.define(eq=False)
class StatusWriter(Generic[T]):
    """The only writer of one kind's status; `on_write` is called with the object before the write, and the status."""

    _client: Client
    _kind: type[T]
    _on_write: Callable[[T, Mapping[str, Any]], None] | None = None
    _records: dict[Key, _Record[T]] = attrs.field(factory=dict, init=False)

    def newest(self, cached: T) -> T:
        """Return the newest known version of an object: until the cache catches up, the response to our write."""
        last = self._last(cached)
        if last is not None and last.base_version == cached.metadata.resource_version:
            return last.live
        return cached

    async def write(
        self, cached: T, status: Mapping[str, Any], *, extra: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Apply a status unless the object has it already; return whether it was applied.

        Args:
            cached: The object from the cache; its `newest` version is compared.
            status: The fields that we own, as JSON.
            extra: Fields that are written with the others but cause no write by themselves, such as a timestamp.

        Raises:
            ConflictError: The object has changed in the meantime, or was recreated; reconcile it again.
            NotFoundError: The object is gone.
            ApiError: The request failed or was refused.
        """
        observed = self.newest(cached)
        last, base_version = self._last(cached), cached.metadata.resource_version
        if last is not None and last.status == status and last.live.status == observed.status:
            return False  # compared before, and the status has not changed since
        if observed.status.wire.given:  # otherwise it has no status yet
            held = self._fields(observed.status, status)
            if held == self._fields(decode(type(observed.status), status), status):
                self._records[cached.key] = _Record(base_version, status, observed)
                return False
            if last is not None and last.status == status and held == self._fields(last.live.status, status):
                return False  # applied before, and the server stored something else: applying it again changes nothing
        metadata = {
            "name": observed.key.name,
            "namespace": observed.key.namespace,
            "resourceVersion": observed.metadata.resource_version,
        }
        manifest = {"metadata": metadata, "status": {**status, **extra}}
        applied = await self._client.apply(
            self._kind, manifest, field_manager=CONTROLLER_FIELD_MANAGER, subresource="status"
        )
        self._records[cached.key] = _Record(base_version, status, applied)
        if self._on_write is not None:
            self._on_write(observed, status)
        return True

    def is_own(self, obj: T) -> bool:
        """Whether an object is unchanged since our last reconcile."""
        last = self._last(obj)
        return last is not None and last.live.metadata.resource_version == obj.metadata.resource_version

    def forget(self, key: Key) -> None:
        """Drop the record of an object that is gone or that we no longer reconcile."""
        self._records.pop(key, None)

    def _last(self, cached: T) -> _Record[T] | None:
        """Return the record of this object, but not that of a predecessor of the same name."""
        last = self._records.get(cached.key)
        return last if last is not None and last.live.metadata.uid == cached.metadata.uid else None

    @staticmethod
    def _fields(typed: _Status, requested: Mapping[str, Any]) -> _Fields:
        """Return the values of the requested fields, and the conditions of the requested types."""
        kind: type = type(typed)
        fields = {slot.key: getattr(typed, slot.attribute) for slot in wire_fields(kind) if slot.key in requested}
        found = {condition.type: condition for condition in typed.conditions}
        return {**fields, "conditions": [found.get(condition["type"]) for condition in requested["conditions"]]}


@attrs.frozen(eq=False)
class PhaseChanges:
    """Emit logs, Events and metrics for new phases."""

    recorder: EventRecorder
    durations: Durations
    utcnow: Callable[[], datetime.datetime]

    def emit(self, before: Model | InferenceService, status: Mapping[str, Any]) -> None:
        """Report a status that was just written if its phase has changed."""
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
