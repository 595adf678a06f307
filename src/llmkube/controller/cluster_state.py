"""What the controller knows of a cluster with pods, how it hangs together, and what a change wakes.

```
 Model ──▶ who brings the weights? ──▶ claim, Job ─────────────────────────────────┐
 (fetching)   ▲                                                                    │
 users ───────┘  (a finalizer while there are any)                       Job, pods ▼
                                                                           status of the Model
 InferenceService ──▶ plan, storage ──▶ Deployment, Service, autoscaler,           │
 (serving)  ▲                           budget, PodMonitor ◀───────────────────────┘ waits until it is Ready
            └── status ◀── Deployment, pods, place in the queue for GPUs
```
"""

import datetime
import functools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Never

import attrs
import trio

from llmkube.controller.render.chores import PRUNE_JOB
from llmkube.controller.render.labels import OURS
from llmkube.controller.render.storage import fetches_itself
from llmkube.controller.reverse_index import Index
from llmkube.controller.service_record import ServiceRecord
from llmkube.controller.settings import ControllerSettings, WorkloadSettings
from llmkube.controller.status.inspection import is_inspected, is_mounted
from llmkube.controller.status.job_result import ended_at
from llmkube.controller.status.pod_model_status import User
from llmkube.controller.writes.owned_objects import Children
from llmkube.k8s.builtins import Service
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ApiError
from llmkube.k8s.rbac import APPLY, FOLLOW, Need
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import AGENT_MANAGER, SERVICE_LABEL, label_value, service_name
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
from llmkube.k8s.workqueue import WorkQueue
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for

RENDERED: Final = (
    "spec.affinity",
    "spec.autoscaling",
    "spec.disruption",
    "spec.endpoint.gateway",
    "spec.endpoint.nodePort",
    "spec.endpoint.port",
    "spec.endpoint.type",
    "spec.extraVolumeMounts",
    "spec.extraVolumes",
    "spec.imagePullSecrets",
    "spec.maxPodLifetimeIdleTimeoutSeconds",
    "spec.maxPodLifetimeSeconds",
    "spec.modelCache",
    "spec.nodeSelector",
    "spec.podAnnotations",
    "spec.podLabels",
    "spec.podSecurityContext",
    "spec.priority",
    "spec.priorityClassName",
    "spec.replicas",
    "spec.revisionHistoryLimit",
    "spec.rolloutPolicy",
    "spec.runtimeClassName",
    "spec.securityContext",
    "spec.slo",
    "spec.suspend",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
)
"""Paths of a service's fields that take effect here, and not by the container's plan."""

JOB_LABEL: Final = "batch.kubernetes.io/job-name"
"""Label that the Job controller puts on its pods."""

MONITOR_LOOK_SECONDS: Final = 300.0
"""Between two looks whether a Prometheus operator, Pyrra or the Gateway API has been installed."""

LOOK_SECONDS: Final = 30.0
"""How long such a look may take."""

_OPTIONAL: Final = (PodMonitor, ServiceLevelObjective, HTTPRoute)

NEEDS: Final = (
    *(
        Need(kind, FOLLOW | APPLY | {"get", "delete"})
        for kind in (Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget, Job, *_OPTIONAL)
    ),
    Need(Pod, FOLLOW),
    Need(PersistentVolumeClaim, FOLLOW),  # those for weights, by our label
)

Announce = Callable[[str, Model | InferenceService, dict[str, Any]], None]
Place = tuple[str, str]  # namespace and value of SERVICE_LABEL


