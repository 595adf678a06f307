"""A service is served by hosts or by pods; the status of what hosts serve follows from what they report."""

import datetime
from collections.abc import Callable

import attrs

from llmkube.controller.informers import Informers
from llmkube.controller.phase_changes import PhaseChanges
from llmkube.controller.reconcile.pod_services import PodServices
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.service_status import derive_service_status
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.host_monitor import HostMonitor
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import timestamp


@attrs.frozen(eq=False)
class ServiceReconciler:
    """Look after all services; `in_pods` does it for those that no host serves, and is None where no pods are."""

    settings: ControllerSettings
    utcnow: Callable[[], datetime.datetime]
    informers: Informers
    hosts: HostMonitor
    writer: StatusWriter[InferenceService]
    phase_changes: PhaseChanges
    in_pods: PodServices | None = None

    async def reconcile(self, key: Key) -> None:
        """Bring one service in line."""
        cached = self.informers.services.get(key)
        if cached is None or cached.metadata.deletion_timestamp:
            self.writer.forget(key)
            if self.in_pods is not None:
                self.in_pods.forget(key)
            return
        if self.informers.services.is_unreadable(key):
            return  # nothing can be written over its newest state from an older one
        model_key = Key(key.namespace, cached.spec.model_ref)
        model = self.informers.models.get(model_key)
        if model is None and self.informers.models.is_unreadable(model_key):
            return  # there is a Model, but this version cannot read it: that is not the same as none
        if self.in_pods is None:
            await self._reconcile_on_hosts(cached, model)
        elif self.settings.is_for_hosts(model) if model is not None else self.in_pods.is_empty(cached):
            await self.in_pods.retire(cached)
            await self._reconcile_on_hosts(cached, model)
        else:
            await self.in_pods.reconcile(cached, model)

    async def _reconcile_on_hosts(self, cached: InferenceService, model: Model | None) -> None:
        if model is not None and not self.settings.is_for_hosts(model):
            self.writer.forget(cached.key)
            return
        now, newest = self.utcnow(), self.writer.newest(cached)
        status = derive_service_status(
            newest,
            model,
            self.informers.slices_of(cached.key),
            self.hosts.tracker.hosts,
            self.settings,
            holders=self.informers.holders(cached.key),
            now=now,
        )
        if await self.writer.write(cached, status, along={"lastUpdated": timestamp(now)}):
            self.phase_changes.tell(newest, status)
