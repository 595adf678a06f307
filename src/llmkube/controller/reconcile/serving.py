"""A service's pods are made once its Model is there, kept as its spec says, and taken away when a host serves it."""

from collections.abc import Iterable
from typing import Any, Final

import attrs
import trio

from llmkube.controller.cluster_state import Cluster, drafts_of
from llmkube.controller.reconcile.idleness import are_idle
from llmkube.controller.render.labels import RESTARTED, TEMPLATE
from llmkube.controller.render.monitoring import objective, objective_name, objective_obstacle, pod_monitor
from llmkube.controller.render.routing import route
from llmkube.controller.render.scaling import autoscaler, disruption_budget
from llmkube.controller.render.storage import Storage, fetches_itself, serving_storage
from llmkube.controller.render.workload import deployment, front
from llmkube.controller.service_record import Manifests, WorkloadPlan
from llmkube.controller.status.gpu_queue import GpuQueue, Waiting
from llmkube.controller.status.inspection import is_mounted
from llmkube.controller.status.pod_model_status import (
    NO_RESULT,
    choose_supply,
    is_remembered,
    weights_path,
    without_effect,
)
from llmkube.controller.status.pod_service_status import (
    WAITING_FOR_GPU,
    Scene,
    derive_pod_status,
    desired_replicas,
    judge_pods,
    wanted_gpus,
)
from llmkube.controller.status.rollout import aged_in_seconds, edit_patience_seconds, waits_for_idle
from llmkube.controller.status.service_status import PRIORITY_WEIGHTS
from llmkube.controller.writes.owned_objects import REFUSED, TAKEN_LOOK_SECONDS, Children
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ApiError, NameTakenError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import AVAILABLE, DEGRADED, PROGRESSING, Verdict, current
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, label_value, service_name
from llmkube.k8s.wire.owners import is_controlled_by
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workloads import Deployment
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.plan import PlanError
from llmkube.weights.errors import WeightsError

IDLE_LOOK_SECONDS: Final = 5.0
"""Between two looks whether pods that are to be replaced have requests."""


