"""Decide which services start now, and which others are displaced for them. Pure.

`refusal` decides why a service may not start, and `swap` which engines make room.
"""

import enum
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.resource import Key
from llmkube.runtimes import swap
from llmkube.runtimes.swap import SHARE_SECONDS, UNKNOWN, Resident, Waiting, cheapest_set
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.refusal import Block, Refusal, find_refusal, needed_bytes, relative_name
from llmkube.supervisor.memory.reservation import Request, Reservation, Role, Usage


def stoppable_for(request: Request, host: Capacity) -> tuple[Key, ...]:
    """Return the services that a person could stop for a request, none of them more important than it."""
    soon, needed = host.after_exits().pools_for([request]), needed_bytes(request, host)
    lacking = {pool: size - soon[pool] for pool, size in needed.items() if size > soon[pool]}
    others = [each for each in _residents(host) if each.rank <= request.spec.rank]
    sets = ([each for each in others if not each.pinned], others)
    found = [cheapest_set(each, lacking, host.costs, host.now) for each in sets]
    return tuple(each.key for each in found[0] or found[1])


def room_for(queue: Iterable[Request], host: Capacity) -> swap.Outcome:
    """Return the outcome of a swap step for these services, with the memory that is free once engines have exited."""
    requests = tuple(queue)
    waiting, free = [_waiting(each, host) for each in requests], host.after_exits().pools_for(requests)
    return swap.step(_residents(host), waiting, free, host.costs, host.now)


def excess_members(engines: Iterable[Reservation]) -> list[Key]:
    """Return the unused members to unload from ModelPools that have fewer GPUs than their members use."""
    used, excess = Counter[str](), list[Key]()
    for each in sorted(engines, key=lambda each: (each.is_unused, -each.spec.rank, -each.busy_at)):
        if each.spec.pool is not None and not each.is_exiting and each.role is Role.SERVING:
            used[each.spec.pool.name] += each.spec.pool.gpus
            if each.is_unused and not each.spec.protected and used[each.spec.pool.name] > each.spec.pool.limit:
                used[each.spec.pool.name] -= each.spec.pool.gpus
                excess.append(each.key)
    return excess


def _engines(host: Capacity) -> dict[Key, Reservation]:
    """Return the engine of each service that is not exiting; a successor is stopped together with it."""
    return {each.key: each for each in host.reservations if not each.is_exiting and each.role is not Role.SUCCESSOR}


def _residents(host: Capacity) -> list[Resident]:
    return [_resident(each, host) for each in _engines(host).values()]


def _resident(engine: Reservation, host: Capacity) -> Resident:
    spec, usage, door = engine.spec, engine.usage, host.closed.get(engine.key)
    uses = usage.requests - (usage.held if door is not None else 0)
    if spec.on_request and engine.loaded_at is None:
        uses = max(uses, 1)  # it would never finish loading
    both = [each for each in host.reservations if each.key == engine.key and not each.is_exiting]
    total, pools = sum(each.total_bytes for each in both), [each.need.pools for each in both]
    devices = {name: sum(each.get(name, 0) for each in pools) for name in host.budget.pools}
    size, pinned = {"budget": total, "headroom": total, **devices}, spec.protected or spec.pinned or usage.pinned
    size |= {spec.pool.name: spec.pool.gpus} if spec.pool is not None else {}
    closed_at, used_at = door.since if door is not None else None, max(engine.busy_at, usage.used_at)
    there = Resident(engine.key, size, spec.rank, spec.on_request, pinned, uses, closed_at, used_at=used_at)
    swaps = _fewest_swaps(host, usage, host.now - SHARE_SECONDS)
    return attrs.evolve(there, loaded_at=engine.loaded_at, swaps=swaps, peers=spec.pool.name if spec.pool else "")


def _waiting(request: Request, host: Capacity) -> Waiting:
    spec, usage, size = request.spec, request.usage, needed_bytes(request, host)
    since, first = min(request.since, usage.held_since), usage.awaited or request.returns
    requests, displaces = usage.requests, request.may_displace
    swaps = _fewest_swaps(host, usage, math.inf)
    one = Waiting(request.key, size, since, spec.rank, spec.on_request, requests, first, displaces, swaps)
    if (pool := spec.pool) is None:
        return one
    return attrs.evolve(one, patience_seconds=pool.patience_seconds, peers=pool.name, ranked=pool.ranked)


def _fewest_swaps(host: Capacity, usage: Usage, since: float) -> float:
    """Return the least number of swaps of those tenants whose last request has not ended before `since`."""
    found = [host.swaps.get(name, UNKNOWN).recent_loads(host.now) for name, at in usage.tenants.items() if at >= since]
    return min(found, default=math.nan)


class Strategy(enum.Enum):
    """The method by which an engine is replaced by one with another plan."""

    ROLLING_UPDATE = "RollingUpdate"  # the host holds both: the old engine serves until the new one answers
    RECREATE = "Recreate"  # the new engine starts when the old one has exited


@attrs.frozen
class Displacement:
    """A service that is displaced, and the one that needs its memory."""

    victim: Key
    winner: Key
    why: str


