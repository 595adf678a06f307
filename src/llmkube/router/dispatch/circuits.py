"""Circuit breakers of backends: an immutable value and its transitions, by a given clock.

A failure that may be the request's own, such as an answer with status 500, opens the circuit for that tenant only; for
all tenants it opens after such failures of two tenants. One that does not depend on a request, such as a refused
connection, opens it for all.

```
closed ──failures in a row──▶ open until T ──T──▶ half-open: one request goes through ──success──▶ closed
                                 ▲                        │
                                 └──────failure, doubled──┘
```
"""

import enum
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.base.backoff import Backoff

MAX_PAUSE_SECONDS: Final = 300.0

FAILURES: Final = 3
"""Consecutive failures that open a circuit."""

MAX_OF_TENANTS: Final = 10_000
"""Limit for circuits of one tenant; the one that failed longest ago is dropped."""

_AT_ONCE: Final = 5e-324
"""End of a pause that is over at any time of the clock."""


class State(enum.Enum):
    """State of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


def pauses_of(first_seconds: float) -> Backoff:
    """Return the pauses by the number of consecutive openings, given the first."""
    return Backoff(base_seconds=first_seconds, cap_seconds=max(first_seconds, MAX_PAUSE_SECONDS))


@attrs.frozen
class Circuit:
    """Circuit breaker of one backend.

    Attributes:
        failures: Consecutive failures.
        opened: Consecutive openings.
        open_until: End of the pause; 0 while closed.
        probing: Whether the one request of the half-open state is in flight.
        unhealthy: Reasons why the backend is unhealthy, by check: a probe, or the engine watch.
        tenants: Tenants of the failures that may be the request's own; at most two are kept.
    """

    failures: int = 0
    opened: int = 0
    open_until: float = 0.0
    probing: bool = False
    unhealthy: Mapping[str, str] = attrs.field(factory=dict)
    tenants: frozenset[str] = frozenset()

    def state(self, now: float) -> State:
        """Return the state at a time."""
        if self.unhealthy:
            return State.OPEN
        if not self.open_until:
            return State.CLOSED
        return State.OPEN if now < self.open_until else State.HALF_OPEN

    def admit(self, now: float) -> tuple["Circuit", bool]:
        """Return the circuit after a request, and whether the request may go through."""
        state = self.state(now)
        if state is State.CLOSED:
            return self, True
        if state is State.OPEN or self.probing:
            return self, False
        return attrs.evolve(self, probing=True), True

    def abandoned(self) -> "Circuit":
        """Return the circuit after a request ended without a result: another one may go through."""
        return attrs.evolve(self, probing=False) if self.probing else self

    def began(self) -> "Circuit":
        """Return the circuit after a stream has started: further requests may go through.

        Failures are not reset, so that the stream adds to them if it breaks off.
        """
        return attrs.evolve(self, open_until=0.0, probing=False) if self.open_until or self.probing else self

    def succeeded(self) -> "Circuit":
        """Return the circuit after a complete answer."""
        known = self.failures or self.opened or self.open_until or self.probing
        return Circuit(unhealthy=self.unhealthy) if known else self

    def failed(self, now: float, pauses: Backoff, rng: random.Random, tenant: str | None = None) -> "Circuit":
        """Return the circuit after a failure; `tenant` is given if it may be the request's own."""
        failures, tenants = self.failures + 1, self.tenants
        if tenant is not None and len(tenants) < 2:
            tenants |= {tenant}
        is_evidence = tenant is None or len(tenants) > 1
        if self.state(now) is not State.OPEN and not (
            is_evidence and (failures >= FAILURES or self.state(now) is State.HALF_OPEN)
        ):
            return attrs.evolve(self, failures=failures, tenants=tenants, probing=False)
        if self.state(now) is State.OPEN:
            return attrs.evolve(self, failures=failures)  # the request was sent before the circuit opened
        opened = self.opened + 1
        until = now + pauses.delay(opened, rng)
        return Circuit(failures, opened, until, unhealthy=self.unhealthy, tenants=tenants)

    def checked(self, by: str, why: str, now: float) -> "Circuit":
        """Return the circuit after the health check `by`; `why` is the reason if it failed, else "".

        A backend that becomes healthy again is half-open first.
        """
        unhealthy = {name: each for name, each in self.unhealthy.items() if name != by} | ({by: why} if why else {})
        if unhealthy or not self.unhealthy:
            return attrs.evolve(self, unhealthy=unhealthy)
        return attrs.evolve(self, unhealthy={}, open_until=max(self.open_until, now, _AT_ONCE), probing=False)

    def rate_limited(self, now: float, seconds: float) -> "Circuit":
        """Return the circuit after the backend sent a retry delay."""
        return attrs.evolve(self, open_until=max(self.open_until, now + seconds), probing=False)


