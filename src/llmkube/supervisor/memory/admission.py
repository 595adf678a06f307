"""Which services start now, and which less important ones have to go for that. Pure.

Why one service may not start is decided in `refusal`. The engines that end
so that a more important service may start are the cheapest set, and none for nothing.
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
"""An engine that had work more recently than this is in use, and costs its users something when it ends."""


def victims_of(request: Request, host: Capacity) -> tuple[Reservation, ...]:
    """Return the less important engines that end for a request; none if that would not be enough."""
    rank = request.spec.rank
    lower = [each for each in _stoppable(host) if each.spec.rank < rank and not each.spec.protected]
    return _cheapest_for(request, host, lower)


def stoppable_for(request: Request, host: Capacity) -> tuple[Reservation, ...]:
    """Return the engines that a person could stop for a request; never a more important one."""
    return _cheapest_for(request, host, [each for each in _stoppable(host) if each.spec.rank <= request.spec.rank])


def cheapest(
    candidates: Iterable[Reservation], enough: Callable[[Sequence[Key]], bool], now: float
) -> tuple[Reservation, ...]:
    """Return the engines whose end would be enough and costs least; none if all of them together are not enough.

    The least important go first, of equals those without work, then those that load quickly, then the smallest. Of the
    set that is found so, an engine that is not needed for the sum stays, the most costly first.
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
    soon = host.after_exits()  # with the victims end those that are on their way out already
    return cheapest(candidates, lambda keys: find_refusal(request, soon.without(keys)) is None, host.now)


def _stoppable(host: Capacity) -> list[Reservation]:
    """Each service once: a successor goes with the engine that it is to replace."""
    staying = (each for each in host.reservations if not each.exits_in_time(host.now))
    return [each for each in staying if each.role is not Role.SUCCESSOR]


def _cost(engine: Reservation, now: float) -> tuple[bool, int, bool, float, int, Key]:
    busy = engine.idle_seconds(now) < BUSY_SECONDS
    return engine.spec.protected, engine.spec.rank, busy, engine.load_seconds, engine.total_bytes, engine.key


class Strategy(enum.Enum):
    """How an engine gives way to one of another plan."""

    ROLLING_UPDATE = "RollingUpdate"  # the host holds both: the old one serves until the new one answers
    RECREATE = "Recreate"  # the new one starts when the old one has ended


@attrs.frozen
class Displacement:
    """One service that has to go, and the more important one for which it goes."""

    victim: Key
    winner: Key
    why: str


@attrs.frozen
class Outcome:
    """Which services start, which have to go for it, and why the others wait."""

    admitted: tuple[Key, ...] = ()
    displaced: tuple[Displacement, ...] = ()
    refused: tuple[tuple[Key, Refusal], ...] = ()


def step(queue: Sequence[Request], host: Capacity) -> Outcome:
    """Decide about every service that waits, the most important first.

    One that does not fit holds up no other, unless engines are already on their way out for it: that room is taken.
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
    """Return how the engine of a service is replaced by one with another need, or why the old one had better stay.

    An engine is not ended for one that would have to wait: an edit that asks for too much costs no request.
    """
    if request.need.sized and find_refusal(request, host) is None:
        return Strategy.ROLLING_UPDATE
    alone = host.without([request.key])
    refusal = find_refusal(request, alone)
    if refusal is None:
        return Strategy.RECREATE
    makes_room = request.may_displace and refusal.block.lacks_memory and victims_of(request, alone)
    return Strategy.RECREATE if makes_room else _with_hint(request, refusal, alone)


def _queue_order(request: Request) -> tuple[int, bool, float, Key]:
    """The most important first, then who had been here before, then who has waited longest."""
    return -request.spec.rank, not request.returns, request.since, request.key


def _with_expected_start(request: Request, refusal: Refusal, keys: Sequence[Key]) -> Refusal:
    names = ", ".join(f"`{relative_name(key, request.key)}`" for key in keys)
    when = f"{names} {'has' if len(keys) == 1 else 'have'} ended" if keys else "the memory of an ended engine is back"
    return attrs.evolve(refusal, message=f"{refusal.message}; starts when {when}", fit_bytes=None)


def _with_hint(request: Request, refusal: Refusal, host: Capacity) -> Refusal:
    """Say which engines a person could stop."""
    others = stoppable_for(request, host)
    if not others:
        return refusal
    names = ", ".join(_described(each, request.key, host.now) for each in others)
    return attrs.evolve(refusal, message=f"{refusal.message}; stopping {names} would make room")


def _described(engine: Reservation, other: Key, now: float) -> str:
    """`draft` (priority low, idle 14m)."""
    facts, idle = [f"priority {engine.spec.priority}"], engine.idle_seconds(now)
    if idle >= 60:
        facts.append(f"idle {format_age(idle)}")
    return f"`{relative_name(engine.key, other)}` ({', '.join(facts)})"


def _displacement_message(request: Request, victim: Reservation) -> str:
    winner, needs = relative_name(request.key, victim.key), format_bytes(request.need.total_bytes)
    return (
        f"Evicted to make room for {winner} (priority {request.spec.priority}, needs {needs}); "
        f"this service has priority {victim.spec.priority}"
    )
