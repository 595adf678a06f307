"""Circuit breakers of backends: an immutable value and its transitions, by a given clock.

```
closed ──failures in a row──▶ open until T ──T──▶ half-open: one request goes through ──success──▶ closed
                                 ▲                        │
                                 └──────failure, doubled──┘
```
"""

import enum
import random
from collections import Counter
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.backoff import Backoff

MAX_PAUSE_SECONDS: Final = 300.0

_AT_ONCE: Final = 5e-324
"""End of a pause that is over at any time of the clock."""


class State(enum.Enum):
    """State of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@attrs.frozen
class CircuitPolicy:
    """When circuits open, and for how long.

    Attributes:
        failures: Consecutive failures that open a circuit.
        backoff: Pause by the number of consecutive openings.
    """

    failures: int = 3
    backoff: Backoff = Backoff(base_seconds=15.0, cap_seconds=MAX_PAUSE_SECONDS)

    @classmethod
    def of(cls, first_pause_seconds: float) -> "CircuitPolicy":
        """Return the policy with this first pause."""
        cap = max(first_pause_seconds, MAX_PAUSE_SECONDS)
        return cls(backoff=Backoff(base_seconds=first_pause_seconds, cap_seconds=cap))


@attrs.frozen
class Circuit:
    """Circuit breaker of one backend.

    Attributes:
        failures: Consecutive failures.
        opened: Consecutive openings.
        open_until: End of the pause; 0 while closed.
        probing: Whether the one request of the half-open state is in flight.
        unhealthy: Reasons why the backend is unhealthy, by check: a probe, or the engine watch.
    """

    failures: int = 0
    opened: int = 0
    open_until: float = 0.0
    probing: bool = False
    unhealthy: Mapping[str, str] = attrs.field(factory=dict)

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
        return attrs.evolve(self, probing=False)

    def began(self) -> "Circuit":
        """Return the circuit after a stream has started: further requests may go through.

        Failures are not reset, so that the stream adds to them if it breaks off.
        """
        return attrs.evolve(self, open_until=0.0, probing=False)

    def succeeded(self) -> "Circuit":
        """Return the circuit after a complete answer."""
        known = self.failures or self.opened or self.open_until or self.probing
        return Circuit(unhealthy=self.unhealthy) if known else self

    def failed(self, now: float, policy: CircuitPolicy, rng: random.Random) -> "Circuit":
        """Return the circuit after a failure."""
        failures = self.failures + 1
        if self.state(now) is State.CLOSED and failures < policy.failures:
            return attrs.evolve(self, failures=failures, probing=False)
        if self.state(now) is State.OPEN:
            return attrs.evolve(self, failures=failures)  # the request was sent before the circuit opened
        opened = self.opened + 1
        return Circuit(failures, opened, now + policy.backoff.delay(opened, rng), unhealthy=self.unhealthy)

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
        rng: Source of jitter.
    """

    policy: CircuitPolicy
    rng: random.Random
    _by_name: dict[str, Circuit] = attrs.field(factory=dict)

    def of(self, name: str) -> Circuit:
        """Return the circuit of a backend."""
        return self._by_name.get(name, _CLOSED)

    def admit(self, name: str, now: float) -> bool:
        """Return whether a request may go to a backend; if so, its result must be reported by `put` or `failed`."""
        if (circuit := self.of(name)) is _CLOSED:
            return True
        self._by_name[name], is_admitted = circuit.admit(now)
        return is_admitted

    def put(self, name: str, circuit: Circuit) -> None:
        """Replace the circuit of a backend."""
        if circuit is not _CLOSED or name in self._by_name:
            self._by_name[name] = circuit

    def failed(self, name: str, now: float) -> None:
        """Record a failure of a backend."""
        self.put(name, self.of(name).failed(now, self.policy, self.rng))

    def keep_only(self, names: frozenset[str]) -> None:
        """Forget backends that were removed, or replaced under the same name."""
        self._by_name = {name: circuit for name, circuit in self._by_name.items() if name in names}


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
