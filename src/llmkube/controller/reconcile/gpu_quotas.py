"""Enforce GPUQuotas on services in pods, and report the usage of each.

The book holds the GPUs that each service asks for and has. It is filled from the caches when the first quota exists,
and updated whenever a service is reconciled; a decision that changes has the service reconciled.
"""

from collections.abc import Mapping

import attrs

from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.reconcile.model_pools import PoolBook
from llmkube.controller.reconcile.rollout_gate import deployment_of
from llmkube.controller.reconcile.workload_plans import plan_workload
from llmkube.controller.render.labels import queue_labels
from llmkube.controller.status.gpu_quota import (
    Decision,
    Demand,
    Denial,
    Usage,
    decide,
    declared_gpu_bytes,
    quota_status,
)
from llmkube.controller.status.scale import next_replicas
from llmkube.controller.status.service_status import weight_of
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.sharing import GPUQuota
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import Statement, settle
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workloads import HorizontalPodAutoscaler, Workload
from llmkube.runtimes.container.container_plan import Resources


@attrs.define(eq=False)
class QuotaBook:
    """GPUs of the services in pods, and the decision on them; empty as long as there is no quota."""

    context: PodContext
    pools: PoolBook
    _quotas: frozenset[tuple[str, int]] = attrs.field(default=frozenset(), init=False)
    _demands: dict[Key, Demand] = attrs.field(factory=dict, init=False)
    _decision: Decision = attrs.field(factory=Decision, init=False)

    def admit(self, service: InferenceService) -> Denial | None:
        """Admit a service's request for GPUs and reserve them; return the reason if it is denied."""
        self.update(service)
        denial, demand = self._decision.denials.get(service.key), self._demands.get(service.key)
        if denial is None and demand is not None and demand.asked > demand.held:
            self._demands[service.key] = attrs.evolve(demand, held=demand.asked)
        return denial

    def update(self, *services: InferenceService, force: bool = False) -> None:
        """Decide again if these services, or the quotas, have changed, or in any case; reconcile what this affects."""
        quotas = self.context.informers.quotas.values()
        found = frozenset((one.metadata.uid, one.metadata.generation) for one in quotas)
        changed = force or found != self._quotas
        if found and not self._quotas:
            services = self.context.informers.services.values()
        elif not found:
            services = ()
            self._demands.clear()
        self._quotas = found
        for service in services:
            before, now = self._demands.pop(service.key, None), self._demand_of(service)
            if now is not None and before is not None and before.held > now.held:  # granted, and not in the cache yet
                now = attrs.evolve(now, held=max(now.held, min(before.held, now.asked)))
            if now is not None:
                self._demands[service.key] = now
            changed = changed or before != now
        if changed:
            self._decide()

    def forget(self, key: Key) -> None:
        """Drop the demand of a service that is gone."""
        if self._demands.pop(key, None) is not None:
            self._decide()

    def usage(self, quota: Key) -> Usage:
        """Return the usage of a quota."""
        return self._decision.usages.get(quota, Usage())

    def _decide(self) -> None:
        before = self._decision
        now = self._decision = decide(self.context.informers.quotas.values(), self._demands.values(), self._labels)
        denials = {*before.denials, *now.denials}
        self.context.queues.services.add_all(key for key in denials if before.denials.get(key) != now.denials.get(key))
        usages = (key for key, usage in now.usages.items() if before.usages.get(key) != usage)
        self.context.queues.quotas.add_all(usages)

    def _labels(self, namespace: str) -> Mapping[str, str] | None:
        found = self.context.pods.namespaces.get(Key("", namespace))
        return found.metadata.labels if found is not None else None

    def _demand_of(self, service: InferenceService) -> Demand | None:
        """Return the GPUs of a service; None if it has none and asks for none, or if Kueue admits it."""
        key, context = service.key, self.context
        service = self.pools.as_member(service)
        model = context.model_of(service)
        on_hosts = model is not None and service.spec.hosts is None and context.settings.is_for_hosts(model)
        if queue_labels(service) or on_hosts or service.metadata.deletion_timestamp:
            return None
        workload = plan_workload(context, service, model)
        plan, live, scaling = workload.facts.plan, deployment_of(context, service), service.spec.autoscaling
        group = service.spec.multi_node
        per_pod = live_gpus(live, besides=group.rdma_resource if group is not None else None)
        pods = _live_pods(live, context.owned.autoscalers.get(key))
        wanted, present = (self.pools.asks_for_gpus(key), live.spec.replicas if live is not None else None)
        held, desired = per_pod * pods, next_replicas(service, present, wanted=wanted, idle_seconds=0.0)
        if workload.weights is None and live is None:
            desired = 0  # it cannot start yet
        resources = plan.resources if plan is not None else Resources(gpu_count=per_pod)
        nodes = len(group.members) if plan is not None and group is not None else 1
        most = max(scaling.max_replicas, desired) if scaling is not None and desired else desired
        is_counted = bool(resources.gpu_count) or not resources.claims or desired <= pods
        asked = resources.gpu_count * nodes * most
        if not asked and not held and is_counted:
            return None
        size = declared_gpu_bytes(service, model) if model is not None else None
        since = service.metadata.creation_timestamp or ""
        pool = self.pools.pool_of(service)
        turns = (pool.key, max(1, pool.spec.gpu)) if pool is not None else (None, 0)
        return Demand(key, weight_of(service), since, asked, held, size, is_counted, *turns)