@attrs.define(eq=False)
class Circuits:
    """Circuits of all backends, by name.

    Attributes:
        pauses: Pauses of circuits that open.
        rng: Source of jitter.
    """

    pauses: Backoff
    rng: random.Random
    _by_name: dict[str, Circuit] = attrs.field(factory=dict)
    _by_tenant: OrderedDict[tuple[str, str], Circuit] = attrs.field(factory=OrderedDict)

    def of(self, name: str, tenant: str | None = None) -> Circuit:
        """Return the circuit of a backend: the one for all tenants, or for one tenant."""
        return self._by_name.get(name, _CLOSED) if tenant is None else self._by_tenant.get((name, tenant), _CLOSED)

    def open_until(self, name: str, tenant: str) -> float:
        """Return when the pause of a backend for a tenant ends; 0 without one."""
        return max(self.of(name).open_until, self.of(name, tenant).open_until)

    def is_open(self, name: str, tenant: str, now: float) -> bool:
        """Return whether a backend gets no requests of a tenant now."""
        return State.OPEN in (self.of(name).state(now), self.of(name, tenant).state(now))

    def admit(self, name: str, tenant: str, now: float) -> bool:
        """Return whether a request may go to a backend; if so, its result must be reported by `apply` or `failed`."""
        shared, own = self.of(name), self.of(name, tenant)
        if shared is _CLOSED and own is _CLOSED:
            return True
        (shared, shared_admits), (own, own_admits) = shared.admit(now), own.admit(now)
        if not (shared_admits and own_admits):
            return False
        self.put(name, shared)
        self._put_own(name, tenant, own)
        return True

    def put(self, name: str, circuit: Circuit) -> None:
        """Replace the circuit of a backend."""
        if circuit is not _CLOSED or name in self._by_name:
            self._by_name[name] = circuit

    def apply(self, name: str, tenant: str, change: Callable[[Circuit], Circuit]) -> None:
        """Record a result of a tenant's request that is no failure."""
        self.put(name, change(self.of(name)))
        if (own := self.of(name, tenant)) is not _CLOSED:
            self._put_own(name, tenant, change(own))

    def failed(self, name: str, tenant: str, now: float, *, is_own: bool) -> None:
        """Record a failure of a backend; `is_own` if it may be the request's own."""
        self.put(name, self.of(name).failed(now, self.pauses, self.rng, tenant if is_own else None))
        if is_own:
            self._put_own(name, tenant, self.of(name, tenant).failed(now, self.pauses, self.rng))
            self._by_tenant.move_to_end((name, tenant))
            while len(self._by_tenant) > MAX_OF_TENANTS:
                self._by_tenant.popitem(last=False)

    def _put_own(self, name: str, tenant: str, circuit: Circuit) -> None:
        if circuit != _CLOSED:
            self._by_tenant[name, tenant] = circuit
        else:
            self._by_tenant.pop((name, tenant), None)

    def keep_only(self, names: frozenset[str]) -> None:
        """Forget backends that were removed, or replaced under the same name."""
        self._by_name = {name: circuit for name, circuit in self._by_name.items() if name in names}
        for key in [key for key in self._by_tenant if key[0] not in names]:
            del self._by_tenant[key]


_CLOSED = Circuit()


_EWMA_WEIGHT: Final = 0.2


@attrs.define(eq=False)
class BackendStats:
    """Load and latency of backends, by name.

    Attributes:
        in_flight: Requests in flight, including those in a queue.
        first_byte_seconds: Time to the first byte: a moving average in which the newest value has a weight of a fifth.
    """

    in_flight: Counter[str] = attrs.field(factory=Counter)
    first_byte_seconds: dict[str, float] = attrs.field(factory=dict)

    def began(self, backend: str, seconds: float) -> None:
        """Record the time to the first byte of an answer."""
        before = self.first_byte_seconds.get(backend, seconds)
        self.first_byte_seconds[backend] = before + _EWMA_WEIGHT * (seconds - before)
