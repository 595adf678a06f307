"""The controller's informers: one per kind, with indexes for references between objects.

```
 Model ◀─modelRef─ InferenceService ◀─label─ EndpointSlice (of a host)
   ▲                       ▲   ▲    ◀─annotation─ Lease (a host's claim)
   │ owner                 │   └─label─ Pod (of a Deployment)
  Job ◀─label─ Pod         └─owner─ Deployment, Service, autoscaler, budget, PodMonitor, objective, HTTPRoute

 InferenceService ◀─backend─ ModelRouter ◀─owner─ ConfigMap, Deployment, Service, NetworkPolicy, budget
                                         ◀─label─ Pod
```
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from llmkube.controller.health import FETCHES_WAIT, HOSTS_WAIT, NOTHING_WORKS, PODS_WAIT, ROUTERS_WAIT, WatchedKind
from llmkube.controller.render.labels import OURS, ROUTER_LABEL
from llmkube.k8s.builtins import ConfigMap, EndpointSlice, Lease, Namespace, PriorityClass, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.informer import Index, Informer
from llmkube.k8s.leases.wanted_services import GATEWAY_LABEL
from llmkube.k8s.rbac import APPLY, LIST_AND_WATCH, Permission
from llmkube.k8s.resource import Key, Object, controller_key, is_controlled_by
from llmkube.k8s.wire.names import (
    AGENT_MANAGER,
    CLAIM_LABEL,
    CLAIMED_ANNOTATION,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    label_value,
)
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    HTTPRoute,
    Job,
    LeaderWorkerSet,
    NetworkPolicy,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    PodMonitor,
    ServiceLevelObjective,
)

JOB_LABEL: Final = "batch.kubernetes.io/job-name"
"""Label that the Job controller puts on its pods."""

AGENTS: Final = f"{MANAGED_BY_LABEL}={AGENT_MANAGER}"
"""Label selector of objects that agents publish."""

FRONT_DOOR_LABEL: Final = "inference.llmkube.dev/endpoints-at-zero"
"""Label on the Service of a front door whose pods are the endpoints of services at zero; Kubernetes copies it to the
EndpointSlices of the Service."""

OPTIONAL_KINDS: Final = (LeaderWorkerSet, PodMonitor, ServiceLevelObjective, HTTPRoute)
"""Kinds of LeaderWorkerSet, the Prometheus operator, Pyrra and the Gateway API, which a cluster may lack."""

PERMISSIONS: Final = (
    *(Permission(kind, LIST_AND_WATCH | {"get"}) for kind in (Model, InferenceService)),
    # Slices of the front door's pods, for services at zero. Of a host that is gone, endpoints are marked not ready.
    *(
        Permission(kind, LIST_AND_WATCH | APPLY | {"get", "delete"})
        for kind in (
            *(Deployment, Service, EndpointSlice, HorizontalPodAutoscaler, PodDisruptionBudget, Job),
            *OPTIONAL_KINDS,
        )
    ),
    Permission(EndpointSlice, LIST_AND_WATCH, "system"),  # of the front door
    # Objects of routers; the garbage collector deletes them.
    *(Permission(kind, LIST_AND_WATCH | APPLY | {"get"}) for kind in (ConfigMap, NetworkPolicy)),
    Permission(Pod, LIST_AND_WATCH),
    Permission(Lease, LIST_AND_WATCH),  # of front doors, with their label
    Permission(PersistentVolumeClaim, LIST_AND_WATCH),  # for weights, with our label
    *(Permission(kind, LIST_AND_WATCH) for kind in (GPUQuota, ModelPool)),
    Permission(Namespace, LIST_AND_WATCH),  # for the selectors of GPUQuotas
    Permission(PriorityClass, LIST_AND_WATCH),  # unless --priority-class-prefix is given
)

FRONT_DOOR_LEAVES: Final = "the endpoints of services at zero are not updated"

Label = tuple[str, str]  # a namespace, and a value of SERVICE_LABEL in it


def drafts_of(service: InferenceService) -> tuple[str, ...]:
    """Return the names of the Models that a service refers to besides its own."""
    speculation = service.spec.speculative_decoding
    return (speculation.draft_model_ref,) if speculation is not None and speculation.draft_model_ref else ()


def models_of(service: InferenceService) -> list[Key]:
    """Return the Models that a service refers to: its own first, then the draft and the hosts' Model."""
    part = service.spec.hosts
    for_hosts = [Key(service.key.namespace, part.model_ref)] if part is not None else []
    return [*_models_of_pods(service), *for_hosts]


def _models_of_pods(service: InferenceService) -> list[Key]:
    return [Key(service.key.namespace, name) for name in (service.spec.model_ref, *drafts_of(service))]


def label_of(service: Key) -> Label:
    """Return the label of the objects of a service or router; two long names may share one."""
    return service.namespace, label_value(service.name)


def owners_of(kind: type[Object], *objects: Object | None) -> list[Key]:
    """Return the controllers of these objects that are of a kind, each once; None is skipped."""
    there = (obj for obj in objects if obj is not None)
    return list(dict.fromkeys(key for obj in there if (key := controller_key(obj, kind.RESOURCE.kind)) is not None))


