"""Reconcile InferenceServices, which pods or hosts serve, and the EndpointSlices of hosts.

A service's pods are created once its Model exists, updated with its spec, and removed when a host serves it. The status
of a service on hosts is derived from what they report.

Endpoints of a host that is gone are marked not ready. Agents own the slices, and this is the only edit that the
controller makes there: an agent that is gone cannot withdraw its endpoints, and the cluster would keep sending requests
to them.
"""

from typing import Any

import attrs
import structlog
import trio

from llmkube.controller.reconcile.context import Context, GpuQueue, PodContext, QueuedService, WorkloadPlan
from llmkube.controller.reconcile.gpu_quotas import QuotaBook
from llmkube.controller.reconcile.model_pools import PoolBook
from llmkube.controller.reconcile.models import ensure_service_claim
from llmkube.controller.reconcile.pod_polling import IDLE_POLL_SECONDS, seconds_idle
from llmkube.controller.reconcile.rollout_gate import current_manifests, deployment_of, waits_for_idle
from llmkube.controller.reconcile.workload_plans import has_to_fetch, plan_workload, priority_obstacle
from llmkube.controller.render.labels import PATCHED
from llmkube.controller.render.manifests import (
    front_door_names,
    front_door_slice,
    group_name,
    objective_name,
    objective_obstacle,
    without_endpoints,
)
from llmkube.controller.render.storage import Weights, names_own_cache
from llmkube.controller.status.model_pool import Turn
from llmkube.controller.status.pod_service_status import ServiceFacts, assess_pods, derive_pod_status, wanted_gpus
from llmkube.controller.status.scale import activation_obstacle, goes_to_zero, is_patched, next_replicas
from llmkube.controller.status.service_status import (
    WAITING_FOR_GPU,
    HostPart,
    assess_host_part,
    derive_service_status,
    unknown_host_part,
    weight_of,
)
from llmkube.controller.writes.owned_objects import REFUSED, REFUSED_RETRY_SECONDS, OwnedObjects
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NameTakenError, NotFoundError
from llmkube.k8s.resource import Key, is_controlled_by
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, HOST_LABEL, service_name
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workloads import LeaderWorkerSet
from llmkube.runtimes.container.container_plan import ContainerPlan

log = structlog.get_logger()


