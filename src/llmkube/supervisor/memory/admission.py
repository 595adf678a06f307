"""Which services start now, and which less important ones have to go for that. Pure.

Why one service may not start is decided in `refusal`, which engines go for it in `preemption`.
"""

import enum
from collections.abc import Sequence

import attrs

from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.preemption import stoppable_for, victims_of
from llmkube.supervisor.memory.refusal import Block, Refusal, judge, name_beside
from llmkube.supervisor.memory.reservation import Request, Reservation


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
    for request in sorted(queue, key=_turn):
        refusal = judge(request, host)
        if refusal is None and winner is not None and request.need.total_bytes > host.small_bytes:
            first = f"`{name_beside(winner.key, request.key)}` (priority {winner.spec.priority})"
            refusal = Refusal(Block.TURN, f"waits for {first}, for which memory is being freed")
        if refusal is None:
            admitted.append(request.key)
            host = host.with_promise(request)
            continue
        if refusal.block.lacks_room and winner is None:
            if judge(request, host.in_a_moment()) is None:
                winner, refusal = request, _soon(request, refusal, [each.key for each in host.leaving])
            elif request.may_displace and (victims := victims_of(request, host)):
                winner = request
                displaced += [Displacement(each.key, request.key, _because(request, each)) for each in victims]
                keys = [each.key for each in victims]
                host = host.with_leaving(keys)
                refusal = _soon(request, refusal, keys)
            else:
                refusal = _with_hint(request, refusal, host)
        refused.append((request.key, refusal))
    return Outcome(tuple(admitted), tuple(displaced), tuple(refused))


def replacement(request: Request, host: Capacity) -> Strategy | Refusal:
    """Return how the engine of a service is replaced by one with another need, or why the old one had better stay.

    An engine is not ended for one that would have to wait: an edit that asks for too much costs no request.
    """
    if request.need.sized and judge(request, host) is None:
        return Strategy.ROLLING_UPDATE
    alone = host.without([request.key])
    refusal = judge(request, alone)
    if refusal is None:
        return Strategy.RECREATE
    makes_room = request.may_displace and refusal.block.lacks_room and victims_of(request, alone)
    return Strategy.RECREATE if makes_room else _with_hint(request, refusal, alone)


def _turn(request: Request) -> tuple[int, bool, float, Key]:
    """The most important first, then who had been here before, then who has waited longest."""
    return -request.spec.rank, not request.returns, request.since, request.key


def _soon(request: Request, refusal: Refusal, keys: Sequence[Key]) -> Refusal:
    names = ", ".join(f"`{name_beside(key, request.key)}`" for key in keys)
    when = f"{names} {'has' if len(keys) == 1 else 'have'} ended" if keys else "the memory of an ended engine is back"
    return attrs.evolve(refusal, message=f"{refusal.message}; starts when {when}", room_bytes=None)


def _with_hint(request: Request, refusal: Refusal, host: Capacity) -> Refusal:
    """Say which engines a person could stop."""
    others = stoppable_for(request, host)
    if not others:
        return refusal
    names = ", ".join(_described(each, request.key, host.now) for each in others)
    return attrs.evolve(refusal, message=f"{refusal.message}; stopping {names} would make room")


def _described(engine: Reservation, beside: Key, now: float) -> str:
    """`draft` (priority low, idle 14m)."""
    facts, idle = [f"priority {engine.spec.priority}"], engine.idle_seconds(now)
    if idle >= 60:
        facts.append(f"idle {format_age(idle)}")
    return f"`{name_beside(engine.key, beside)}` ({', '.join(facts)})"


def _because(request: Request, victim: Reservation) -> str:
    winner, needs = name_beside(request.key, victim.key), format_bytes(request.need.total_bytes)
    return (
        f"Evicted to make room for {winner} (priority {request.spec.priority}, needs {needs}); "
        f"this service has priority {victim.spec.priority}"
    )