def services_of(router: ModelRouter) -> list[Key]:
    """Return the services that a router sends requests to."""
    named = (one.inference_service_ref for one in router.spec.backends)
    return [Key(router.key.namespace, reference.name) for reference in named if reference is not None]


def claimed_service(claim: Lease) -> list[Key]:
    """Return the service that a host claims; an annotation that is no key claims nothing."""
    try:
        return [Key.parse(claim.metadata.annotations.get(CLAIMED_ANNOTATION, ""))]
    except ValueError:
        return []


def _labelled(name: str) -> Callable[[Object], list[Label]]:
    def labels_of(obj: Object) -> list[Label]:
        label = obj.metadata.labels.get(name)
        return [(obj.metadata.namespace, label)] if label else []

    return labels_of


def _job_label(pod: Pod) -> list[Key]:
    label = pod.metadata.labels.get(JOB_LABEL)
    return [Key(pod.metadata.namespace, label)] if label else []


def _informer(kind: type[Any], label_selector: str = "") -> Any:
    """Return an attrs field that holds the informer of a kind."""
    return attrs.field(factory=partial(Informer, kind, label_selector), init=False)


def _index(informer: str, values_of: Callable[[Any], Any]) -> Any:
    """Return an attrs field that holds an index of the informer in another field."""
    make = attrs.Factory(lambda self: getattr(self, informer).add_index(values_of), takes_self=True)
    return attrs.field(default=make, init=False)


@attrs.define(eq=False)
class Informers:
    """Objects that users write, and what hosts report about them."""

    models: Informer[Model] = _informer(Model)
    services: Informer[InferenceService] = _informer(InferenceService)
    routers: Informer[ModelRouter] = _informer(ModelRouter)
    quotas: Informer[GPUQuota] = _informer(GPUQuota)
    pools: Informer[ModelPool] = _informer(ModelPool)
    slices: Informer[EndpointSlice] = _informer(EndpointSlice, AGENTS)
    host_claims: Informer[Lease] = _informer(Lease, CLAIM_LABEL)
    services_by_model: Index[InferenceService, Key] = _index("services", models_of)
    services_by_label: Index[InferenceService, Label] = _index("services", lambda service: (label_of(service.key),))
    slices_by_label: Index[EndpointSlice, Label] = _index("slices", _labelled(SERVICE_LABEL))
    host_claims_by_service: Index[Lease, Key] = _index("host_claims", claimed_service)
    routers_by_service: Index[ModelRouter, Key] = _index("routers", services_of)
    pools_by_service: Index[ModelPool, Key] = _index("pools", lambda pool: pool.member_keys)
    routers_by_label: Index[ModelRouter, Label] = _index("routers", lambda router: (label_of(router.key),))

    def users(self, model: Key) -> list[InferenceService]:
        """Return the services whose pods need a Model, sorted by name."""
        keys = sorted(self.services_by_model.keys(model), key=_by_name)
        services = (service for key in keys if (service := self.services.get(key)) is not None)
        return [service for service in services if model in _models_of_pods(service)]

    def slices_of(self, service: Key) -> tuple[EndpointSlice, ...]:
        """Return the EndpointSlices that hosts have published for a service."""
        return self.slices.pick(self.slices_by_label.keys(label_of(service)))

    def holders(self, service: Key) -> tuple[str, ...]:
        """Return the hosts that claim a replica of a service, alive or not."""
        held = self.host_claims.pick(self.host_claims_by_service.keys(service))
        return tuple(sorted({claim.spec.holder_identity for claim in held if claim.spec.holder_identity}))

    @property
    def watched_kinds(self) -> tuple[WatchedKind, ...]:
        """Kinds that have to be listed before objects that depend on them are reconciled."""
        return (
            WatchedKind("Models", NOTHING_WORKS, self.models.cache),
            WatchedKind("InferenceServices", NOTHING_WORKS, self.services.cache),
            WatchedKind("EndpointSlices of hosts", HOSTS_WAIT, self.slices.cache),
            WatchedKind("Leases by which hosts claim services", HOSTS_WAIT, self.host_claims.cache),
            WatchedKind("ModelRouters", "their status is not updated", self.routers.cache),
            WatchedKind("GPUQuotas", f"{PODS_WAIT}, unless there is no such kind", self.quotas.cache),
            WatchedKind("ModelPools", f"{PODS_WAIT}, unless there is no such kind", self.pools.cache),
        )