@attrs.frozen(eq=False)
class PodServices:
    """Reconcile services that run in pods.

    Attributes:
        pools: Turns of the members of ModelPools.
        quotas: Permission to use GPUs.
        gpu_queue: Services that wait for a GPU.
    """

    context: PodContext
    pools: PoolBook = attrs.field(init=False, default=attrs.Factory(lambda self: PoolBook(self.context), True))
    quotas: QuotaBook = attrs.field(
        init=False, default=attrs.Factory(lambda self: QuotaBook(self.context, self.pools), True)
    )
    gpu_queue: GpuQueue = attrs.field(factory=GpuQueue, init=False)

    async def reconcile(self, cached: InferenceService, model: Model | None, part: HostPart | None = None) -> None:
        """Create or update a service's pods, and write its status; `part` is the part that hosts serve."""
        if cached.spec.multi_node is not None and not self.context.optional.has_checked(LeaderWorkerSet):
            return  # every service is reconciled once that is known
        workload = plan_workload(self.context, cached, model)
        if (pool := self.pools.pool_of(cached)) is not None:
            self.pools.decide(pool)
        service = self.pools.as_member(cached)
        facts = await self._ensure_pods(service, workload)
        self.quotas.update(cached)  # fewer pods than before have returned their GPUs
        facts = attrs.evolve(self._observe(service, facts), hosts=part)
        facts = attrs.evolve(facts, denial=facts.denial or self.pools.denial(cached.key))
        key, now = cached.key, self.context.utcnow()
        newest = self.pools.as_member(self.context.services.newest(cached))
        verdict = assess_pods(newest, facts)
        self._update_gpu_queue(newest, facts, waits=verdict.phase == WAITING_FOR_GPU)
        position = self.gpu_queue.position(key)
        status = derive_pod_status(newest, facts, self.context.settings, verdict=verdict, position=position, now=now)
        await self.context.services.write(cached, status, extra={"lastUpdated": timestamp(now)})

    async def retire(self, service: InferenceService) -> None:
        """Remove the objects that a service had in pods, now that a host serves it without such objects."""
        uid, key = service.metadata.uid, service.key
        for owned, name in self._owned(key):
            await owned.remove(Key(key.namespace, name), uid)
        self.forget(key)

    @property
    def is_known(self) -> bool:
        """Whether all kinds have been listed that a service in pods needs; until then none is changed.

        An older cluster may lack GPUQuotas and ModelPools.
        """
        known = self.context.informers
        limits = (known.quotas.cache, known.pools.cache)
        return self.context.pods.can_make_services and all(one.synced_or_unserved.is_set() for one in limits)

    def is_empty(self, service: InferenceService) -> bool:
        """Whether a service has no pods of ours; without its Model, nothing else shows where it belongs."""
        return deployment_of(self.context, service) is None

    def forget(self, key: Key) -> None:
        """Drop the records of a service that is gone; others move up in the queue for GPUs."""
        self.context.queues.services.add_all(self.gpu_queue.put(key, None))
        self.context.records.pop(key, None)
        self.quotas.forget(key)
        for owned, name in self._owned(key):
            owned.forget(Key(key.namespace, name))

    async def _ensure_pods(self, service: InferenceService, workload: WorkloadPlan) -> ServiceFacts:
        """Apply the objects of a service, if its plan allows; return the facts, with the obstacle if there was one."""
        facts = attrs.evolve(workload.facts, denial=self.quotas.admit(service))
        self.pools.note_denial(service.key, is_denied=facts.denial is not None)
        if facts.denial is not None and goes_to_zero(service):  # once nothing needs it, it asks for no GPUs
            self.context.queues.services.add_after(service.key, IDLE_POLL_SECONDS)
        try:
            if facts.plan is not None and workload.weights is not None and facts.denial is None:
                await self._apply(service, facts.plan, workload.weights)
            else:
                await self._keep_current_pods(service, facts)
        except REFUSED as error:
            self.context.queues.services.add_after(service.key, REFUSED_RETRY_SECONDS)
            if isinstance(error, NameTakenError):
                return attrs.evolve(facts, obstacle=str(error), transient=error.transient)
            return attrs.evolve(facts, refusal=str(error))
        return facts

    def _observe(self, service: InferenceService, facts: ServiceFacts) -> ServiceFacts:
        """Return the facts with the observed state added."""
        route = self.context.owned.routes.get(service.key)
        return attrs.evolve(
            facts,
            deployment=deployment_of(self.context, service),
            pods=self.context.pods.pods_of_service(service.key),
            unmet=self._ignored_fields(service, facts.plan),
            deferred=self.context.records[service.key].deferral_reason,
            route=route if route is not None and is_controlled_by(route, service.metadata.uid) else None,
        )

    async def _apply(self, service: InferenceService, plan: ContainerPlan, weights: Weights) -> None:
        """Write every object of a service that differs from the desired one, and remove those that are not desired."""
        owned, key, uid = self.context.owned, service.key, service.metadata.uid
        wanted = await current_manifests(self.context, service, plan, weights)
        await ensure_service_claim(self.context, service, weights)
        if wanted.autoscaler is None:
            await owned.autoscalers.remove(key, uid)  # first, or it would undo the scaling below
        if self.context.records[key].deferred_since is None:
            await self._replace_workload(service, wanted.deployment, group=plan.group is not None)
        await self._scale(service, plan)
        closes = self.pools.turn(key) is Turn.CLOSES
        door = without_endpoints(wanted.kubernetes_service) if closes else wanted.kubernetes_service
        await owned.kubernetes_services.ensure(door)
        if wanted.autoscaler is not None and owned.autoscalers.informer.is_known:
            await owned.autoscalers.ensure(wanted.autoscaler)
        if owned.budgets.informer.is_known:
            await owned.budgets.ensure_or_remove(wanted.budget, key, uid)
        await self.context.optional.apply(owned.monitors, wanted.monitor, key, uid)
        await self.context.optional.apply(owned.routes, wanted.route, key, uid)
        named = Key(key.namespace, objective_name(service))
        for old in self.context.pods.objectives_by_service.keys(key) - {named}:
            await self.context.optional.apply(owned.objectives, None, old, uid)
        await self.context.optional.apply(owned.objectives, wanted.objective, named, uid)

    async def _replace_workload(self, service: InferenceService, manifest: dict[str, Any], *, group: bool) -> None:
        """Apply the Deployment or the group; the other kind is removed first, since both would need the GPUs."""
        owned, key, uid = self.context.owned, service.key, service.metadata.uid
        named = Key(key.namespace, group_name(key.name))
        if group:
            await owned.deployments.remove(key, uid)
            await owned.groups.ensure(manifest)
            return
        await self.context.optional.apply(owned.groups, None, named, uid)
        patched = is_patched(service)
        live = owned.deployments.get(key) if deployment_of(self.context, service) is not None else None
        if patched and live is not None and PATCHED not in live.metadata.annotations:
            await owned.deployments.hand_over_replicas(live, live.spec.replicas)
        await owned.deployments.ensure(manifest)
        if patched and live is None:  # created with a number of pods, which is handed over next
            self.context.queues.services.add_nowait(key)

    async def _keep_current_pods(self, service: InferenceService, facts: ServiceFacts) -> None:
        """Retain the pods of an earlier spec while the new spec cannot be applied, but still scale and suspend them."""
        record = self.context.records[service.key]
        record.clear_deferral()  # the spec that waited is obsolete
        if not record.predecessors_labelled:  # pods of another controller serve, and are counted, until ours exist
            await self.context.owned.deployments.label_predecessors(service.key, service.metadata.uid)
            record.predecessors_labelled = True
        if service.spec.suspend or not service.spec.replicas:
            await self.context.owned.autoscalers.remove(service.key, service.metadata.uid)
        await self._scale(service, facts.plan, may_grow=facts.denial is None)

    async def _scale(
        self, service: InferenceService, plan: ContainerPlan | None = None, *, may_grow: bool = True
    ) -> None:
        """Set the number of a service's pods if it differs, and change nothing else.

        Without a plan, nothing is known of its engines' requests, and none is stopped for being idle.
        """
        live, key = deployment_of(self.context, service), service.key
        if live is None:
            return
        idle_seconds = 0.0
        if plan is not None and goes_to_zero(service):
            idle_seconds = await seconds_idle(self.context, service, plan, live.spec.replicas)
        leaves = bool(live.spec.replicas) and await self.pools.may_stop(service, plan)
        wanted = self.pools.needs_pods(key)
        replicas = next_replicas(service, live.spec.replicas, wanted=wanted, idle_seconds=idle_seconds)
        replicas = 0 if leaves else replicas
        await self._place_front_door(service, is_at_zero=not live.spec.replicas or not replicas)
        if live.spec.replicas == replicas or (replicas > live.spec.replicas and not may_grow):
            return
        log.info("service scaled", service=str(key), before=live.spec.replicas, after=replicas, wanted=wanted)
        if isinstance(live, LeaderWorkerSet):
            await self.context.owned.groups.scale(live, replicas)
        else:
            await self.context.owned.deployments.scale(live, replicas)

    async def _place_front_door(self, service: InferenceService, *, is_at_zero: bool) -> None:
        """Make the front door the endpoints of a service before its last pod ends, and until one of its pods is.

        Proxies get the changes of slices in their order: a connection finds either the front door or a pod.
        """
        pods, endpoints = self.context.pods, self.context.owned.endpoints
        if not (pods.endpoints.is_known and pods.front_doors.is_known):
            return
        answers = goes_to_zero(service) and (is_at_zero or not pods.has_ready_endpoint(service.key))
        doors = pods.front_doors.values() if answers else ()
        for family, name in front_door_names(service.key.name).items():
            key, manifest = Key(service.key.namespace, name), front_door_slice(service, doors, family)
            await endpoints.ensure_or_remove(manifest, key, service.metadata.uid)

    def _ignored_fields(self, service: InferenceService, plan: ContainerPlan | None) -> tuple[str, ...]:
        """Return the fields that have no effect because the cluster or the engine lacks what they need."""
        found, spec, pods = [], service.spec, self.context.pods
        if spec.autoscaling is not None and not pods.autoscalers.is_known:
            found.append("spec.autoscaling (the controller cannot list HorizontalPodAutoscalers; see its /readyz)")
        if spec.disruption is not None and not pods.budgets.is_known:
            found.append("spec.disruption (the controller cannot list PodDisruptionBudgets; see its /readyz)")
        found.append(priority_obstacle(self.context, service, deployment_of(self.context, service)))
        if spec.slo is not None:
            obstacle = objective_obstacle(service, plan) if plan is not None else ""
            missing = "" if pods.objectives.is_known else "spec.slo (Pyrra is not installed)"
            found.append(obstacle or missing)
            if spec.slo.latency_threshold and spec.slo.indicator != "latency":
                found.append("spec.slo.latencyThreshold (needs spec.slo.indicator latency)")
        if spec.endpoint.gateway is not None and spec.endpoint.gateway.enabled:
            there = pods.routes.is_known
            found.append("" if there else "spec.endpoint.gateway (the Gateway API is not installed)")
        found.append(activation_obstacle(service, plan))
        if waits_for_idle(service) and plan is not None and not plan.busy_metrics:
            found.append(f"spec.rolloutPolicy.waitForIdle ({plan.runtime} has no metric for requests in flight)")
        if plan is not None and plan.resources.shared and not self.context.workloads.shared_gpu_selector:
            found.append("spec.resources.gpuSharing.mode (the controller runs without --shared-gpu-node)")
        if names_own_cache(service) and plan is not None and not has_to_fetch(self.context, service, plan):
            found.append("spec.modelCache (nothing is fetched: the weights are mounted, or part of the engine)")
        return tuple(text for text in found if text)

    def _owned(self, key: Key) -> tuple[tuple[OwnedObjects[Any], str], ...]:
        """Return the writers of the kinds that a service may own, each with the name of the object."""
        owned = self.context.owned
        by_name: tuple[OwnedObjects[Any], ...] = (
            owned.deployments,
            owned.autoscalers,
            owned.budgets,
            owned.monitors,
            owned.routes,
        )
        return (
            *((one, key.name) for one in by_name),
            *((owned.objectives, one.name) for one in self.context.pods.objectives_by_service.keys(key)),
            (owned.groups, group_name(key.name)),
            (owned.kubernetes_services, service_name(key.name)),
            *((owned.endpoints, name) for name in front_door_names(key.name).values()),
        )

    def _update_gpu_queue(self, service: InferenceService, facts: ServiceFacts, *, waits: bool) -> None:
        waiting = None
        if facts.plan is not None and waits:
            weight = weight_of(service)
            since = service.metadata.creation_timestamp or ""
            waiting = QueuedService(service.key, weight, since, wanted_gpus(facts.plan))
        self.context.queues.services.add_all(self.gpu_queue.put(service.key, waiting))


