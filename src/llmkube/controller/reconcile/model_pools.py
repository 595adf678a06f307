"""Give the members of ModelPools their turns, and report the state of each pool.

The turns of a pool are decided again whenever one of its members or the pool is reconciled, and every two seconds while
a member waits. A turn that changes has its member reconciled, which alone changes the number of its pods.
"""

import math
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from llmkube.base.units import parse_duration
from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.reconcile.pod_polling import are_idle
from llmkube.controller.reconcile.rollout_gate import deployment_of
from llmkube.controller.reconcile.workload_plans import plan_workload
from llmkube.controller.status.gpu_quota import Denial
from llmkube.controller.status.model_pool import (
    Decision,
    Member,
    Turn,
    as_member,
    decide,
    is_default,
    pool_status,
    waiting_denial,
)
from llmkube.controller.status.service_status import weight_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import LOADED, find_condition, settle
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.swap import DRAIN_SECONDS

POLL_SECONDS: Final = 2.0
"""Interval of decisions, and of checks whether members have requests, while another one waits."""

_MOVING: Final = frozenset({Turn.WAITS, Turn.LEAVES, Turn.CLOSES})


@attrs.define(eq=False)
class PoolBook:
    """Turns of the members of all pools, and what is remembered of each member."""

    context: PodContext
    _members: dict[Key, Member] = attrs.field(factory=dict, init=False)
    _granted: set[Key] = attrs.field(factory=set, init=False)
    _denied: set[Key] = attrs.field(factory=set, init=False)
    _decisions: dict[Key, Decision] = attrs.field(factory=dict, init=False)

    def pool_of(self, service: InferenceService) -> ModelPool | None:
        """Return the pool in which a service takes turns; None if it is in none, or cannot."""
        pool = _first_pool(self.context, service.key)
        return pool if pool is not None and not self.unfit(pool).get(service.key.name) else None

    def as_member(self, service: InferenceService) -> InferenceService:
        """Return a service as its pool changes it, or unchanged."""
        return as_member(service, self.pool_of(service))

    def turn(self, service: Key) -> Turn | None:
        """Return the turn of a service by the last decision; None if it is in no pool."""
        pool = _first_pool(self.context, service)
        found = self._decisions.get(pool.key) if pool is not None else None
        return found.turns.get(service) if found is not None else None

    def needs_pods(self, service: Key) -> bool:
        """Return whether requests, or its place as the default member, need a service, and it may have pods now."""
        turn = self.turn(service)
        if turn is None:
            return self.context.wanted.wants(service, trio.current_time())
        return service in self._granted or (turn in {Turn.STARTS, Turn.STAYS} and self._is_requested(service))

    def asks_for_gpus(self, service: Key) -> bool:
        """Return whether a service needs pods, or would have the next turn if no GPUQuota denied it."""
        return self.needs_pods(service) or (service in self._denied and self._is_requested(service))

    def note_denial(self, service: Key, *, is_denied: bool) -> None:
        """Note whether a GPUQuota denies a member its GPUs; until it does no longer, others have its turn."""
        pool = _first_pool(self.context, service)
        if pool is not None and is_denied != (service in self._denied):
            (self._denied.add if is_denied else self._denied.discard)(service)
            self.decide(pool)

    def _is_requested(self, service: Key) -> bool:
        pool, is_wanted = _first_pool(self.context, service), self.context.wanted.wants(service, trio.current_time())
        return is_wanted or (pool is not None and service.name == pool.spec.default)

    def denial(self, service: Key) -> Denial | None:
        """Return why a member that requests need has no pods; None if it may have some, or needs none."""
        pool = _first_pool(self.context, service)
        if pool is None or self.turn(service) is not Turn.WAITS:
            return None
        return waiting_denial(pool, self._decisions[pool.key].turns)

    async def may_stop(self, service: InferenceService, plan: ContainerPlan | None) -> bool:
        """Return whether a member is to be stopped now for another one; its engines are asked while one waits.

        `DRAIN_SECONDS` after the swap budget of that one, pods that are not ready have no requests, unless new ones
        need the member.
        """
        pool, key = _first_pool(self.context, service.key), service.key
        turns = self._decisions[pool.key].turns if pool is not None and pool.key in self._decisions else {}
        if pool is None or plan is None or not _MOVING & set(turns.values()):
            return False
        waits = [self._members[one].wanted_since for one, turn in turns.items() if turn is Turn.WAITS]
        patient = min((one for one in waits if one is not None), default=math.inf) + parse_duration(
            pool.spec.swap_budget
        )
        closed = key in self._members and self._members[key].closed_at is not None
        may_need = not closed and self.context.wanted.wants(key, trio.current_time())
        all_count = may_need or trio.current_time() < patient + DRAIN_SECONDS
        pods = (pod for pod in self.context.pods.pods_of_service(key) if all_count or pod.is_ready)
        idle = await are_idle(plan, pods)
        if (before := self._members.get(key)) is not None:
            self._members[key] = attrs.evolve(before, is_busy=not idle)
        self.decide(pool)
        turn = self.turn(key)
        wanted = self.context.wanted.wants(key, trio.current_time())
        return idle and (turn is Turn.CLOSES or (turn is Turn.LEAVES and (closed or not wanted)))

    def decide(self, pool: ModelPool) -> None:
        """Decide on the turns in a pool; reconcile the members whose turns change."""
        now, unfit = trio.current_time(), self.unfit(pool)
        members = [
            self._observe(pool, service, now)
            for name in pool.members
            if (service := self.context.informers.services.get(Key(pool.key.namespace, name)))
            and name not in unfit
            and not _is_on_hosts(self.context, service)
        ]
        before, decision = self._decisions.get(pool.key, Decision()), decide(pool, members, now)
        self._decisions[pool.key] = decision
        for one in members:
            turn = decision.turns[one.key]
            closed_at = None if turn is not Turn.CLOSES else now if one.closed_at is None else one.closed_at
            self._members[one.key] = attrs.evolve(one, closed_at=closed_at)
            if turn is Turn.STARTS and one.key not in self._granted:
                self._granted.add(one.key)
                starts, seconds = self.context.pool_starts.get(pool.key, (0, 0.0))
                waited = now - (now if one.wanted_since is None else one.wanted_since)
                self.context.pool_starts[pool.key] = starts + 1, seconds + waited
        turns = {*before.turns.items()} ^ {*decision.turns.items()}
        self.context.queues.services.add_all({key for key, _ in turns})
        if turns:
            self.context.queues.pools.add_nowait(pool.key)
        if _MOVING & set(decision.turns.values()):
            self.context.queues.pools.add_after(pool.key, POLL_SECONDS)
            for one in members:
                if one.replicas:
                    self.context.queues.services.add_after(one.key, POLL_SECONDS)

    def members(self, pool: ModelPool) -> tuple[list[Member], Mapping[Key, Turn]]:
        """Return the members of a pool that take turns, and their turns."""
        turns = self._decisions.get(pool.key, Decision()).turns
        return [self._members[key] for key in turns if key in self._members], turns

    def forget(self, pool: Key) -> None:
        """Drop the turns in a pool that is gone."""
        for key in self._decisions.pop(pool, Decision()).turns:
            self._members.pop(key, None)
            self._granted.discard(key)
            self._denied.discard(key)
        self.context.pool_starts.pop(pool, None)

    def unfit(self, pool: ModelPool) -> dict[str, str]:
        """Return why members of a pool take no turns, by name."""
        return {name: why for name in pool.members if (why := _obstacle(self.context, pool, name))}

    def _observe(self, pool: ModelPool, service: InferenceService, now: float) -> Member:
        """Return the state of a member, with what is remembered of it."""
        key, spec, live = service.key, service.spec, deployment_of(self.context, service)
        workload = plan_workload(self.context, service, self.context.model_of(service))
        gpus = workload.facts.plan.resources.gpu_count if workload.facts.plan is not None else 0
        most = max(spec.autoscaling.max_replicas if spec.autoscaling is not None else 0, spec.replicas)
        wanted = self.context.wanted.wants(key, now)
        replicas = live.spec.replicas if live is not None else 0
        one = attrs.evolve(
            self._members.get(key, Member(key=key)),
            gpus=gpus * most,
            weight=weight_of(service),
            has_pods=bool(self.context.pods.pods_of_service(key)),
            can_start=workload.weights is not None
            and not spec.suspend
            and spec.replicas > 0
            and key not in self._denied,
            is_pinned=spec.activation.pin,
        )
        if replicas or not (one.can_start and (wanted or is_default(pool, one))):
            self._granted.discard(key)
        was = one.replicas > 0
        replicas = replicas or int(key in self._granted)
        if replicas and not was:
            one = attrs.evolve(one, used_at=now, ready_at=None)
        if replicas and one.ready_at is None and live is not None and live.status.ready_replicas:
            one = attrs.evolve(one, ready_at=now, cost=one.cost.loaded(max(1.0, now - one.used_at), now))
        if one.is_busy or wanted:
            one = attrs.evolve(one, used_at=now if one.ready_at is not None else one.used_at)
            one = attrs.evolve(one, cost=one.cost.used(now))
        if not replicas:
            one = attrs.evolve(one, ready_at=None, is_busy=False)
        since = now if replicas or was or one.wanted_since is None else one.wanted_since
        return attrs.evolve(one, replicas=replicas, wanted_since=since if wanted else None)