@attrs.define(eq=False)
class PodInformers:
    """Pods, their owners, and the other objects that the controller creates."""

    pods: Informer[Pod] = _informer(Pod, OURS)
    volume_claims: Informer[PersistentVolumeClaim] = _informer(PersistentVolumeClaim, OURS)
    jobs: Informer[Job] = _informer(Job, OURS)
    deployments: Informer[Deployment] = _informer(Deployment, OURS)
    kubernetes_services: Informer[Service] = _informer(Service, OURS)
    autoscalers: Informer[HorizontalPodAutoscaler] = _informer(HorizontalPodAutoscaler, OURS)
    budgets: Informer[PodDisruptionBudget] = _informer(PodDisruptionBudget, OURS)
    namespaces: Informer[Namespace] = _informer(Namespace)
    priority_classes: Informer[PriorityClass] = _informer(PriorityClass)
    groups: Informer[LeaderWorkerSet] = _informer(LeaderWorkerSet, OURS)
    monitors: Informer[PodMonitor] = _informer(PodMonitor, OURS)
    objectives: Informer[ServiceLevelObjective] = _informer(ServiceLevelObjective, OURS)
    config_maps: Informer[ConfigMap] = _informer(ConfigMap, OURS)
    network_policies: Informer[NetworkPolicy] = _informer(NetworkPolicy, OURS)
    routes: Informer[HTTPRoute] = _informer(HTTPRoute, OURS)
    gateway_leases: Informer[Lease] = _informer(Lease, GATEWAY_LABEL)
    endpoints: Informer[EndpointSlice] = _informer(EndpointSlice, OURS)  # Kubernetes copies the labels of a Service
    front_doors: Informer[EndpointSlice] = _informer(EndpointSlice, FRONT_DOOR_LABEL)
    endpoints_by_service: Index[EndpointSlice, Label] = _index("endpoints", _labelled(SERVICE_LABEL))
    pods_by_service: Index[Pod, Label] = _index("pods", _labelled(SERVICE_LABEL))
    pods_by_job: Index[Pod, Key] = _index("pods", _job_label)
    pods_by_router: Index[Pod, Label] = _index("pods", _labelled(ROUTER_LABEL))
    jobs_by_model: Index[Job, Key] = _index("jobs", partial(owners_of, Model))
    objectives_by_service: Index[ServiceLevelObjective, Key] = _index(
        "objectives", partial(owners_of, InferenceService)
    )

    def pods_of_service(self, service: Key) -> tuple[Pod, ...]:
        """Return the pods of a service, sorted by name."""
        return self.pods.pick(self.pods_by_service.keys(label_of(service)))

    def has_ready_endpoint(self, service: Key) -> bool:
        """Return whether a pod of a service gets the requests at its Service."""
        slices = self.endpoints.pick(self.endpoints_by_service.keys(label_of(service)))
        return any(endpoint.conditions.ready is not False for each in slices for endpoint in each.endpoints)

    def pods_of_job(self, job: Job | None) -> tuple[Pod, ...]:
        """Return the pods that a Job owns: not of an earlier Job of that name, nor those that only have its label."""
        if job is None:
            return ()
        pods = self.pods.pick(self.pods_by_job.keys(job.key))
        return tuple(pod for pod in pods if is_controlled_by(pod, job.metadata.uid))

    def pods_of_router(self, router: Key) -> tuple[Pod, ...]:
        """Return the pods of a router, sorted by name."""
        return self.pods.pick(self.pods_by_router.keys(label_of(router)))

    @property
    def watched_kinds(self) -> tuple[WatchedKind, ...]:
        """Watched kinds that every cluster serves."""
        return (
            WatchedKind("Pods", f"{PODS_WAIT}, and {FETCHES_WAIT}", self.pods.cache),
            WatchedKind("Deployments", PODS_WAIT, self.deployments.cache),
            WatchedKind("Services", PODS_WAIT, self.kubernetes_services.cache),
            WatchedKind("Jobs", FETCHES_WAIT, self.jobs.cache),
            WatchedKind("PersistentVolumeClaims", FETCHES_WAIT, self.volume_claims.cache),
            WatchedKind("HorizontalPodAutoscalers", "spec.autoscaling has no effect", self.autoscalers.cache),
            WatchedKind("PodDisruptionBudgets", "spec.disruption has no effect", self.budgets.cache),
            WatchedKind("Leases of front doors", "pods do not follow requests", self.gateway_leases.cache),
            WatchedKind("EndpointSlices of services in pods", FRONT_DOOR_LEAVES, self.endpoints.cache),
            WatchedKind("EndpointSlices of front doors", FRONT_DOOR_LEAVES, self.front_doors.cache),
            WatchedKind("ConfigMaps of routers", ROUTERS_WAIT, self.config_maps.cache),
            WatchedKind("NetworkPolicies of routers", ROUTERS_WAIT, self.network_policies.cache),
        )

    @property
    def can_make_services(self) -> bool:
        """Whether all kinds have been listed that a service in pods needs."""
        return all(one.is_known for one in (self.pods, self.deployments, self.kubernetes_services))

    @property
    def can_make_routers(self) -> bool:
        """Whether all kinds have been listed that a router in pods needs."""
        needed = (self.pods, self.deployments, self.kubernetes_services, self.config_maps, self.network_policies)
        return all(one.is_known for one in needed)

    @property
    def can_make_models(self) -> bool:
        """Whether all kinds have been listed that decide how weights reach pods."""
        return all(one.is_known for one in (self.pods, self.jobs, self.volume_claims))


def _by_name(key: Key) -> str:
    return key.name  # all are of one namespace, and comparing Keys is slower
