"""Event handlers of the informers: they enqueue what has to be reconciled after a change, and never block.

| changed | reconciled |
|---|---|
| a Model | it, and the services that refer to it |
| an InferenceService | it, and the Models that it refers to or has referred to |
| an EndpointSlice, a claim (Lease) of a host | it (the slice), and the service that it names |
| a ModelPool | it, and its members |
| an InferenceService | the pools of which it is a member |
| a GPUQuota, the labels of a namespace | the quotas, and the services whose permission to use GPUs changes |
| the set of live hosts | everything |
| the Lease of the front doors of a namespace | the services that it names, or has named |
| the EndpointSlices of a front door | all services |
| an EndpointSlice of the pods of a service | the service |
| a Deployment, Service, autoscaler, budget, PodMonitor, objective, HTTPRoute | the service that owns it |
| an InferenceService, its slices | the routers that send requests to it |
| a ConfigMap, Deployment, Service, NetworkPolicy, budget, pod of a router | the router |
| a Job, its pods | the Model that owns it |
| a pod of a service | the service, and its Models whose header is read once such a pod is running |
| a PersistentVolumeClaim for weights | the service that owns it, else the Models of its namespace |
"""

import enum
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.controller.informers import claimed_service, models_of, owners_of
from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.status.job_result import is_inspected
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.k8s.builtins import EndpointSlice, Lease, Namespace
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.informer import Event
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import QUEUE_LABEL
from llmkube.k8s.workloads import Job, PersistentVolumeClaim, Pod

USERS_SETTLE_SECONDS: Final = 0.2
"""Delay of the next count of a Model's users, so that a thousand new services cause a few counts."""

SECONDS_PER_USER: Final = 0.001
"""Added to that delay for each user: a count takes 10 µs per user, so counting stays below 1 % of the CPU time."""

HOST_STARTS_SECONDS: Final = 0.05
"""Delay of a new service without pods: meanwhile an agent in this process starts the engine and writes the status."""

log = structlog.get_logger()


class Change(enum.IntEnum):
    """Extent of a change: nothing that matters here, the state only, or the spec."""

    NONE = 0
    STATE = 1  # status, finalizers, a requested deletion
    SPEC = 2  # created, gone, another spec, or another object of the same name


def change_of(event: Event[Model] | Event[InferenceService]) -> Change:
    """Return the extent of a change.

    An object that becomes unreadable changes its state: the cache keeps an older version, and no reconcile touches it.
    The first readable version after that is a change of the spec.
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
    meta = obj.metadata
    return obj.status, meta.deletion_timestamp, meta.finalizers, meta.labels.get(QUEUE_LABEL)


@attrs.frozen(eq=False)
class EventHandlers:
    """Handlers for objects that users write and for reports of hosts."""

    context: Context

    def on_model(self, event: Event[Model]) -> None:
        """Reconcile a Model after any change: users' volume claims are not watched, but an edit has them read again."""
        self.context.queues.models.add_nowait(event.key)
        if change_of(event):
            for service in self.context.informers.services_by_model.keys(event.key):
                self.context.queues.services.add_nowait(service)
                self._enqueue_routers(service)

    def on_service(self, event: Event[InferenceService]) -> None:
        """Reconcile a service, unless the change is our own status write or is in nothing that a reconcile reads."""
        change = change_of(event)
        self.context.queues.pools.add_all(self.context.informers.pools_by_service.keys(event.key))
        if not change and not self.context.queues.services.is_failing(event.key):
            return  # a failing service is retried after any change: it may be the one that helps
        if change is Change.SPEC or (event.now is not None and event.now.spec.adapters):  # its engine has them, or not
            self._enqueue_routers(event.key)
        if change is Change.SPEC:
            for model in self.context.informers.services_by_model.values(event):
                # The users of a Model decide how its weights are supplied.
                users = self.context.informers.services_by_model.count(model)
                self.context.queues.models.add_after(model, USERS_SETTLE_SECONDS + users * SECONDS_PER_USER)
        if event.before is None and self.context.settings.workloads is None:
            self.context.queues.services.add_after(event.key, HOST_STARTS_SECONDS)
        elif event.now is None or not self.context.services.is_own(event.now):  # a reconcile writes the status last
            self.context.queues.services.add_nowait(event.key)

    def on_router(self, event: Event[ModelRouter]) -> None:
        """Reconcile a router."""
        self.context.queues.routers.add_nowait(event.key)

    def on_pool(self, event: Event[ModelPool]) -> None:
        """Reconcile a pool and its members, unless the change is our own status write."""
        if event.now is None or not self.context.pool_statuses.is_own(event.now):
            self.context.queues.pools.add_nowait(event.key)
            self.context.queues.services.add_all(self.context.informers.pools_by_service.values(event))

    def on_quota(self, event: Event[GPUQuota]) -> None:
        """Reconcile a quota, unless the change is our own status write."""
        if event.now is None or not self.context.quotas.is_own(event.now):
            self.context.queues.quotas.add_nowait(event.key)

    def on_slice(self, event: Event[EndpointSlice]) -> None:
        """Reconcile a slice, and the service whose endpoints it lists."""
        self.context.queues.slices.add_nowait(event.key)
        for label in self.context.informers.slices_by_label.values(event):
            for service in self.context.informers.services_by_label.keys(label):
                self.context.queues.services.add_nowait(service)
                self._enqueue_routers(service)

    def on_host_claim(self, event: Event[Lease]) -> None:
        """Reconcile the service that a host claims, or has claimed."""
        if event.now is not None and not claimed_service(event.now):
            log.warning("claim ignored: no service named", lease=str(event.key))
        self.context.queues.services.add_all(self.context.informers.host_claims_by_service.values(event))

    def _enqueue_routers(self, service: Key) -> None:
        self.context.queues.routers.add_all(self.context.informers.routers_by_service.keys(service))


