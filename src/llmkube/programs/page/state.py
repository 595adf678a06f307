"""State that the page shows, as JSON values. Pure."""

from collections import Counter, deque
from typing import Any, Final

import attrs

from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.memory.reservation import Request, Reservation
from llmkube.supervisor.values.lifecycle import ServiceView

RATE_SECONDS: Final = 10.0
"""Interval of the points of a plot."""
RATE_POINTS: Final = 360
"""Points of a plot: one hour."""

State = dict[str, Any]
"""Values of JSON by name; the members of `services` are those of one service each."""


def memory_state(view: MemoryView | None, now: float) -> State | None:
    """Return the memory of a host: its budget, the engines that hold parts of it, and the services that wait for some.

    Sizes are in bytes. `mayGo` is true for engines that may be unloaded for another service once they are idle: they
    are loaded on request, and neither protected nor pinned.

    Args:
        view: The memory; None while it is not watched.
        now: The monotonic clock.
    """
    if view is None:
        return None
    return {
        "level": view.level.name.lower(),
        "why": view.sample.why,
        "total": view.sample.total_bytes,
        "available": view.sample.available_bytes,
        "budget": view.budget.limit_bytes,
        "source": view.budget.source,
        "free": view.free_bytes,
        "unreturned": view.unreturned_bytes,
        "devices": dict(view.budget.pools),
        "engines": [_engine(each, now) for each in view.reservations],
        "waiting": [_waiting(each) for each in view.requests],
    }


def _engine(reservation: Reservation, now: float) -> State:
    spec, state = reservation.spec, reservation.role.value
    is_pinned = spec.pinned or reservation.usage.pinned
    if reservation.exit_deadline is not None:
        state = "exiting"
    elif reservation.loaded_at is None:
        state = "loading"
    return {
        "service": str(reservation.key),
        "reserved": reservation.need.total_bytes,
        "held": reservation.resident_bytes if reservation.measured else None,
        "devices": {name: size for name, size in reservation.need.pools.items() if size},
        "state": state,
        "priority": spec.priority,
        "pinned": is_pinned,
        "protected": spec.protected,
        "requests": reservation.usage.requests,
        # A busy engine has no idle time; rounded, so that an idle one is not sent again each second.
        "idle": 0 if reservation.usage.requests else 10 * round((now - reservation.busy_at) / 10),
        "mayGo": spec.on_request and not (spec.protected or is_pinned),
    }


def _waiting(request: Request) -> State:
    return {"service": str(request.key), "needs": request.need.total_bytes, "priority": request.spec.priority}


def engine_state(view: ServiceView | None) -> State:
    """Return the members of a service's state that only its host knows."""
    if view is None:
        return {"restarts": 0, "onRequest": False, "loaded": False, "aliases": [], "detail": ""}
    return {
        "restarts": view.restarts,
        "onRequest": view.on_request,
        "loaded": view.pid is not None,
        "aliases": list(view.aliases),
        "detail": view.closed or view.message,
        "givenUp": list(view.given_up),
        "loadSeconds": round(view.load_seconds, 1),
    }


@attrs.define(eq=False)
class Rates:
    """Tokens per second of services over the last hour, one point for each `RATE_SECONDS`, and the context in use."""

    _contexts: dict[str, int] = attrs.field(factory=dict)
    _made: Counter[str] = attrs.field(factory=Counter)
    _points: dict[str, deque[float]] = attrs.field(factory=dict)

    def record(self, service: str, tokens: int, prompt: int = 0) -> None:
        """Add the tokens of an answer that has ended to the current point; its prompt is in the context too."""
        self._made[service] += tokens
        self._contexts[service] = prompt + tokens

    def end_point(self) -> None:
        """End the current point; call it every `RATE_SECONDS`."""
        for service in {*self._made, *self._points}:
            points = self._points.setdefault(service, deque(maxlen=RATE_POINTS))
            points.append(round(self._made[service] / RATE_SECONDS, 2))
            if not any(points):
                del self._points[service]
        self._made.clear()

    def of(self, service: str) -> list[float]:
        """Return the points of a service, the oldest first; none if it generated nothing in the last hour."""
        return list(self._points.get(service, ()))

    def state_of(self, service: str) -> State:
        """Return the members of a service's state from its answers; `used` are the tokens of the last one."""
        points, used = self.of(service), self._contexts.get(service)
        return ({"rates": points} if points else {}) | ({"used": used} if used else {})


def changed_members(before: State, after: State) -> State:
    """Return the members that turn one state into another: RFC 7396's merge patch, one level deep for `services`."""
    patch = {name: value for name, value in after.items() if name != "services" and before.get(name) != value}
    patch |= dict.fromkeys(before.keys() - after.keys())
    old, new = before.get("services", {}), after.get("services", {})
    services = {key: value for key, value in new.items() if old.get(key) != value}
    services |= dict.fromkeys(old.keys() - new.keys())
    return patch | ({"services": services} if services else {})
