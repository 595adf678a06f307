"""Which engines end so that a more important service may start: the cheapest set, and none for nothing. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.refusal import judge
from llmkube.supervisor.memory.reservation import Request, Reservation, Role

BUSY_SECONDS: Final = 300.0
"""An engine that had work more recently than this is in use, and costs its users something when it ends."""


def victims_of(request: Request, host: Capacity) -> tuple[Reservation, ...]:
    """Return the less important engines that end for a request; none if that would not be enough."""
    rank = request.spec.rank
    lower = [each for each in _movable(host) if each.spec.rank < rank and not each.spec.protected]
    return _cheapest_for(request, host, lower)


def stoppable_for(request: Request, host: Capacity) -> tuple[Reservation, ...]:
    """Return the engines that a person could stop for a request; never a more important one."""
    return _cheapest_for(request, host, [each for each in _movable(host) if each.spec.rank <= request.spec.rank])


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
    soon = host.in_a_moment()  # with the victims end those that are on their way out already
    return cheapest(candidates, lambda keys: judge(request, soon.without(keys)) is None, host.now)


def _movable(host: Capacity) -> list[Reservation]:
    """Each service once: a successor goes with the engine that it is to replace."""
    staying = (each for each in host.reservations if not each.leaves_in_time(host.now))
    return [each for each in staying if each.role is not Role.SUCCESSOR]


def _cost(engine: Reservation, now: float) -> tuple[bool, int, bool, float, int, Key]:
    busy = engine.idle_seconds(now) < BUSY_SECONDS
    return engine.spec.protected, engine.spec.rank, busy, engine.load_seconds, engine.total_bytes, engine.key