def _first_pool(context: Context, service: Key) -> ModelPool | None:
    known = context.informers
    return next(iter(known.pools.pick(known.pools_by_service.keys(service))), None)


def _is_on_hosts(context: Context, service: InferenceService) -> bool:
    model = context.model_of(service)
    return service.spec.hosts is not None or (model is not None and context.settings.is_for_hosts(model))


def _obstacle(context: Context, pool: ModelPool, name: str) -> str:
    """Return why a member of a pool takes no turns; empty if it does."""
    service = context.informers.services.get(Key(pool.key.namespace, name))
    if service is None or service.metadata.deletion_timestamp:
        return "there is no such InferenceService"
    first, model = _first_pool(context, service.key), context.model_of(service)
    if first is not None and first.key != pool.key:
        return f"it is a member of ModelPool {first.key.name} already"
    if service.spec.hosts is not None:
        return "pods and hosts serve it"
    if _is_on_hosts(context, service):
        return ""  # its host gives it its turns
    if service.spec.multi_node is not None:
        return "a group over several nodes takes no turns"
    if model is None or not isinstance(context, PodContext):
        return ""  # it takes turns, and cannot start yet
    plan = plan_workload(context, service, model).facts.plan
    if plan is not None and not plan.busy_metrics:
        return f"{plan.runtime} has no metric for requests, so it is never known to be idle"
    return ""


