"""Models and services that pods serve: what is wanted of the cluster for each, and what came of it.

```
 Model ──▶ who brings the weights? ──▶ claim, Job ─────────────────────────────────┐
             ▲                                                                     │
 users ──────┘  (a finalizer while there are any)                        Job, pods ▼
                                                                           status of the Model
 InferenceService ──▶ plan, storage ──▶ Deployment, Service, autoscaler,           │
       ▲                                budget, PodMonitor ◀───────────────────────┘ waits until it is Ready
       └── status ◀── Deployment, pods, place in the queue for GPUs
```
"""

import datetime
import functools
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Never

import attrs
import trio

from llmkube.controller.children import Children, NameTakenError, is_owned, owner_key
from llmkube.controller.conditions import AVAILABLE, DEGRADED, PROGRESSING, Verdict, current, timestamp
from llmkube.controller.download import (
    NO_RESULT,
    Seen,
    Supply,
    User,
    choose_supply,
    derive_supplied_status,
    is_complete,
    is_remembered,
    read_fetched,
    weights_path,
)
from llmkube.controller.gpuqueue import GpuQueue, Waiting
from llmkube.controller.index import Index
from llmkube.controller.inferenceservice import PRIORITY_WEIGHTS
from llmkube.controller.podservice import (
    WAITING_FOR_GPU,
    Scene,
    derive_pod_status,
    desired_replicas,
    judge_pods,
    wanted_gpus,
)
from llmkube.controller.render.marks import OURS
from llmkube.controller.render.monitoring import pod_monitor
from llmkube.controller.render.scaling import autoscaler, disruption_budget
from llmkube.controller.render.storage import (
    Storage,
    cache_claim,
    claimed,
    fetch_job,
    fetches_itself,
    job_name,
    serving_storage,
    source_of,
)
from llmkube.controller.render.workload import deployment, front
from llmkube.controller.settings import ControllerSettings, WorkloadSettings
from llmkube.controller.writer import StatusWriter
from llmkube.k8s.builtins import Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import AlreadyExistsError, ApiError, NotFoundError
from llmkube.k8s.names import CONTROLLER_FIELD_MANAGER, SERVICE_LABEL, label_value, service_name
from llmkube.k8s.rbac import APPLY, FOLLOW, Need
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    PodMonitor,
)
from llmkube.k8s.workqueue import WorkQueue
from llmkube.runtimes.container import ContainerPlan
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for
from llmkube.weights.errors import WeightsError
from llmkube.weights.source import Elsewhere

FINALIZER: Final = "inference.llmkube.dev/in-use"
"""Keeps a Model that services refer to until none does."""

JOB_LABEL: Final = "batch.kubernetes.io/job-name"
"""Label that the Job controller puts on its pods."""

RENDERED: Final = (
    "spec.affinity",
    "spec.autoscaling",
    "spec.disruption",
    "spec.endpoint.nodePort",
    "spec.endpoint.port",
    "spec.endpoint.type",
    "spec.extraVolumeMounts",
    "spec.extraVolumes",
    "spec.imagePullSecrets",
    "spec.modelCache",
    "spec.nodeSelector",
    "spec.podAnnotations",
    "spec.podLabels",
    "spec.podSecurityContext",
    "spec.priority",
    "spec.priorityClassName",
    "spec.replicas",
    "spec.revisionHistoryLimit",
    "spec.runtimeClassName",
    "spec.securityContext",
    "spec.speculativeDecoding.draftModelRef",
    "spec.suspend",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
    "Model.spec.files",
    "Model.spec.mmproj",
    "Model.spec.prefetch",
    "Model.spec.prefetchTolerations",
    "Model.spec.sha256",
    "Model.spec.source",
    "Model.spec.sourceSecretRef",
)
"""Paths of the fields that take effect here, and not by the container's plan."""

CLAIM_LOOK_SECONDS: Final = 10.0
"""Between two looks at a user's claim that is not bound: those are not watched."""

TAKEN_LOOK_SECONDS: Final = 60.0
"""Between two tries to make an object whose name is taken: what others make is not watched."""

MONITOR_LOOK_SECONDS: Final = 300.0
"""Between two looks whether a Prometheus operator has been installed."""

NEEDS: Final = (
    *(
        Need(kind, FOLLOW | APPLY | {"delete"})
        for kind in (Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget, PodMonitor, Job)
    ),
    Need(Pod, FOLLOW),
    # The one that a Model names by `pvc://`; the namespace's own for weights is made when it is missing.
    Need(PersistentVolumeClaim, frozenset({"get", "create"})),
    # The finalizer of a Model in use; nothing else of it is written but its status.
    Need(Model, frozenset({"patch"})),
)