@attrs.frozen
class Outcome:
    """Decision for the services that wait.

    Attributes:
        admitted: Services that start.
        displaced: Services that are displaced for others.
        room: Residents that make room, and for which service.
        refused: The refusals of those that wait.
    """

    admitted: tuple[Key, ...] = ()
    displaced: tuple[Displacement, ...] = ()
    room: swap.Outcome = swap.Outcome()
    refused: tuple[tuple[Key, Refusal], ...] = ()


def step(queue: Sequence[Request], host: Capacity) -> Outcome:
    """Decide about every waiting service, the most important first.

    A service that does not fit does not block the others, unless memory is being freed for it, or promised to it.
    """
    admitted: list[Key] = []
    displaced: list[Displacement] = []
    refused: list[tuple[Key, Refusal]] = []
    found = {each.key: find_refusal(each, host) for each in queue}
    able = [each for each in queue if (why := found[each.key]) is None or why.block.lacks_memory]
    room, engines = room_for(able, host), _engines(host)
    exits = [each.key for each in host.exiting] + [*room.displaced]
    is_freeing = bool(exits or host.releasing_bytes)
    by_key = {each.key: each for each in queue}
    ordered = [by_key[each.key] for each in swap.in_order([_waiting(each, host) for each in queue], host.now)]
    promised = next((each for each in ordered if each.key in room.closed.values()), None)
    winner: Request | None = None
    for request in ordered:
        key, refusal = request.key, find_refusal(request, host)
        before = winner or (promised if key not in room.started else None)
        if refusal is None and before is not None and request.need.total_bytes > host.small_bytes:
            first = f"`{relative_name(before.key, key)}` (priority {before.spec.priority})"
            refusal = Refusal(Block.TURN, f"waits for {first}, for which memory is being freed")
        if refusal is None:
            admitted.append(key)
            host = host.with_reservation(request)
            continue
        if refusal.block.lacks_memory:
            victims = [victim for victim, other in room.displaced.items() if other == key]
            drained = tuple(each for each, other in room.closed.items() if other == key)
            if victims or (key in room.started and is_freeing):
                winner = winner or request
                displaced += [
                    Displacement(each, key, _displacement_message(request, engines[each])) for each in victims
                ]
                refusal = _with_expected_start(request, refusal, victims or exits)
            elif drained:
                message = f"{refusal.message}; starts when the requests of {_names(drained, key)} have ended"
                refusal = attrs.evolve(refusal, message=message, fit_bytes=None, awaited=drained)
            elif key in room.delayed:
                seconds, until = math.ceil(room.delayed[key] - host.now), room.delayed[key]
                message = f"{refusal.message}; the swap is delayed by {seconds} s, to avoid frequent reloads"
                refusal = attrs.evolve(refusal, message=message, until=until)
            elif winner is None:
                refusal = _with_hint(request, refusal, host)
        refused.append((key, refusal))
    return Outcome(tuple(admitted), tuple(displaced), room, tuple(refused))


def replacement(request: Request, host: Capacity) -> Strategy | Refusal:
    """Return how to replace the engine of a service by one with another need, or why the old one should stay.

    An engine is not stopped for one that would have to wait: an edit that needs too much memory fails no request.
    """
    if request.need.sized and find_refusal(request, host) is None:
        return Strategy.ROLLING_UPDATE
    alone = host.without([request.key])
    refusal = find_refusal(request, alone)
    if refusal is None:
        return Strategy.RECREATE
    can_displace = refusal.block.lacks_memory and room_for([request], alone).displaced
    return Strategy.RECREATE if can_displace else _with_hint(request, refusal, alone)


def _with_expected_start(request: Request, refusal: Refusal, keys: Sequence[Key]) -> Refusal:
    names = f"{_names(keys, request.key)} {'has' if len(keys) == 1 else 'have'} exited"
    when = names if keys else "memory of an exited engine is released"
    return attrs.evolve(refusal, message=f"{refusal.message}; starts when {when}", fit_bytes=None, awaited=tuple(keys))


def _names(keys: Sequence[Key], other: Key) -> str:
    return ", ".join(f"`{relative_name(key, other)}`" for key in keys)


def _with_hint(request: Request, refusal: Refusal, host: Capacity) -> Refusal:
    """Add the engines that a person could stop."""
    others = stoppable_for(request, host) if refusal.block.lacks_memory else ()
    if not others:
        return refusal
    names = ", ".join(_described(_engines(host)[each], request.key, host.now) for each in others)
    return attrs.evolve(refusal, message=f"{refusal.message}; stopping {names} would make room")


def _described(engine: Reservation, other: Key, now: float) -> str:
    """Return, for example, "`draft` (priority low, idle 14m)"."""
    facts, idle = [f"priority {engine.spec.priority}"], engine.idle_seconds(now)
    if idle >= 60:
        facts.append(f"idle {format_age(idle)}")
    return f"`{relative_name(engine.key, other)}` ({', '.join(facts)})"


def _displacement_message(request: Request, victim: Reservation) -> str:
    winner, needs = relative_name(request.key, victim.key), format_bytes(request.need.total_bytes)
    if victim.spec.on_request:
        return f"Unloaded to make room for {winner} (needs {needs}); the next request loads it"
    return (
        f"Stopped to make room for {winner} (priority {request.spec.priority}, needs {needs}); "
        f"this service has priority {victim.spec.priority}"
    )