@attrs.frozen(eq=False)
class PoolReconciler:
    """Reconcile the status of ModelPools; `book` is None where there are no pods."""

    context: Context
    book: PoolBook | None = None

    async def reconcile(self, key: Key) -> None:
        """Decide on the turns in a pool, and report them."""
        context, writer = self.context, self.context.pool_statuses
        cached, known = context.informers.pools.get(key), context.informers
        if cached is None or cached.metadata.deletion_timestamp:
            writer.forget(key)
            if self.book is not None:
                self.book.forget(key)
            return
        lacking = isinstance(context, PodContext) and not context.pods.can_make_services
        if lacking or not known.models.is_known or known.pools.is_unreadable(key):
            return  # every pool is reconciled once these are listed
        if self.book is not None:
            self.book.decide(cached)
        newest, now = writer.newest(cached), context.utcnow()
        members, turns = self.book.members(cached) if self.book is not None else ([], {})
        found = {name: known.services.get(Key(key.namespace, name)) for name in newest.members}
        phases = {name: one.status.phase for name, one in found.items() if one is not None}
        unfit = {name: why for name in newest.members if (why := _obstacle(context, newest, name))}
        hosted = {
            name: find_condition(one.status.conditions, LOADED)
            for name, one in found.items()
            if one is not None and name not in unfit and _is_on_hosts(context, one)
        }
        mixed = [name for name, one in found.items() if one is not None and one.spec.hosts is not None]
        status, statements = pool_status(newest, members, turns, phases=phases, unfit=unfit, hosted=hosted, mixed=mixed)
        conditions = settle(statements, newest.status.conditions, generation=newest.metadata.generation, now=now)
        await writer.write(cached, {**status, "conditions": conditions})