def live_gpus(live: Workload | None, *, besides: str | None = None) -> int:
    """Return the GPUs of each pod of a Deployment, or of each group of pods, by the limits in its template.

    Their only other device is the network's, `besides`.
    """
    spec = encode(live)["spec"] if live is not None else {}
    group = spec.get("leaderWorkerTemplate") or {}
    template = group.get("leaderTemplate") or spec.get("template") or {}
    engine, *_ = (template.get("spec") or {}).get("containers") or [{}]
    limits = (engine.get("resources") or {}).get("limits") or {}
    devices = (str(amount) for name, amount in limits.items() if "/" in name and name != besides)
    counts = [int(amount) for amount in devices if amount.isdecimal()]
    return sum(counts) * int(group.get("size") or 1)


def _live_pods(live: Workload | None, autoscaler: HorizontalPodAutoscaler | None) -> int:
    """Return the number of pods that a Deployment has, or may have by its autoscaler."""
    if live is None or not live.spec.replicas:
        return 0
    most = encode(autoscaler).get("spec", {}).get("maxReplicas", 0) if autoscaler is not None else 0
    return max(live.spec.replicas, int(most))


@attrs.frozen(eq=False)
class QuotaReconciler:
    """Reconcile the status of GPUQuotas; `book` is None where there are no pods."""

    context: Context
    book: QuotaBook | None = None

    async def reconcile(self, key: Key) -> None:
        """Update the admission of all services, and write the status of one quota."""
        context, writer = self.context, self.context.quotas
        if isinstance(context, PodContext) and self.book is not None:
            if not (context.pods.can_make_services and context.informers.models.is_known):
                return  # every quota is reconciled once these are listed
            self.book.update(force=True)
        cached = context.informers.quotas.get(key)
        if cached is None:
            writer.forget(key)
        elif not cached.metadata.deletion_timestamp and not context.informers.quotas.is_unreadable(key):
            newest, now = writer.newest(cached), context.utcnow()
            usage = self.book.usage(key) if self.book is not None else Usage()
            statements = [Statement("Enforced", *self._enforced(newest))]
            conditions = settle(statements, newest.status.conditions, generation=newest.metadata.generation, now=now)
            await writer.write(cached, {**quota_status(newest, usage, timestamp(now)), "conditions": conditions})

    def _enforced(self, quota: GPUQuota) -> tuple[bool, Reason, str]:
        """Return whether a quota has an effect, and why."""
        only, spec = self.context.settings.namespace, quota.spec
        if not isinstance(self.context, PodContext):
            why = "there are no pods here, and hosts limit models by their memory"
        elif only is not None and spec.namespace_ref != only:
            why = f"this controller serves namespace {only} only: set namespaceRef: {only}"
        elif spec.selector is not None and not self.context.pods.namespaces.is_known:
            why = "the controller cannot list Namespaces, whose labels the selector needs; see its /readyz"
        else:
            return True, Reason.HONOURED, "services in pods that have no queue of Kueue count"
        return False, Reason.NOT_SUPPORTED, why
