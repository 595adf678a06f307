"""A Model is served by hosts or by pods; the status of what hosts serve follows from what they report."""

import datetime
from collections.abc import Callable

import attrs

from llmkube.controller.informers import Informers
from llmkube.controller.phase_changes import PhaseChanges
from llmkube.controller.reconcile.pod_models import PodModels, put_finalizer
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.model_status import derive_model_status
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.client import Client
from llmkube.k8s.crd.model import Model
from llmkube.k8s.host_monitor import HostMonitor
from llmkube.k8s.resource import Key


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
        if self.in_pods is not None and not self.settings.is_for_hosts(cached):
            await self.in_pods.reconcile(cached)
        elif self.in_pods is None or not await self.in_pods.release(cached):
            await self._reconcile_on_hosts(cached)

    async def _reconcile_on_hosts(self, cached: Model) -> None:
        key, is_deleted = cached.key, bool(cached.metadata.deletion_timestamp)
        if self.in_pods is None and is_deleted and not self.informers.services_by_model.keys(key):
            # Left by a controller that served it in pods: no other program takes it off.
            await put_finalizer(self.client, cached, held=False)
        if not self.settings.is_for_hosts(cached) or is_deleted:
            self.writer.forget(key)
            return
        newest = self.writer.newest(cached)
        status = derive_model_status(newest, self.hosts.tracker.hosts, now=self.utcnow())
        if await self.writer.write(cached, status):
            self.phase_changes.tell(newest, status)