Announce = Callable[[str, Model | InferenceService, dict[str, Any]], None]
_Place = tuple[str, str]  # namespace and value of SERVICE_LABEL


@attrs.define(eq=False)
class ClusterPath:
    """The part of the controller that turns nouns into pods; its owner tells it what to reconcile."""

    client: Client
    settings: ControllerSettings
    workloads: WorkloadSettings
    utcnow: Callable[[], datetime.datetime]
    models: Cache[Model]
    services: Cache[InferenceService]
    services_by_model: Index[Key, Key]
    services_by_label: Index[Key, _Place]
    model_writer: StatusWriter[Model]
    service_writer: StatusWriter[InferenceService]
    model_queue: WorkQueue[Key]
    service_queue: WorkQueue[Key]
    announce: Announce
    pods: Cache[Pod] = attrs.field(factory=Cache, init=False)
    pods_by_service: Index[Key, _Place] = attrs.field(factory=Index, init=False)
    pods_by_job: Index[Key, Key] = attrs.field(factory=Index, init=False)
    jobs_by_model: Index[Key, Key] = attrs.field(factory=Index, init=False)
    waiting: GpuQueue = attrs.field(factory=GpuQueue, init=False)
    deployments: Children[Deployment] = attrs.field(init=False)
    fronts: Children[Service] = attrs.field(init=False)
    autoscalers: Children[HorizontalPodAutoscaler] = attrs.field(init=False)
    budgets: Children[PodDisruptionBudget] = attrs.field(init=False)
    monitors: Children[PodMonitor] = attrs.field(init=False)
    jobs: Children[Job] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.deployments = Children(self.client, Deployment)
        self.fronts = Children(self.client, Service)
        self.autoscalers = Children(self.client, HorizontalPodAutoscaler)
        self.budgets = Children(self.client, PodDisruptionBudget)
        self.monitors = Children(self.client, PodMonitor)
        self.jobs = Children(self.client, Job)

    # -- What a change wakes -----------------------------------------------------------------------------------------

    def on_child(self, children: Children[Any], key: Key) -> None:
        """Wake the service that an object belongs to, or belonged to: all but the Service are called like it."""
        child = children.cache.get(key)
        owner = owner_key(child, InferenceService.RESOURCE.kind) if child else None
        if owner is not None:
            self.service_queue.add_nowait(owner)
            return
        for service in (key, *self._services_behind(key)):
            if service in self.services:
                self.service_queue.add_nowait(service)

    def on_job(self, key: Key) -> None:
        """Wake the Model of a Job."""
        job = self.jobs.cache.get(key)
        owner = owner_key(job, Model.RESOURCE.kind) if job else None
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
        for of_job in self.pods_by_job.put(key, [Key(key.namespace, job)] if job else []):
            found = self.jobs.get(of_job)
            owner = owner_key(found, Model.RESOURCE.kind) if found else None
            if owner is not None:
                self.model_queue.add_nowait(owner)

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
        )

    @property
    def synced(self) -> tuple[trio.Event, ...]:
        """Set when all collections are known that every cluster has."""
        caches: tuple[Cache[Any], ...] = (
            self.deployments.cache, self.fronts.cache, self.autoscalers.cache, self.budgets.cache, self.jobs.cache,
            self.pods,
        )  # fmt: skip
        return tuple(cache.synced for cache in caches)

    async def run_monitors(self, rng: random.Random) -> Never:
        """Follow PodMonitors from the moment that the cluster has such a kind; services get theirs then."""
        while not await self._has_monitors():  # noqa: ASYNC110 (a server sends no event for a kind that it lacks)
            await trio.sleep(MONITOR_LOOK_SECONDS)
        async with trio.open_nursery() as nursery:
            follow = functools.partial(self.on_child, self.monitors)
            nursery.start_soon(self._reflect(rng, PodMonitor, self.monitors.cache, follow))
            await self.monitors.cache.synced.wait()
            for service in self.services.values():
                self.service_queue.add_nowait(service.key)
        raise AssertionError("a reflector never returns")

    async def _has_monitors(self) -> bool:
        try:
            await self.client.list(PodMonitor, namespace=self.settings.namespace, label_selector=OURS)
        except ApiError:
            return False
        return True

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

    # -- Models ------------------------------------------------------------------------------------------------------

    async def reconcile_model(self, cached: Model) -> None:
        """Have a Model's weights brought, and say how far that is."""
        users = self._users(cached.key)
        if await self._keep_in_use(cached, used=bool(users)):
            return  # the answer wakes it again
        supply = choose_supply(cached, [self._user(service, cached) for service in users], self.workloads)
        newest = self.model_writer.newest(cached)
        seen = await self._look(newest, supply)
        if not cached.metadata.deletion_timestamp:
            await self._tend_jobs(newest, supply, seen)
            seen = attrs.evolve(seen, job=self.jobs.get(Key(cached.key.namespace, job_name(cached))))
        names = [service.key.name for service in users]
        status = derive_supplied_status(newest, supply, seen, users=names, now=self.utcnow())
        if status["phase"] == "Pending" and supply.by == "claim":
            self.model_queue.add_after(cached.key, CLAIM_LOOK_SECONDS)
        if await self.model_writer.write(cached, status) and status["phase"] != newest.status.phase:
            self.announce("model phase", newest, status)

    async def release(self, model: Model) -> bool:
        """Let go of a Model that a host serves now: its Jobs and its finalizer; True when it was written."""
        for key in self.jobs_by_model.holders(model.key):
            await self.jobs.remove(key, model.metadata.uid)
        return await self._keep_in_use(model, used=False)

    def _users(self, model: Key) -> list[InferenceService]:
        keys = sorted(self.services_by_model.holders(model))
        return [service for key in keys if (service := self.services.get(key)) is not None]

    async def _keep_in_use(self, model: Model, *, used: bool) -> bool:
        """Put the finalizer on or take it off as the Model has users; True when something was written."""
        finalizers = model.metadata.finalizers
        if used == (FINALIZER in finalizers) or (used and model.metadata.deletion_timestamp):
            return False
        wanted = [*finalizers, FINALIZER] if used else [name for name in finalizers if name != FINALIZER]
        patch = {"metadata": {"resourceVersion": model.metadata.resource_version, "finalizers": wanted}}
        await self.client.patch(Model, model.key, patch, field_manager=CONTROLLER_FIELD_MANAGER)
        return True

    async def _look(self, model: Model, supply: Supply) -> Seen:
        if supply.by == "claim":
            source = source_of(model.spec)
            assert isinstance(source, Elsewhere), "choose_supply has looked"
            try:
                key = Key(model.key.namespace, claimed(source).claim)
                return Seen(claim=await self.client.get(PersistentVolumeClaim, key))
            except NotFoundError:
                self.model_queue.add_after(model.key, CLAIM_LOOK_SECONDS)
                return Seen()
        key = Key(model.key.namespace, job_name(model))
        pods = [pod for one in sorted(self.pods_by_job.holders(key)) if (pod := self.pods.get(one)) is not None]
        return Seen(job=self.jobs.get(key), pods=tuple(pods))

    async def _tend_jobs(self, model: Model, supply: Supply, seen: Seen) -> None:
        """Make the Job that is needed, and end those of an earlier source.

        A Job's template cannot be changed, so one that exists stays as it is.
        """
        name = job_name(model)
        for key in self.jobs_by_model.holders(model.key):
            if key.name != name or supply.by != "job":
                await self.jobs.remove(key, model.metadata.uid)
        if supply.by != "job" or is_remembered(model):
            return
        key = Key(model.key.namespace, name)
        if seen.job is None:
            await self._ensure_cache(model.key.namespace)
            await self.jobs.ensure(fetch_job(model, self.workloads))
        elif is_complete(seen.job) and read_fetched(seen.pods) is None and await self._is_mute(key):
            # What it fetched is on the volume; its successor finds that at once, and tells.
            await self.jobs.remove(key, model.metadata.uid)

    async def _is_mute(self, job: Key) -> bool:
        """Whether no pod of a Job is left that could tell; asked of the server, for pods and Jobs come separately."""
        pods = await self.client.list(Pod, namespace=job.namespace, label_selector=f"{JOB_LABEL}={job.name}")
        return not pods.raw

    async def _ensure_cache(self, namespace: str) -> None:
        manifest = cache_claim(namespace, self.workloads)
        claim = decode(PersistentVolumeClaim, manifest)
        try:
            await self.client.create(claim, field_manager=CONTROLLER_FIELD_MANAGER)
        except AlreadyExistsError:
            return

    # -- Services ----------------------------------------------------------------------------------------------------

    async def reconcile_service(self, cached: InferenceService, model: Model | None) -> None:
        """Have a service's pods made, and say how they do."""
        key = cached.key
        scene, storage = self._stage(cached, model)
        try:
            if scene.plan is not None and storage is not None:
                await self._render(cached, scene.plan, storage)
            else:
                await self._hold(cached)
        except NameTakenError as error:
            scene = attrs.evolve(scene, obstacle=str(error))
            self.service_queue.add_after(key, TAKEN_LOOK_SECONDS)
        scene = attrs.evolve(scene, deployment=self._deployment(cached))
        newest, now = self.service_writer.newest(cached), self.utcnow()
        self._queue_up(newest, scene)
        position, waiting = self.waiting.position(key), len(self.waiting)
        status = derive_pod_status(newest, scene, self.settings, position=position, waiting=waiting, now=now)
        written = await self.service_writer.write(cached, status, along={"lastUpdated": timestamp(now)})
        if written and status["phase"] != newest.status.phase:
            self.announce("inference service phase", newest, status)

    async def retire(self, service: InferenceService) -> None:
        """Take away what a service had as pods, now that a host serves it; nothing of it is ever the host's."""
        uid, key = service.metadata.uid, service.key
        for children, name in self._children(key):
            await children.remove(Key(key.namespace, name), uid)
        self.forget_service(key)

    def is_empty(self, service: InferenceService) -> bool:
        """Whether a service has no pods of ours: nobody knows any more where a service without a Model belongs."""
        return self._deployment(service) is None

    def forget_service(self, key: Key) -> None:
        """Drop what is remembered of a service that is gone; others move up in the queue."""
        self._wake(self.waiting.put(key, None))
        for children, name in self._children(key):
            children.forget(Key(key.namespace, name))

    def _stage(self, service: InferenceService, model: Model | None) -> tuple[Scene, tuple[Storage, Storage] | None]:
        """Return what is known of a service, and its storage once everything is there to make its pods."""
        place = (service.key.namespace, label_value(service.key.name))
        pods = [pod for one in sorted(self.pods_by_service.holders(place)) if (pod := self.pods.get(one)) is not None]
        scene = Scene(pods=tuple(pods), deployment=self._deployment(service))
        if model is None:
            return scene, None
        try:
            plan = self._plan(service, model)
        except PlanError as error:
            return attrs.evolve(scene, model=_verdict_on(model), refusal=str(error)), None
        scene = attrs.evolve(scene, plan=plan)
        try:
            verdict, storage = self._storage(service, model, plan)
            draft_verdict, draft = Verdict("Ready", "ModelReady", ""), Storage()
            if plan.draft_model:
                draft_verdict, draft = self._draft(service, plan)
        except (WeightsError, PlanError) as error:
            return attrs.evolve(scene, model=_verdict_on(model), refusal=str(error)), None
        worst = verdict if verdict.phase != "Ready" else draft_verdict
        ready = worst.phase == "Ready"
        return attrs.evolve(scene, model=worst), (storage, draft) if ready else None

    def _storage(self, service: InferenceService, model: Model, plan: ContainerPlan) -> tuple[Verdict, Storage]:
        """Say whether a service has to wait for a Model, and where its pods find the weights.

        Raises:
            WeightsError: The Model's source cannot be read.
            PlanError: The engine wants a file that nobody can name.
        """
        if not plan.uses_weights and not plan.needs_model_init:
            return Verdict("Ready", "RuntimeResolved", ""), Storage()
        supply = choose_supply(model, [self._user(service, model)], self.workloads)
        verdict = _verdict_on(model)
        if supply.by == "pods":
            verdict = Verdict("Ready", "WorkloadResolved", "")
        elif supply.by == "job" and verdict.phase == "Ready" and not is_remembered(model):
            verdict = Verdict("Pending", "Pending", "waiting for the Job that fetches it")
        if verdict.phase != "Ready":
            return verdict, Storage()
        path = weights_path(model, supply)
        if path:
            return verdict, serving_storage(service, model, path, self.workloads)
        if plan.uses_weights:
            raise PlanError(
                f"{model.spec.source} names no single file, and {plan.runtime} is handed one: name it in "
                "Model.spec.files, or set skipModelInit for an engine that fetches for itself",
                field="Model.spec.source",
            )
        return verdict, Storage()

    def _draft(self, service: InferenceService, plan: ContainerPlan) -> tuple[Verdict, Storage]:
        model = self.models.get(Key(service.key.namespace, plan.draft_model))
        if model is None:
            missing = f'there is no Model "{plan.draft_model}" in this namespace, the draft'
            return Verdict("Pending", "ModelNotFound", missing), Storage()
        return self._storage(service, model, plan)

    async def _render(
        self, service: InferenceService, plan: ContainerPlan, storage: tuple[Storage, Storage]
    ) -> None:
        """Write every object of a service that differs from what is wanted, and take away what is not wanted."""
        key, uid = service.key, service.metadata.uid
        live = self._deployment(service)
        replicas = desired_replicas(service, live)
        scaler = autoscaler(service, plan)
        if scaler is None:  # first, or it would bring back what is scaled down here
            await self.autoscalers.remove(key, uid)
        await self.deployments.ensure(
            deployment(service, plan, self.workloads, replicas=replicas, storage=storage[0], draft=storage[1])
        )
        await self.fronts.ensure(front(service, plan))
        if scaler is not None:
            await self.autoscalers.ensure(scaler)
        ready = live.status.ready_replicas if live else 0
        await self._ensure_or_remove(
            self.budgets, disruption_budget(service, starting=ready < replicas), key, uid
        )
        if self.monitors.cache.synced.is_set():
            wanted = pod_monitor(service, plan) if self.workloads.pod_monitors else None
            await self._ensure_or_remove(self.monitors, wanted, key, uid)

    async def _hold(self, service: InferenceService) -> None:
        """Leave the pods of an earlier spec alone while the new one cannot be made, except that it stops when told."""
        live = self._deployment(service)
        if service.spec.suspend or not service.spec.replicas:
            await self.autoscalers.remove(service.key, service.metadata.uid)
        if live is None:
            return
        replicas = desired_replicas(service, live)
        if live.spec.replicas != replicas:
            version = {"resourceVersion": live.metadata.resource_version}
            patch = {"metadata": version, "spec": {"replicas": replicas}}
            await self.client.patch(Deployment, live.key, patch, field_manager=CONTROLLER_FIELD_MANAGER)

    async def _ensure_or_remove(
        self, children: Children[Any], manifest: dict[str, Any] | None, key: Key, uid: str
    ) -> None:
        if manifest is None:
            await children.remove(key, uid)
        else:
            await children.ensure(manifest)

    def _deployment(self, service: InferenceService) -> Deployment | None:
        live = self.deployments.get(service.key)
        return live if live is not None and is_owned(live, service.metadata.uid) else None

    def _children(self, key: Key) -> tuple[tuple[Children[Any], str], ...]:
        named: tuple[Children[Any], ...] = (self.deployments, self.autoscalers, self.budgets, self.monitors)
        return (*((children, key.name) for children in named), (self.fronts, service_name(key.name)))

    def _queue_up(self, service: InferenceService, scene: Scene) -> None:
        waits = None
        if scene.plan is not None and judge_pods(service, scene).phase == WAITING_FOR_GPU:
            weight = PRIORITY_WEIGHTS.get(service.spec.priority, PRIORITY_WEIGHTS["normal"])
            since = service.metadata.creation_timestamp or ""
            waits = Waiting(service.key, weight, since, wanted_gpus(scene.plan))
        self._wake(self.waiting.put(service.key, waits))

    def _plan(self, service: InferenceService, model: Model) -> ContainerPlan:
        return container_plan_for(service, model, images=self.workloads.images, rendered=RENDERED)

    def _user(self, service: InferenceService, model: Model) -> User:
        """Return how a service wants the weights of a Model; one that cannot be planned is taken to want the file."""
        own = fetches_itself(service)
        if service.spec.model_ref != model.key.name:  # it is the draft, and that is always a file
            return User(fetches_itself=own)
        try:
            return User(brings_weights=not self._plan(service, model).needs_model_init, fetches_itself=own)
        except PlanError:
            return User(fetches_itself=own)

    def _wake(self, services: Iterable[Key]) -> None:
        for key in services:
            self.service_queue.add_nowait(key)


def drafts_of(service: InferenceService) -> Sequence[str]:
    """Return the names of the Models that a service refers to besides its own."""
    speculation = service.spec.speculative_decoding
    return [speculation.draft_model_ref] if speculation is not None and speculation.draft_model_ref else []


def _verdict_on(model: Model) -> Verdict:
    """Return what the Model's own status says of its newest spec."""
    generation = model.metadata.generation
    kinds = {"Ready": AVAILABLE, "Failed": DEGRADED}
    said = current(model.status.conditions, kinds.get(model.status.phase, PROGRESSING), generation)
    if said is None:
        return Verdict("Pending", "Pending", "waiting for the Model's status")
    if said.reason == NO_RESULT or model.status.phase not in kinds:
        return Verdict("Pending", said.reason, said.message)
    return Verdict(model.status.phase, said.reason, said.message)