@attrs.define(eq=False)
class Serving:
    """Look after the services that run as pods; `waiting` are those that find no GPU."""

    cluster: Cluster
    writer: StatusWriter[InferenceService]
    waiting: GpuQueue = attrs.field(factory=GpuQueue, init=False)

    async def reconcile(self, cached: InferenceService, model: Model | None) -> None:
        """Have a service's pods made, and say how they do."""
        key = cached.key
        scene, storage = self._stage(cached, model)
        try:
            if scene.plan is not None and storage is not None:
                await self._render(cached, scene.plan, storage)
            else:
                await self._hold(cached)
        except NameTakenError as error:
            scene = attrs.evolve(scene, obstacle=str(error), passing=error.passing)
            self.cluster.service_queue.add_after(key, TAKEN_LOOK_SECONDS)
        except REFUSED as error:
            scene = attrs.evolve(scene, refusal=error.message)
            self.cluster.service_queue.add_after(key, TAKEN_LOOK_SECONDS)  # a node port may become free
        live = self.cluster.routes.get(key)
        scene = attrs.evolve(
            scene,
            deployment=self._deployment(cached),
            unmet=self._unmet(cached, scene.plan),
            deferred=self.cluster.records[key].deferred_for,
            route=live if live is not None and is_controlled_by(live, cached.metadata.uid) else None,
        )
        newest, now = self.writer.newest(cached), self.cluster.utcnow()
        self._queue_up(newest, scene)
        status = derive_pod_status(newest, scene, self.cluster.settings, position=self.waiting.position(key), now=now)
        written = await self.writer.write(cached, status, along={"lastUpdated": timestamp(now)})
        if written and status["phase"] != newest.status.phase:
            self.cluster.announce("inference service phase", newest, status)

    async def retire(self, service: InferenceService) -> None:
        """Take away what a service had as pods, now that a host serves it; nothing of it is ever the host's."""
        uid, key = service.metadata.uid, service.key
        for children, name in self._children(key):
            await children.remove(Key(key.namespace, name), uid)
        self.forget(key)

    def is_empty(self, service: InferenceService) -> bool:
        """Whether a service has no pods of ours: nobody knows any more where a service without a Model belongs."""
        return self._deployment(service) is None

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a service that is gone; others move up in the queue."""
        self._wake(self.waiting.put(key, None))
        self.cluster.records.pop(key, None)
        for children, name in self._children(key):
            children.forget(Key(key.namespace, name))

    def _stage(self, service: InferenceService, model: Model | None) -> tuple[Scene, tuple[Storage, Storage] | None]:
        """Return what is known of a service, and its storage once everything is there to make its pods."""
        place = (service.key.namespace, label_value(service.key.name))
        pods = self.cluster.pods_at(self.cluster.pods_by_service.holders(place))
        live = self._deployment(service)
        if model is None:
            return Scene(pods=pods, deployment=live), None
        drafts = tuple(self.cluster.models.get(Key(service.key.namespace, name)) for name in drafts_of(service))
        made_from = (service.metadata.uid, service.metadata.generation, model, drafts)
        record = self.cluster.records[service.key]
        scene, storage = record.workload.get(made_from, lambda: self._plan_workload(service, model))
        return attrs.evolve(scene, pods=pods, deployment=live), storage

    def _plan_workload(self, service: InferenceService, model: Model) -> WorkloadPlan:
        """Plan, verdict and storage; `_stage` adds what runs."""
        plan = self.cluster.plan(service, model)
        if isinstance(plan, PlanError):
            return Scene(model=_verdict_on(model), refusal=str(plan)), None
        supply = choose_supply(model, [self.cluster.user(service, model)], self.cluster.workloads)
        ignored = without_effect(model, supply, plan.not_honoured)
        if ignored != plan.not_honoured:
            plan = attrs.evolve(plan, not_honoured=ignored)
        scene = Scene(plan=plan)
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
        supply = choose_supply(model, [self.cluster.user(service, model)], self.cluster.workloads)
        verdict = _verdict_on(model)
        if supply.by == "pods":
            verdict = Verdict("Ready", "WorkloadResolved", "")
        elif supply.by == "job" and verdict.phase == "Ready" and not is_remembered(model):
            verdict = Verdict("Pending", "Pending", "waiting for the Job that fetches it")
        if verdict.phase != "Ready":
            return verdict, Storage()
        path = weights_path(model, supply)
        if path:
            return verdict, serving_storage(service, model, path, self.cluster.workloads)
        if plan.uses_weights:
            raise PlanError(
                f"{model.spec.source} names no single file, and {plan.runtime} is handed one: name it in "
                "Model.spec.files, or set skipModelInit for an engine that fetches for itself",
                field="Model.spec.source",
            )
        return verdict, Storage()

    def _draft(self, service: InferenceService, plan: ContainerPlan) -> tuple[Verdict, Storage]:
        model = self.cluster.models.get(Key(service.key.namespace, plan.draft_model))
        if model is None:
            missing = f'there is no Model "{plan.draft_model}" in this namespace, the draft'
            return Verdict("Pending", "ModelNotFound", missing), Storage()
        return self._storage(service, model, plan)

    async def _render(self, service: InferenceService, plan: ContainerPlan, storage: tuple[Storage, Storage]) -> None:
        """Write every object of a service that differs from what is wanted, and take away what is not wanted."""
        key, uid = service.key, service.metadata.uid
        wanted = await self._allowed(service, plan, storage)
        if wanted.scaler is None:  # first, or it would bring back what is scaled down here
            await self.cluster.autoscalers.remove(key, uid)
        if self.cluster.records[key].deferred_since is not None:
            await self._scale(service)
        else:
            await self.cluster.deployments.ensure(wanted.deployment)
        await self.cluster.fronts.ensure(wanted.front)
        if wanted.scaler is not None:
            await self.cluster.autoscalers.ensure(wanted.scaler)
        await self._ensure_or_remove(self.cluster.budgets, wanted.budget, key, uid)
        await self._offer(self.cluster.monitors, wanted.monitor, key, uid)
        await self._offer(self.cluster.routes, wanted.route, key, uid)
        named = Key(key.namespace, objective_name(service))
        for old in self.cluster.objectives_by_service.holders(key) - {named}:
            await self._offer(self.cluster.objectives, None, old, uid)
        await self._offer(self.cluster.objectives, wanted.objective, named, uid)

    async def _allowed(
        self, service: InferenceService, plan: ContainerPlan, storage: tuple[Storage, Storage]
    ) -> Manifests:
        """Return the objects of a service, its pods' replacement among them if it is due; note it while it has to wait.

        The wait is measured from when this controller first saw the cause: its successor begins again.
        """
        key, spec, live, record = (
            service.key,
            service.spec,
            self._deployment(service),
            self.cluster.records[service.key],
        )
        annotations = live.metadata.annotations if live is not None else {}
        wanted = self._wanted(service, plan, storage, annotations.get(RESTARTED, ""))
        if live is None or (spec.max_pod_lifetime_seconds is None and not waits_for_idle(service)):
            record.stop_waiting()
            return wanted
        pods = self.cluster.pods_at(self.cluster.pods_by_service.holders((key.namespace, label_value(key.name))))
        cause = "an edit"
        patience: float | None = edit_patience_seconds(service)
        if wanted.deployment["metadata"]["annotations"][TEMPLATE] == annotations.get(TEMPLATE):
            now = self.cluster.utcnow()
            due = aged_in_seconds(service, live, pods, now)
            if due:
                self.cluster.service_queue.add_after(key, due)
            if due is None or due > 0:
                record.stop_waiting()
                return wanted
            cause, patience = "their age", spec.max_pod_lifetime_idle_timeout_seconds
            wanted = self._wanted(service, plan, storage, timestamp(now))
        since = trio.current_time() if record.deferred_since is None else record.deferred_since
        over = patience is not None and trio.current_time() - since >= patience
        if over or not live.status.ready_replicas or not plan.busy_metrics or await are_idle(plan, pods):
            record.stop_waiting()
            return wanted
        record.deferred_since, record.deferred_for = since, f"pods are replaced for {cause} once they have no request"
        self.cluster.service_queue.add_after(key, IDLE_LOOK_SECONDS)
        return wanted

    def _wanted(
        self, service: InferenceService, plan: ContainerPlan, storage: tuple[Storage, Storage], restarted: str = ""
    ) -> Manifests:
        """Return the objects of a service, rendered anew only when something that they are made from has changed."""
        live = self._deployment(service)
        replicas = desired_replicas(service, live)
        starting = (live.status.ready_replicas if live else 0) < replicas
        weights, draft = storage
        settings = self.cluster.workloads

        def render() -> Manifests:
            return Manifests(
                deployment(
                    service, plan, settings, replicas=replicas, storage=weights, draft=draft, restarted=restarted
                ),
                front(service, plan),
                autoscaler(service, plan),
                disruption_budget(service, plan, starting=starting),
                pod_monitor(service, plan, settings.monitor_labels) if settings.pod_monitors else None,
                objective(service, plan, settings.monitor_labels),
                route(service, plan),
            )

        made_from = (service.metadata.uid, service.metadata.generation, plan, storage, replicas, starting, restarted)
        return self.cluster.records[service.key].manifests.get(made_from, render)

    def _unmet(self, service: InferenceService, plan: ContainerPlan | None) -> tuple[str, ...]:
        """Return the fields that would have an effect if the cluster, or the engine, had what they ask for."""
        found, spec = [], service.spec
        if spec.slo is not None:
            obstacle = objective_obstacle(service, plan) if plan is not None else ""
            missing = "" if self.cluster.objectives.cache.synced.is_set() else "spec.slo (Pyrra is not installed here)"
            found.append(obstacle or missing)
            if spec.slo.latency_threshold and spec.slo.indicator != "latency":
                found.append("spec.slo.latencyThreshold (only of indicator latency)")
        if spec.endpoint.gateway is not None and spec.endpoint.gateway.enabled:
            there = self.cluster.routes.cache.synced.is_set()
            found.append("" if there else "spec.endpoint.gateway (the Gateway API is not installed here)")
        if waits_for_idle(service) and plan is not None and not plan.busy_metrics:
            found.append(f"spec.rolloutPolicy.waitForIdle ({plan.runtime} does not tell whether it has requests)")
        if plan is not None and plan.resources.shared and not self.cluster.workloads.shared_gpu_selector:
            found.append("spec.resources.gpuSharing.mode (the operator names no nodes whose GPUs are shared)")
        if fetches_itself(service) and plan is not None and not self._has_to_fetch(service, plan):
            found.append("spec.modelCache (the weights are mounted, or the engine brings them: nothing is fetched)")
        return tuple(text for text in found if text)

    def _has_to_fetch(self, service: InferenceService, plan: ContainerPlan) -> bool:
        """Whether there is anything that pods of a service could fetch into a volume of their own."""
        if not plan.uses_weights and not plan.needs_model_init:
            return False
        names = filter(None, (service.spec.model_ref, plan.draft_model))
        models = (self.cluster.models.get(Key(service.key.namespace, name)) for name in names)
        return not all(model is not None and is_mounted(model) for model in models)

    async def _hold(self, service: InferenceService) -> None:
        """Leave the pods of an earlier spec alone while the new one cannot be made, except that it stops when told."""
        live = self._deployment(service)
        self.cluster.records[service.key].stop_waiting()  # what waited is not wanted any more
        if service.spec.suspend or not service.spec.replicas:
            await self.cluster.autoscalers.remove(service.key, service.metadata.uid)
        if live is not None:
            await self._scale(service)

    async def _scale(self, service: InferenceService) -> None:
        """Give a Deployment its number of pods, and leave all else of it as it is."""
        live = self._deployment(service)
        if live is None:
            return
        replicas = desired_replicas(service, live)
        if live.spec.replicas != replicas:
            version = {"resourceVersion": live.metadata.resource_version}
            patch = {"metadata": version, "spec": {"replicas": replicas}}
            await self.cluster.client.patch(Deployment, live.key, patch, field_manager=CONTROLLER_FIELD_MANAGER)

    async def _ensure_or_remove(
        self, children: Children[Any], manifest: dict[str, Any] | None, key: Key, uid: str
    ) -> None:
        if manifest is None:
            await children.remove(key, uid)
        else:
            await children.ensure(manifest)

    async def _offer(self, children: Children[Any], manifest: dict[str, Any] | None, key: Key, uid: str) -> None:
        """Do the same of a kind that not every cluster has; that it was uninstalled fails no service."""
        if not children.cache.synced.is_set():
            return
        try:
            await self._ensure_or_remove(children, manifest, key, uid)
        except ApiError as error:
            if error.code != 404:
                raise
            missing = error
        else:
            return
        if await self.cluster.serves(children.kind):
            raise missing
        children.vanished.set()

    def _deployment(self, service: InferenceService) -> Deployment | None:
        live = self.cluster.deployments.get(service.key)
        return live if live is not None and is_controlled_by(live, service.metadata.uid) else None

    def _children(self, key: Key) -> tuple[tuple[Children[Any], str], ...]:
        named: tuple[Children[Any], ...] = (
            self.cluster.deployments,
            self.cluster.autoscalers,
            self.cluster.budgets,
            self.cluster.monitors,
            self.cluster.routes,
        )
        return (
            *((children, key.name) for children in named),
            *((self.cluster.objectives, one.name) for one in self.cluster.objectives_by_service.holders(key)),
            (self.cluster.fronts, service_name(key.name)),
        )

    def _queue_up(self, service: InferenceService, scene: Scene) -> None:
        waits = None
        if scene.plan is not None and judge_pods(service, scene).phase == WAITING_FOR_GPU:
            weight = PRIORITY_WEIGHTS.get(service.spec.priority, PRIORITY_WEIGHTS["normal"])
            since = service.metadata.creation_timestamp or ""
            waits = Waiting(service.key, weight, since, wanted_gpus(scene.plan))
        self._wake(self.waiting.put(service.key, waits))

    def _wake(self, services: Iterable[Key]) -> None:
        for key in services:
            self.cluster.service_queue.add_nowait(key)


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