@attrs.frozen(eq=False)
class ServiceReconciler:
    """Reconcile all services; `in_pods` handles those that no host serves, and is None where there are no pods."""

    context: Context
    in_pods: PodServices | None = None

    async def reconcile(self, key: Key) -> None:
        """Reconcile one service."""
        services, models = self.context.informers.services, self.context.informers.models
        cached = services.get(key)
        if cached is None or cached.metadata.deletion_timestamp:
            self.context.services.forget(key)
            if self.in_pods is not None:
                self.in_pods.forget(key)
            return
        if services.is_unreadable(key):
            return  # an older version is no basis for a write
        model_key = Key(key.namespace, cached.spec.model_ref)
        model = models.get(model_key)
        if model is None and models.is_unreadable(model_key):
            return  # the Model exists, but this program cannot read it: that is not a missing Model
        if not models.is_known:
            return  # every service is reconciled once Models are listed
        if self.in_pods is None:
            on_hosts = cached.on_hosts
            await self._reconcile_on_hosts(on_hosts, model if on_hosts is cached else self.context.model_of(on_hosts))
        else:
            await self._reconcile_by_placement(cached, model, self.in_pods)

    async def _reconcile_by_placement(
        self, cached: InferenceService, model: Model | None, in_pods: PodServices
    ) -> None:
        if not in_pods.is_known and (model is None or cached.spec.hosts is not None):
            return  # where it belongs depends on whether it has pods
        if cached.spec.hosts is not None:
            await in_pods.reconcile(cached, model, self._host_part(cached.on_hosts))
        elif self.context.settings.is_for_hosts(model) if model is not None else in_pods.is_empty(cached):
            await in_pods.retire(cached)
            await self._reconcile_on_hosts(cached, model)
        elif in_pods.is_known:
            await in_pods.reconcile(cached, model)

    @property
    def _hosts_are_known(self) -> bool:
        known = self.context.informers
        reports = (known.slices.cache, known.host_claims.cache, self.context.hosts.leases)
        return all(one.synced.is_set() for one in reports)

    def _host_part(self, service: InferenceService) -> HostPart:
        if not self._hosts_are_known:
            return unknown_host_part(service)
        known, live, settings = self.context.informers, self.context.hosts.tracker.hosts, self.context.settings
        slices, holders = known.slices_of(service.key), known.holders(service.key)
        return assess_host_part(
            service, self.context.model_of(service), slices, live, holders=holders, settings=settings
        )

    async def _reconcile_on_hosts(self, cached: InferenceService, model: Model | None) -> None:
        settings, known, writer = self.context.settings, self.context.informers, self.context.services
        if model is not None and not settings.is_for_hosts(model):
            writer.forget(cached.key)
            return
        if not self._hosts_are_known:
            return
        now, newest = self.context.utcnow(), writer.newest(cached).on_hosts
        status = derive_service_status(
            newest,
            model,
            known.slices_of(cached.key),
            self.context.hosts.tracker.hosts,
            settings,
            holders=known.holders(cached.key),
            now=now,
        )
        await writer.write(cached, status, extra={"lastUpdated": timestamp(now)})


