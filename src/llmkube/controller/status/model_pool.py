"""Decide which members of a ModelPool have its GPUs, by the rules of hosts (`runtimes.swap`), and its status. Pure.

| member | turn |
|---|---|
| not requested, without pods | RESTS |
| requested, and its GPUs are free | STARTS |
| requested, and others have its GPUs | WAITS |
| it has pods | STAYS |
| it is idle, and another one waits for its GPUs | LEAVES: it is stopped, unless requests have arrived meanwhile |
| it is never idle, and another one waits for `swapBudget` | CLOSES: its Service has no endpoints; LEAVES |

A member starts once the pods of the one before it are gone. Requests are never cut off: a member is stopped only while
its engines report none. The default member starts, and stays, while no other one has GPUs or waits for them.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.base.units import parse_duration
from llmkube.controller.status.gpu_quota import Denial
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.k8s.crd.sharing import PRIORITY, ModelPool
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import Statement
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.swap import Cost, Resident, Waiting, step

GPUS: Final = "GPUs"

_HOST_MOVES: Final = frozenset({Reason.WAITING_FOR_POOL, Reason.LOADING})


class Turn(enum.Enum):
    """Permission of a member; the table above has the conditions."""

    RESTS = enum.auto()
    STARTS = enum.auto()
    WAITS = enum.auto()
    STAYS = enum.auto()
    LEAVES = enum.auto()
    CLOSES = enum.auto()


@attrs.frozen(kw_only=True)
class Member:
    """Observed state of a member; times are of one monotonic clock.

    Attributes:
        gpus: GPUs of all its replicas.
        weight: Weight of its priority; higher is more important.
        replicas: Number in the spec of its Deployment, or granted.
        has_pods: Whether any of its pods exists, perhaps terminating.
        can_start: Whether its spec asks for pods, and its weights are there.
        wanted_since: Time since which requests need it; None if none does.
        is_busy: Whether its engines had requests when they were last queried.
        is_pinned: Whether it never leaves.
        ready_at: When it first answered; None before.
        used_at: When it last had requests.
        closed_at: When its Service lost its endpoints; None while it has them.
        cost: Durations of its loads, and its use.
    """

    key: Key
    gpus: int = 0
    weight: int = 0
    replicas: int = 0
    has_pods: bool = False
    can_start: bool = True
    wanted_since: float | None = None
    is_busy: bool = False
    is_pinned: bool = False
    ready_at: float | None = None
    used_at: float = 0.0
    closed_at: float | None = None
    cost: Cost = Cost()

    @property
    def is_resident(self) -> bool:
        """Whether it has GPUs, or has not returned them yet."""
        return self.replicas > 0 or self.has_pods


@attrs.frozen
class Decision:
    """Turns of the members, and when the decision may change although nothing happens; None if it cannot."""

    turns: Mapping[Key, Turn] = {}
    next_at: float | None = None


def decide(pool: ModelPool, members: Sequence[Member], now: float) -> Decision:
    """Decide on all members of a pool."""
    total = max(1, pool.spec.gpu)
    residents = [_resident(pool, one, total) for one in members if one.is_resident]
    asking = [one for one in members if one.wanted_since is not None and one.can_start and not one.replicas]
    if not residents and not asking:
        asking = [one for one in members if is_default(pool, one) and one.can_start]
    waiting = [_waiting(pool, one, total, now) for one in asking]
    free = total - sum(each.bytes[GPUS] for each in residents)
    outcome = step(residents, waiting, {GPUS: free}, {one.key: one.cost for one in members}, now)
    turns, excess = {}, _excess(pool, members, residents, total)
    for one in members:
        if one.key in outcome.started:
            turns[one.key] = Turn.STARTS
        elif one.replicas and (one.key in outcome.displaced or one.key in excess):
            turns[one.key] = Turn.LEAVES
        elif one.replicas and one.key in outcome.closed:
            turns[one.key] = Turn.CLOSES
        else:
            turns[one.key] = Turn.STAYS if one.replicas else Turn.WAITS if one in asking else Turn.RESTS
    return Decision(turns, outcome.next_at)


def is_default(pool: ModelPool, one: Member) -> bool:
    """Whether a member is the one that starts first."""
    return one.key.name == pool.spec.default


def _need(one: Member, total: int) -> Mapping[str, int]:
    return {GPUS: min(total, max(1, one.gpus))}


def _rank(pool: ModelPool, one: Member) -> int:
    return one.weight if pool.spec.swap_policy == PRIORITY else 0


def _resident(pool: ModelPool, one: Member, total: int) -> Resident:
    in_use = one.is_busy or (one.closed_at is None and one.wanted_since is not None)
    return Resident(
        one.key,
        _need(one, total),
        _rank(pool, one),
        pinned=one.is_pinned,
        uses=int(in_use),
        closed_at=one.closed_at,
        exiting=not one.replicas,
        loaded_at=one.ready_at,
        used_at=one.used_at,
        peers=pool.key.name,
    )


def _waiting(pool: ModelPool, one: Member, total: int, now: float) -> Waiting:
    patience, since = parse_duration(pool.spec.swap_budget), now if one.wanted_since is None else one.wanted_since
    rank, peers = _rank(pool, one), pool.key.name
    return Waiting(one.key, _need(one, total), since, rank, patience_seconds=patience, peers=peers)


def _excess(pool: ModelPool, members: Iterable[Member], residents: Iterable[Resident], total: int) -> Collection[Key]:
    """Return the members that have to leave because the pool has fewer GPUs than its members use together."""
    needs = {each.key: each.bytes[GPUS] for each in residents if not each.exiting}
    staying = [one for one in members if one.key in needs]
    staying.sort(key=lambda one: (not one.is_pinned, not is_default(pool, one), -one.weight, -one.used_at, one.key))
    excess = []
    for one in staying:
        total -= needs[one.key]
        if total < 0:
            excess.append(one.key)
            total += needs[one.key]
    return excess


# -- members and status -----------------------------------------------------------------------------------------------


def as_member(service: InferenceService, pool: ModelPool | None) -> InferenceService:
    """Return a service as its pool changes it: it is loaded on request, on the nodes of the pool."""
    if pool is None:
        return service
    spec = service.spec
    scaling = attrs.evolve(spec.autoscaling, min_replicas=0) if spec.autoscaling is not None else None
    activation = attrs.evolve(spec.activation, mode=ON_REQUEST, pin=False)
    selector = {**spec.node_selector, **pool.spec.node_selector}
    return attrs.evolve(
        service, spec=attrs.evolve(spec, activation=activation, autoscaling=scaling, node_selector=selector)
    )


def waiting_denial(pool: ModelPool, turns: Mapping[Key, Turn]) -> Denial:
    """Return why a member has no pods although requests need it."""
    has = [key.name for key, turn in sorted(turns.items()) if turn not in {Turn.RESTS, Turn.WAITS}]
    who = f"{', '.join(has)} uses its GPUs" if has else "pods of another member are still ending"
    return Denial(pool.key, Reason.WAITING_FOR_POOL, f"ModelPool {pool.key}: {who}")


def pool_status(
    pool: ModelPool,
    members: Sequence[Member],
    turns: Mapping[Key, Turn],
    *,
    phases: Mapping[str, str],
    unfit: Mapping[str, str],
    hosted: Mapping[str, Condition | None],
    mixed: Collection[str],
) -> tuple[dict[str, Any], list[Statement]]:
    """Return the status of a pool except its conditions, and the statements of these.

    Args:
        pool: The pool.
        members: The members in pods.
        turns: Their turns.
        phases: Phases of the existing services, by name.
        unfit: Why other members take no turns, by name.
        hosted: Members that hosts serve, with their condition `Loaded`.
        mixed: Members that pods and hosts serve together.
    """
    loaded = [name for name, found in hosted.items() if found is not None and found.status == "True"]
    waiting = [name for name, found in hosted.items() if found is not None and found.reason in _HOST_MOVES]
    resident = [*(one.key.name for one in members if one.is_resident), *loaded]
    moving = [one.key.name for one in members if turns.get(one.key) in {Turn.STARTS, Turn.WAITS}]
    moving += [*(one.key.name for one in members if one.replicas and one.ready_at is None), *waiting]
    leaving = [one.key.name for one in members if turns.get(one.key) in {Turn.LEAVES, Turn.CLOSES}]
    busy = [one.key.name for one in members if one.is_busy and one.key.name in leaving]
    ready = [one for one in members if one.replicas and one.ready_at is not None]
    phase = "Degraded" if unfit else "Swapping" if moving or leaving else "Ready" if ready or loaded else "Pending"
    lacks = "; ".join(f"{name}: {why}" for name, why in sorted(unfit.items()))
    hosts = f"{', '.join(sorted(mixed))}: pods and hosts serve it together, so it is always loaded on hosts"
    gpus, requests = f"GPUs: {pool.spec.gpu or 1}, used by {', '.join(resident)}", f"{', '.join(busy)} has requests"
    none_waits = "no member waits for requests of another to end"
    places = Reason.ALL_RESOLVED if hosted else Reason.KUBERNETES_GPU
    by_pods = "members on hosts take turns on each host" if hosted else "all members are served by pods"
    table = {
        "SlotAllocated": (bool(resident), (Reason.ALLOCATED, gpus), (Reason.IDLE, "no member is requested")),
        "MembersValid": (not unfit, (Reason.ALL_RESOLVED, "all members take turns"), (Reason.MISSING_MEMBERS, lacks)),
        "SwapDeferred": (bool(busy), (Reason.PODS_BUSY, requests), (Reason.NOT_DEFERRED, none_waits)),
        "MetalSupported": (not mixed, (places, by_pods), (Reason.METAL_MEMBERS_UNSUPPORTED, hosts)),
    }
    statements = [Statement(kind, holds, *(true if holds else false)) for kind, (holds, true, false) in table.items()]
    status = {
        "phase": phase,
        "residentMember": ", ".join(resident),
        "pendingMember": next(iter(moving), ""),
        "members": [
            {"name": name, "phase": phases.get(name, ""), "resident": name in resident} for name in pool.members
        ],
        "observedGeneration": pool.metadata.generation,
    }
    return status, statements
