"""Decide which services start now, and which less important ones are displaced for them. Pure.

`refusal` decides why a service may not start. Engines are displaced only if that lets the more important service start,
and then the cheapest set of them.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.refusal import Block, Refusal, find_refusal, relative_name
from llmkube.supervisor.memory.reservation import Request, Reservation, Role

BUSY_SECONDS: Final = 300.0
"""An engine that worked more recently than this is in use: stopping it affects its users."""


def victims_of(request: Request, host: Capacity) -> tuple[Reservation, ...]:
    """Return the engines to displace for a request; none if that would not be enough."""
    return _cheapest_for(request, host, [each for each in _stoppable(host) if each.gives_way_to(request)])


def stoppable_for(request: Request, host: Capacity) -> tuple[Reservation, ...]:
    """Return the engines that a person could stop for a request, none of them more important than it."""
    return _cheapest_for(request, host, [each for each in _stoppable(host) if each.spec.rank <= request.spec.rank])


def cheapest_set(
    candidates: Iterable[Reservation], enough: Callable[[Sequence[Key]], bool], now: float
) -> tuple[Reservation, ...]:
    """Return the cheapest set of engines that is enough; none if all candidates together are not enough.

    Candidates are added in ascending order of cost: unused ones, priority, idle before busy, load time, size. Then
    every engine without which the set is still enough is removed again, the most expensive first.
    """
    chosen: list[Reservation] = []
    for each in sorted(candidates, key=lambda one: _cost(one, now)):
        chosen.append(each)
        if enough([one.key for one in chosen]):
            break
    else:
        return ()
    for each in reversed(chosen[:-1]):
        rest = [one for one in chosen if one is not each]
        if enough([one.key for one in rest]):
            chosen = rest
    return tuple(chosen)


def _cheapest_for(request: Request, host: Capacity, candidates: list[Reservation]) -> tuple[Reservation, ...]:
    soon = host.after_exits()  # engines that are already exiting will be gone as well
    return cheapest_set(candidates, lambda keys: find_refusal(request, soon.without(keys)) is None, host.now)


def _stoppable(host: Capacity) -> list[Reservation]:
    """Return one engine per service: a successor is stopped together with the engine that it would replace."""
    staying = (each for each in host.reservations if not each.exits_in_time(host.now))
    return [each for each in staying if each.role is not Role.SUCCESSOR]


def _cost(engine: Reservation, now: float) -> tuple[bool, bool, int, bool, float, int, Key]:
    busy = engine.idle_seconds(now) < BUSY_SECONDS
    return (
        engine.spec.protected,
        not engine.is_unused,
        engine.spec.rank,
        busy,
        engine.load_seconds,
        engine.total_bytes,
        engine.key,
    )


class Strategy(enum.Enum):
    """The method by which an engine is replaced by one with another plan."""

    ROLLING_UPDATE = "RollingUpdate"  # the host holds both: the old engine serves until the new one answers
    RECREATE = "Recreate"  # the new engine starts when the old one has exited


@attrs.frozen
class Displacement:
    """A service that is displaced, and the more important one that needs its memory."""

    victim: Key
    winner: Key
    why: str


@attrs.frozen
class Outcome:
    """Services that start, services that are displaced for others, and the refusals of those that wait."""

    admitted: tuple[Key, ...] = ()
    displaced: tuple[Displacement, ...] = ()
    refused: tuple[tuple[Key, Refusal], ...] = ()


def step(queue: Sequence[Request], host: Capacity) -> Outcome:
    """Decide about every waiting service, the most important first.

    A service that does not fit does not block the others, unless engines are already exiting for it: their memory is
    spoken for.
    """
    admitted: list[Key] = []
    displaced: list[Displacement] = []
    refused: list[tuple[Key, Refusal]] = []
    winner: Request | None = None
    for request in sorted(queue, key=_queue_order):
        refusal = find_refusal(request, host)
        if refusal is None and winner is not None and request.need.total_bytes > host.small_bytes:
            first = f"`{relative_name(winner.key, request.key)}` (priority {winner.spec.priority})"
            refusal = Refusal(Block.TURN, f"waits for {first}, for which memory is being freed")
        if refusal is None:
            admitted.append(request.key)
            host = host.with_reservation(request)
            continue
        if refusal.block.lacks_memory and winner is None:
            if find_refusal(request, host.after_exits()) is None:
                winner, refusal = request, _with_expected_start(request, refusal, [each.key for each in host.exiting])
            elif request.may_displace and (victims := victims_of(request, host)):
                winner = request
                displaced += [
                    Displacement(each.key, request.key, _displacement_message(request, each)) for each in victims
                ]
                keys = [each.key for each in victims]
                host = host.with_exiting(keys)
                refusal = _with_expected_start(request, refusal, keys)
            else:
                refusal = _with_hint(request, refusal, host)
        refused.append((request.key, refusal))
    return Outcome(tuple(admitted), tuple(displaced), tuple(refused))


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
    can_displace = request.may_displace and refusal.block.lacks_memory and victims_of(request, alone)
    return Strategy.RECREATE if can_displace else _with_hint(request, refusal, alone)


def _queue_order(request: Request) -> tuple[int, bool, float, Key]:
    """Order by priority, then services that return after an eviction, then the longest wait."""
    return -request.spec.rank, not request.returns, request.since, request.key


def _with_expected_start(request: Request, refusal: Refusal, keys: Sequence[Key]) -> Refusal:
    names = ", ".join(f"`{relative_name(key, request.key)}`" for key in keys)
    when = f"{names} {'has' if len(keys) == 1 else 'have'} exited" if keys else "memory of an exited engine is released"
    return attrs.evolve(refusal, message=f"{refusal.message}; starts when {when}", fit_bytes=None)


def _with_hint(request: Request, refusal: Refusal, host: Capacity) -> Refusal:
    """Add the engines that a person could stop."""
    others = stoppable_for(request, host)
    if not others:
        return refusal
    names = ", ".join(_described(each, request.key, host.now) for each in others)
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
        f"Evicted to make room for {winner} (priority {request.spec.priority}, needs {needs}); "
        f"this service has priority {victim.spec.priority}"
    )