@attrs.frozen(eq=False)
class PodEventHandlers:
    """Handlers for pods and the objects around them."""

    context: PodContext

    def on_owned(self, writer: OwnedObjects[Any], event: Event[Any]) -> None:
        """Reconcile the service or router that owns an object, unless the change is our own write."""
        if event.now is not None and writer.is_own(event.now):
            return
        self._enqueue_services_of(event)
        self.context.queues.routers.add_all(owners_of(ModelRouter, event.before, event.now))

    def on_namespace(self, event: Event[Namespace]) -> None:
        """Reconcile all quotas after a change of the labels that their selectors match."""
        labels = [one.metadata.labels if one is not None else None for one in (event.before, event.now)]
        if labels[0] != labels[1]:
            self.context.enqueue_quotas()

    def on_job(self, event: Event[Job]) -> None:
        """Reconcile the Model of a Job."""
        self.context.queues.models.add_all(self.context.pods.jobs_by_model.values(event))

    def on_gateway_lease(self, event: Event[Lease]) -> None:
        """Reconcile the services that front doors need, or need no longer."""
        wanted = self.context.wanted.observe(event.key, event.now, trio.current_time())
        self.context.queues.services.add_all(wanted)

    def on_endpoints(self, event: Event[EndpointSlice]) -> None:
        """Reconcile the service of a slice of Kubernetes or of ours, unless the change is our own write."""
        self.on_owned(self.context.owned.endpoints, event)
        for label in self.context.pods.endpoints_by_service.values(event):
            self.context.queues.services.add_all(self.context.informers.services_by_label.keys(label))

    def on_volume_claim(self, event: Event[PersistentVolumeClaim]) -> None:
        """Reconcile the service that owns a volume claim for weights, or else the Models of the claim's namespace."""
        if owners_of(InferenceService, event.before, event.now):
            self._enqueue_services_of(event)
            return
        for model in self.context.informers.models.values():
            if model.key.namespace == event.key.namespace:
                self.context.queues.models.add_nowait(model.key)

    def on_pod(self, event: Event[Pod]) -> None:
        """Reconcile the service or router of a pod, or the Model whose Job created it."""
        for label in self.context.pods.pods_by_service.values(event):
            for service in self.context.informers.services_by_label.keys(label):
                self.context.queues.services.add_nowait(service)
                self._enqueue_uninspected(service)
        for job_key in self.context.pods.pods_by_job.values(event):
            self.context.queues.models.add_all(owners_of(Model, self.context.pods.jobs.get(job_key)))
        for label in self.context.pods.pods_by_router.values(event):
            self.context.queues.routers.add_all(self.context.informers.routers_by_label.keys(label))

    def _enqueue_services_of(self, event: Event[Any]) -> None:
        self.context.queues.services.add_all(owners_of(InferenceService, event.before, event.now))

    def _enqueue_uninspected(self, key: Key) -> None:
        """Reconcile the Models of a service whose header can be read now that a pod is running."""
        service = self.context.informers.services.get(key)
        for model_key in models_of(service) if service is not None else ():
            model = self.context.informers.models.get(model_key)
            if model is not None and model.status.gguf is None and is_inspected(model):
                self.context.queues.models.add_nowait(model.key)