@attrs.define(eq=False)
class Cluster:
    """The objects of a cluster as they are known, and the queues of those that are to be looked at again."""

    client: Client
    settings: ControllerSettings
    workloads: WorkloadSettings
    utcnow: Callable[[], datetime.datetime]
    models: Cache[Model]
    services: Cache[InferenceService]
    services_by_model: Index[Key, Key]
    services_by_label: Index[Key, Place]
    model_queue: WorkQueue[Key]
    service_queue: WorkQueue[Key]
    announce: Announce
    pods: Cache[Pod] = attrs.field(factory=Cache, init=False)
    claims: Cache[PersistentVolumeClaim] = attrs.field(factory=Cache, init=False)
    pods_by_service: Index[Key, Place] = attrs.field(factory=Index, init=False)
    pods_by_job: Index[Key, Key] = attrs.field(factory=Index, init=False)
    jobs_by_model: Index[Key, Key] = attrs.field(factory=Index, init=False)
    percents: dict[Key, int] = attrs.field(factory=dict, init=False)  # how far Jobs say that they are
    pruning: set[str] = attrs.field(factory=set, init=False)  # namespaces for which a Job is being made that removes
    records: dict[Key, ServiceRecord] = attrs.field(factory=lambda: defaultdict(ServiceRecord), init=False)
    deployments: Children[Deployment] = attrs.field(init=False)
    fronts: Children[Service] = attrs.field(init=False)
    autoscalers: Children[HorizontalPodAutoscaler] = attrs.field(init=False)
    budgets: Children[PodDisruptionBudget] = attrs.field(init=False)
    monitors: Children[PodMonitor] = attrs.field(init=False)
    objectives: Children[ServiceLevelObjective] = attrs.field(init=False)
    objectives_by_service: Index[Key, Key] = attrs.field(factory=Index, init=False)
    routes: Children[HTTPRoute] = attrs.field(init=False)
    jobs: Children[Job] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.deployments = Children(self.client, InferenceService, Deployment)
        self.fronts = Children(self.client, InferenceService, Service, sharer=AGENT_MANAGER)
        self.autoscalers = Children(self.client, InferenceService, HorizontalPodAutoscaler)
        self.budgets = Children(self.client, InferenceService, PodDisruptionBudget)
        self.monitors = Children(self.client, InferenceService, PodMonitor)
        self.objectives = Children(self.client, InferenceService, ServiceLevelObjective)
        self.routes = Children(self.client, InferenceService, HTTPRoute)
        self.jobs = Children(self.client, Model, Job)

    # -- What is asked of it -----------------------------------------------------------------------------------------

    def users(self, model: Key) -> list[InferenceService]:
        """Return the services that refer to a Model, in the order of their names."""
        keys = sorted(self.services_by_model.holders(model), key=_by_name)
        return [service for key in keys if (service := self.services.get(key)) is not None]

    def pods_at(self, keys: Iterable[Key]) -> tuple[Pod, ...]:
        """Return the pods with these keys, in order."""
        return tuple(pod for key in sorted(keys) if (pod := self.pods.get(key)) is not None)

    def pods_of(self, job: Job | None) -> tuple[Pod, ...]:
        """Return the pods that a Job has made: not those of an earlier one of its name, or with its label only."""
        if job is None:
            return ()
        return tuple(
            pod for pod in self.pods_at(self.pods_by_job.holders(job.key)) if is_controlled_by(pod, job.metadata.uid)
        )

    def plan(self, service: InferenceService, model: Model) -> ContainerPlan | PlanError:
        """Return the container of a service, or why there can be none.

        It is made again only when a spec, or what the weights' header says, has changed.
        """
        mine, its = service.metadata, model.metadata
        made_from = (mine.uid, mine.generation, its.uid, its.generation, model.status.gguf)
        return self.records[service.key].plan.get(made_from, lambda: self._plan(service, model))

    def _plan(self, service: InferenceService, model: Model) -> ContainerPlan | PlanError:
        if model.status.gguf is not None and is_mounted(model):
            # It is read beside pods that run: what it says comes too late for them, and must not replace them.
            model = attrs.evolve(model, status=attrs.evolve(model.status, gguf=None))
        try:
            return container_plan_for(service, model, images=self.workloads.images, rendered=RENDERED)
        except PlanError as error:
            return error.with_traceback(None)  # it is kept, and its frames would keep these objects

    def running_users(self, model: Key) -> list[str]:
        """Return the labels of the services that refer to a Model and have a pod that runs."""
        labels = [label_value(service.key.name) for service in self.users(model)]
        return [label for label in labels if any(_runs(pod) for pod in self._pods_behind((model.namespace, label)))]

    def is_pruning(self, namespace: str) -> bool:
        """Whether folders of a namespace's claim are being removed."""
        job = self.jobs.get(Key(namespace, PRUNE_JOB))
        return namespace in self.pruning or (job is not None and not ended_at(job))

    def _pods_behind(self, place: Place) -> tuple[Pod, ...]:
        return self.pods_at(self.pods_by_service.holders(place))

    def user(self, service: InferenceService, model: Model) -> User:
        """Return how a service wants the weights of a Model; one that cannot be planned is taken to want the file."""
        own = fetches_itself(service)
        if service.spec.model_ref != model.key.name:  # it is the draft, and that is always a file
            return User(fetches_itself=own)
        plan = self.plan(service, model)
        return User(brings_weights=isinstance(plan, ContainerPlan) and not plan.needs_model_init, fetches_itself=own)

    # -- What a change wakes -----------------------------------------------------------------------------------------

    def on_child(self, children: Children[Any], key: Key) -> None:
        """Wake the service that an object belongs to, or belonged to: all but the Service are called like it."""
        child = children.cache.get(key)
        if child is not None and children.is_own(child):
            return
        owner = controller_key(child, InferenceService.RESOURCE.kind) if child else None
        if owner is not None:
            self.service_queue.add_nowait(owner)
            return
        for service in self._services_behind(key) if children is self.fronts else (key,):
            if service in self.services:
                self.service_queue.add_nowait(service)

    def on_objective(self, key: Key) -> None:
        """Wake the service of an objective, which may be called otherwise."""
        objective = self.objectives.cache.get(key)
        owner = controller_key(objective, InferenceService.RESOURCE.kind) if objective else None
        for service in self.objectives_by_service.put(key, [owner] if owner else []):
            self.service_queue.add_nowait(service)

    def on_claim(self, key: Key) -> None:
        """Wake the Models of a namespace whose claim for weights has come or gone."""
        for model in self.models.values():
            if model.key.namespace == key.namespace:
                self.model_queue.add_nowait(model.key)

    def on_job(self, key: Key) -> None:
        """Wake the Model of a Job."""
        job = self.jobs.cache.get(key)
        owner = controller_key(job, Model.RESOURCE.kind) if job else None
        for model in self.jobs_by_model.put(key, [owner] if owner else []):
            self.model_queue.add_nowait(model)

    def on_pod(self, key: Key) -> None:
        """Wake the service of a pod, or the Model whose Job it is of."""
        pod = self.pods.get(key)
        labels = pod.metadata.labels if pod else {}
        job, service = labels.get(JOB_LABEL), labels.get(SERVICE_LABEL)
        for place in self.pods_by_service.put(key, [(key.namespace, service)] if service else []):
            for one in self.services_by_label.holders(place):
                self.service_queue.add_nowait(one)
                self._wake_unread(one)
        for of_job in self.pods_by_job.put(key, [Key(key.namespace, job)] if job else []):
            found = self.jobs.get(of_job)
            owner = controller_key(found, Model.RESOURCE.kind) if found else None
            if owner is not None:
                self.model_queue.add_nowait(owner)

    def _wake_unread(self, key: Key) -> None:
        """Wake those Models of a service whose header is read once a pod of it runs."""
        service = self.services.get(key)
        for name in [service.spec.model_ref, *drafts_of(service)] if service is not None else []:
            model = self.models.get(Key(key.namespace, name))
            if model is not None and model.status.gguf is None and is_inspected(model):
                self.model_queue.add_nowait(model.key)

    def _services_behind(self, front: Key) -> Iterable[Key]:
        keys = (service.key for service in self.services.values())
        return [key for key in keys if key.namespace == front.namespace and service_name(key.name) == front.name]

    def reflectors(self, rng: random.Random) -> tuple[Callable[[], Awaitable[Never]], ...]:
        """The tasks that keep the caches true."""
        reflect = functools.partial(self._reflect, rng)
        owned: tuple[Children[Any], ...] = (self.deployments, self.fronts, self.autoscalers, self.budgets)
        return (
            *(reflect(each.kind, each.cache, functools.partial(self.on_child, each)) for each in owned),
            reflect(Job, self.jobs.cache, self.on_job),
            reflect(Pod, self.pods, self.on_pod),
            reflect(PersistentVolumeClaim, self.claims, self.on_claim),
        )

    @property
    def synced(self) -> tuple[trio.Event, ...]:
        """Set when all collections are known that every cluster has."""
        caches: tuple[Cache[Any], ...] = (
            self.deployments.cache, self.fronts.cache, self.autoscalers.cache, self.budgets.cache, self.jobs.cache,
            self.pods, self.claims,
        )  # fmt: skip
        return tuple(cache.synced for cache in caches)

    async def run_optional(self, rng: random.Random) -> Never:
        """Follow each kind that not every cluster has, from the moment that it is there; services get theirs then."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_optional, self.monitors, functools.partial(self.on_child, self.monitors), rng)
            nursery.start_soon(self._run_optional, self.routes, functools.partial(self.on_child, self.routes), rng)
            nursery.start_soon(self._run_optional, self.objectives, self.on_objective, rng)
        raise AssertionError("a reflector never returns")

    async def _run_optional(self, children: Children[Any], notify: Callable[[Key], None], rng: random.Random) -> Never:
        while True:
            while not await self.serves(children.kind):  # noqa: ASYNC110 (a server sends no event for a kind it lacks)
                await trio.sleep(MONITOR_LOOK_SECONDS)
            children.cache, children.vanished = Cache(), trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reflect(rng, children.kind, children.cache, notify))
                await children.cache.synced.wait()
                self._wake_services()
                await children.vanished.wait()
                nursery.cancel_scope.cancel(reason="the kind is not served any more")
            children.cache = Cache()
            self._wake_services()

    def _wake_services(self) -> None:
        for service in self.services.values():
            self.service_queue.add_nowait(service.key)

    async def serves(self, kind: type[Any]) -> bool:
        """Whether the server has a kind, and lets us see it."""
        with trio.move_on_after(LOOK_SECONDS):  # a server that is silent is asked again, like one that says no
            try:
                await self.client.list(kind, namespace=self.settings.namespace, label_selector=OURS)
            except ApiError:
                return False
            return True
        return False

    def _reflect(
        self, rng: random.Random, kind: type[Any], cache: Cache[Any], notify: Callable[[Key], None]
    ) -> Callable[[], Awaitable[Never]]:
        return functools.partial(
            run_reflector,
            self.client,
            kind,
            cache,
            notify,
            namespace=self.settings.namespace,
            label_selector=OURS,
            rng=rng,
        )


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and not pod.metadata.deletion_timestamp


def _by_name(key: Key) -> str:
    return key.name  # all of one namespace; a Key's own order is slower to find out


def drafts_of(service: InferenceService) -> Sequence[str]:
    """Return the names of the Models that a service refers to besides its own."""
    speculation = service.spec.speculative_decoding
    return [speculation.draft_model_ref] if speculation is not None and speculation.draft_model_ref else []
