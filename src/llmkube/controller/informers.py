"""What the controller knows: one informer per kind, and who refers to whom.

```
 Model ◀─modelRef─ InferenceService ◀─label─ EndpointSlice (of a host)
   ▲                       ▲   ▲    ◀─annotation─ Lease (a host's claim)
   │ owner                 │   └─label─ Pod (of a Deployment)
  Job ◀─label─ Pod         └─owner─ Deployment, Service, autoscaler, budget, PodMonitor, objective, HTTPRoute
```
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import attrs
import trio

from llmkube.controller.indexer import Index
from llmkube.controller.informer import Informer
from llmkube.controller.render.labels import OURS
from llmkube.k8s.builtins import EndpointSlice, Lease, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.rbac import APPLY, FOLLOW, Permission
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.names import (
    AGENT_MANAGER,
    CLAIM_LABEL,
    CLAIMED_ANNOTATION,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    label_value,
)
from llmkube.k8s.wire.owners import controller_key, is_controlled_by
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    HTTPRoute,
    Job,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    PodMonitor,
    ServiceLevelObjective,
)

JOB_LABEL: Final = "batch.kubernetes.io/job-name"
"""Label that the Job controller puts on its pods."""

AGENTS: Final = f"{MANAGED_BY_LABEL}={AGENT_MANAGER}"
"""Label selector of what agents have published."""

OPTIONAL_KINDS: Final = (PodMonitor, ServiceLevelObjective, HTTPRoute)
"""Kinds that a Prometheus operator, Pyrra and the Gateway API bring."""

PERMISSIONS: Final = (
    *(Permission(kind, FOLLOW | {"get"}) for kind in (Model, InferenceService)),
    # The endpoints of a host that is gone are taken out of service; nothing else in them is ever written.
    Permission(EndpointSlice, FOLLOW | {"patch"}),
    *(
        Permission(kind, FOLLOW | APPLY | {"get", "delete"})
        for kind in (Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget, Job, *OPTIONAL_KINDS)
    ),
    Permission(Pod, FOLLOW),
    Permission(PersistentVolumeClaim, FOLLOW),  # those for weights, by our label
)

Label = tuple[str, str]  # a namespace, and a value of SERVICE_LABEL in it


def _of(kind: type[Any], label_selector: str = "") -> Any:
    """A field that holds the informer of a kind."""
    return attrs.field(factory=partial(Informer, kind, label_selector), init=False)


@attrs.define(eq=False)
class Informers:
    """The objects that users write, and what hosts say about them."""

    models: Informer[Model] = _of(Model)
    services: Informer[InferenceService] = _of(InferenceService)
    routers: Informer[ModelRouter] = _of(ModelRouter)
    slices: Informer[EndpointSlice] = _of(EndpointSlice, AGENTS)
    host_claims: Informer[Lease] = _of(Lease, CLAIM_LABEL)
    services_by_model: Index[InferenceService, Key] = attrs.field(init=False)
    services_by_label: Index[InferenceService, Label] = attrs.field(init=False)
    slices_by_label: Index[EndpointSlice, Label] = attrs.field(init=False)
    host_claims_by_service: Index[Lease, Key] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.services_by_model = self.services.add_index(models_of)
        self.services_by_label = self.services.add_index(lambda service: (label_of(service.key),))
        self.slices_by_label = self.slices.add_index(_service_label)
        self.host_claims_by_service = self.host_claims.add_index(claimed_service)

    def users(self, model: Key) -> list[InferenceService]:
        """Return the services that refer to a Model, in the order of their names."""
        keys = sorted(self.services_by_model.keys(model), key=_by_name)
        return [service for key in keys if (service := self.services.get(key)) is not None]

    def slices_of(self, service: Key) -> list[EndpointSlice]:
        """Return what hosts have published of a service."""
        keys = sorted(self.slices_by_label.keys(label_of(service)))
        return [piece for key in keys if (piece := self.slices.get(key)) is not None]

    def holders(self, service: Key) -> tuple[str, ...]:
        """Return the hosts that claim a replica of a service, alive or not."""
        held = [self.host_claims.get(key) for key in self.host_claims_by_service.keys(service)]
        return tuple(sorted({claim.spec.holder_identity for claim in held if claim and claim.spec.holder_identity}))

    @property
    def synced(self) -> tuple[trio.Event, ...]:
        """Set when every collection is known that a decision needs."""
        return tuple(one.cache.synced for one in (self.models, self.services, self.slices, self.host_claims))


@attrs.define(eq=False)
class PodInformers:
    """Pods, what makes them, and what the controller makes for them."""

    pods: Informer[Pod] = _of(Pod, OURS)
    volume_claims: Informer[PersistentVolumeClaim] = _of(PersistentVolumeClaim, OURS)
    jobs: Informer[Job] = _of(Job, OURS)
    deployments: Informer[Deployment] = _of(Deployment, OURS)
    kubernetes_services: Informer[Service] = _of(Service, OURS)
    autoscalers: Informer[HorizontalPodAutoscaler] = _of(HorizontalPodAutoscaler, OURS)
    budgets: Informer[PodDisruptionBudget] = _of(PodDisruptionBudget, OURS)
    monitors: Informer[PodMonitor] = _of(PodMonitor, OURS)
    objectives: Informer[ServiceLevelObjective] = _of(ServiceLevelObjective, OURS)
    routes: Informer[HTTPRoute] = _of(HTTPRoute, OURS)
    pods_by_service: Index[Pod, Label] = attrs.field(init=False)
    pods_by_job: Index[Pod, Key] = attrs.field(init=False)
    jobs_by_model: Index[Job, Key] = attrs.field(init=False)
    objectives_by_service: Index[ServiceLevelObjective, Key] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pods_by_service = self.pods.add_index(_service_label)
        self.pods_by_job = self.pods.add_index(_job_label)
        self.jobs_by_model = self.jobs.add_index(owning_model)
        self.objectives_by_service = self.objectives.add_index(owning_service)

    def pods_of_service(self, service: Key) -> tuple[Pod, ...]:
        """Return the pods of a service, in the order of their names."""
        return self._pods(self.pods_by_service.keys(label_of(service)))

    def pods_of_job(self, job: Job | None) -> tuple[Pod, ...]:
        """Return the pods that a Job has made: not those of an earlier one of its name, or with its label only."""
        if job is None:
            return ()
        return tuple(
            pod for pod in self._pods(self.pods_by_job.keys(job.key)) if is_controlled_by(pod, job.metadata.uid)
        )

    def has_running_pod(self, service: Key) -> bool:
        """Whether a pod of a service runs."""
        pods = self.pods_of_service(service)
        return any(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in pods)

    @property
    def synced(self) -> tuple[trio.Event, ...]:
        """Set when every collection is known that every cluster has."""
        everywhere: tuple[Informer[Any], ...] = (
            self.pods, self.volume_claims, self.jobs, self.deployments, self.kubernetes_services, self.autoscalers,
            self.budgets,
        )  # fmt: skip
        return tuple(one.cache.synced for one in everywhere)

    def _pods(self, keys: Iterable[Key]) -> tuple[Pod, ...]:
        return tuple(pod for key in sorted(keys) if (pod := self.pods.get(key)) is not None)


def drafts_of(service: InferenceService) -> tuple[str, ...]:
    """Return the names of the Models that a service refers to besides its own."""
    speculation = service.spec.speculative_decoding
    return (speculation.draft_model_ref,) if speculation is not None and speculation.draft_model_ref else ()


def models_of(service: InferenceService) -> list[Key]:
    """Return the Models that a service refers to, its own first."""
    return [Key(service.key.namespace, name) for name in (service.spec.model_ref, *drafts_of(service))]


def label_of(service: Key) -> Label:
    """Return what the labels of a service's objects say; of two long names it may be the same."""
    return service.namespace, label_value(service.name)


def owning_model(obj: Object) -> list[Key]:
    """Return the Model that an object was made for, if any."""
    owner = controller_key(obj, Model.RESOURCE.kind)
    return [owner] if owner is not None else []


def owning_service(obj: Object) -> list[Key]:
    """Return the service that an object was made for, if any."""
    owner = controller_key(obj, InferenceService.RESOURCE.kind)
    return [owner] if owner is not None else []


def claimed_service(claim: Lease) -> list[Key]:
    """Return the service that a host claims; whatever may write Leases may write nonsense, which claims nothing."""
    try:
        return [Key.parse(claim.metadata.annotations.get(CLAIMED_ANNOTATION, ""))]
    except ValueError:
        return []


def _service_label(obj: Object) -> list[Label]:
    label = obj.metadata.labels.get(SERVICE_LABEL)
    return [(obj.metadata.namespace, label)] if label else []


def _job_label(pod: Pod) -> list[Key]:
    label = pod.metadata.labels.get(JOB_LABEL)
    return [Key(pod.metadata.namespace, label)] if label else []


def _by_name(key: Key) -> str:
    return key.name  # all of one namespace; a Key's own order is slower to find out
