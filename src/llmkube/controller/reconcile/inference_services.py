"""A service is served by hosts or by pods; the status of what hosts serve follows from what they report."""

import datetime
from collections.abc import Callable

import attrs

from llmkube.controller.informers import Informers
from llmkube.controller.reconcile.pod_services import PodServices
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.host_part import HostPart, judge_host_part, unknown_host_part
from llmkube.controller.status.service_status import derive_service_status
from llmkube.controller.writes.status_writer import PhaseChanges, StatusWriter
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.host_monitor import HostMonitor
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
        if not self.informers.models.is_known:
            return  # its arrival wakes every service
        if self.in_pods is None:
            on_hosts = cached.on_hosts
            await self._reconcile_on_hosts(on_hosts, model if on_hosts is cached else self._model_of(on_hosts))
        else:
            await self._reconcile_where_it_belongs(cached, model, self.in_pods)

    async def _reconcile_where_it_belongs(
        self, cached: InferenceService, model: Model | None, in_pods: PodServices
    ) -> None:
        if not in_pods.is_known and (model is None or cached.spec.hosts is not None):
            return  # whether there are pods of it says where it belongs
        if cached.spec.hosts is not None:
            await in_pods.reconcile(cached, model, self._host_part(cached.on_hosts))
        elif self.settings.is_for_hosts(model) if model is not None else in_pods.is_empty(cached):
            await in_pods.retire(cached)
            await self._reconcile_on_hosts(cached, model)
        elif in_pods.is_known:
            await in_pods.reconcile(cached, model)

    @property
    def _hosts_are_known(self) -> bool:
        reports = (self.informers.slices.cache, self.informers.host_claims.cache, self.hosts.leases)
        return all(one.synced.is_set() for one in reports)

    def _model_of(self, service: InferenceService) -> Model | None:
        return self.informers.models.get(Key(service.key.namespace, service.spec.model_ref))

    def _host_part(self, service: InferenceService) -> HostPart:
        if not self._hosts_are_known:
            return unknown_host_part(service)
        slices, holders = self.informers.slices_of(service.key), self.informers.holders(service.key)
        live = self.hosts.tracker.hosts
        return judge_host_part(service, self._model_of(service), slices, live, holders=holders, settings=self.settings)

    async def _reconcile_on_hosts(self, cached: InferenceService, model: Model | None) -> None:
        if model is not None and not self.settings.is_for_hosts(model):
            self.writer.forget(cached.key)
            return
        if not self._hosts_are_known:
            return
        now, newest = self.utcnow(), self.writer.newest(cached).on_hosts
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