@attrs.frozen(eq=False)
class SliceReconciler:
    """Reconcile the EndpointSlices that agents publish."""

    context: Context

    async def reconcile(self, key: Key) -> None:
        """Mark a slice's endpoints not ready if its host is gone, and the slice is unchanged since it was read."""
        await trio.lowlevel.checkpoint()
        endpoint_slice, hosts = self.context.informers.slices.get(key), self.context.hosts
        host = endpoint_slice.metadata.labels.get(HOST_LABEL, "") if endpoint_slice else ""
        hosts_known = hosts.leases.synced.is_set()  # otherwise every slice is reconciled once they are listed
        if (
            endpoint_slice is None
            or not hosts_known
            or not is_in_service(endpoint_slice)
            or hosts.tracker.hosts.is_alive(host)
        ):
            return
        # A host that returns renews its Lease before it publishes its endpoints again, but the two watches may
        # deliver this in the opposite order.
        if host and not await hosts.check_gone(host):
            return
        patch = out_of_service(endpoint_slice)
        try:
            await self.context.client.patch(EndpointSlice, key, patch, field_manager=CONTROLLER_FIELD_MANAGER)
        except NotFoundError:
            return
        log.warning("endpoints marked not ready: their host is gone", slice=str(key), host=host)


def is_in_service(endpoint_slice: EndpointSlice) -> bool:
    """Whether any endpoint of a slice receives requests; one without a `ready` condition does."""
    return any(endpoint.conditions.ready is not False for endpoint in endpoint_slice.endpoints)


def out_of_service(endpoint_slice: EndpointSlice) -> dict[str, Any]:
    """Return the merge patch that marks all endpoints of exactly this version of a slice not ready."""
    endpoints = encode(endpoint_slice)["endpoints"]
    return {
        "metadata": {"resourceVersion": endpoint_slice.metadata.resource_version},
        "endpoints": [
            {**endpoint, "conditions": {**(endpoint.get("conditions") or {}), "ready": False}} for endpoint in endpoints
        ],
    }
