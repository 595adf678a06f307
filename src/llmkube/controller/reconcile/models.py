"""A Model is served by hosts or by pods; the status of what hosts serve follows from what they report."""

import datetime
from collections.abc import Callable
from typing import Final

import attrs

from llmkube.controller.informers import Informers
from llmkube.controller.reconcile.pod_models import PodModels
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.model_status import derive_model_status
from llmkube.controller.writes.status_writer import PhaseChanges, StatusWriter
from llmkube.k8s.client import Client
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER

FINALIZER: Final = "inference.llmkube.dev/in-use"
"""Kept Models that services refer to, in early versions. No program is there to take it off once LLMKube is removed, so
none puts it on any more, and what has it loses it: a Model that goes leaves the pods of its services as they are."""

PERMISSIONS: Final = (Permission(Model, frozenset({"patch"})),)  # the finalizer alone; else only its status is written


@attrs.frozen(eq=False)
class ModelReconciler:
    """Look after all Models; `in_pods` does it for those that no host serves, and is None where no pods are."""

    client: Client
    settings: ControllerSettings
    utcnow: Callable[[], datetime.datetime]
    informers: Informers
    hosts: HostMonitor
    writer: StatusWriter[Model]
    phase_changes: PhaseChanges
    in_pods: PodModels | None = None

    async def reconcile(self, key: Key) -> None:
        """Bring one Model in line."""
        cached = self.informers.models.get(key)
        if cached is None:
            self.writer.forget(key)
            return
        if self.informers.models.is_unreadable(key):
            return  # nothing can be written over its newest state from an older one
        if FINALIZER in cached.metadata.finalizers:
            await self._free(cached)  # the answer wakes it again
        elif self.in_pods is not None and not self.settings.is_for_hosts(cached):
            if self.in_pods.is_known:
                await self.in_pods.reconcile(cached)
        else:
            if self.in_pods is not None:
                await self.in_pods.release(cached)
            await self._reconcile_on_hosts(cached)

    async def _free(self, model: Model) -> None:
        kept = [name for name in model.metadata.finalizers if name != FINALIZER]
        patch = {"metadata": {"resourceVersion": model.metadata.resource_version, "finalizers": kept}}
        await self.client.patch(Model, model.key, patch, field_manager=CONTROLLER_FIELD_MANAGER)

    async def _reconcile_on_hosts(self, cached: Model) -> None:
        if not self.settings.is_for_hosts(cached) or cached.metadata.deletion_timestamp:
            self.writer.forget(cached.key)
            return
        if not self.hosts.leases.synced.is_set():
            return  # its arrival wakes every Model
        newest = self.writer.newest(cached)
        status = derive_model_status(newest, self.hosts.tracker.hosts, now=self.utcnow())
        if await self.writer.write(cached, status):
            self.phase_changes.tell(newest, status)
