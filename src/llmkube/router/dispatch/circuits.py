"""When a backend is left alone, and who asks it first afterwards: a value and its transitions, by a given clock.

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
"""The end of a pause that is over, whatever the clock says."""


class State(enum.Enum):
    """What a circuit is."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@attrs.frozen
class CircuitPolicy:
    """When circuits open, and for how long.

    Attributes:
        failures: In a row.
        backoff: How long, by how often it opened in a row.
    """

    failures: int = 3
    backoff: Backoff = Backoff(base_seconds=15.0, cap_seconds=MAX_PAUSE_SECONDS)

    @classmethod
    def of(cls, first_pause_seconds: float) -> "CircuitPolicy":
        """Return the terms with this first pause."""
        cap = max(first_pause_seconds, MAX_PAUSE_SECONDS)
        return cls(backoff=Backoff(base_seconds=first_pause_seconds, cap_seconds=cap))


@attrs.frozen
class Circuit:
    """What is known of one backend.

    Attributes:
        failures: In a row.
        opened: How often in a row.
        open_until: 0 while it is closed.
        probing: Whether the one request is under way.
        unhealthy: Why it gets no requests, by the check that reports it: a probe, the watch over its engine.
    """

    failures: int = 0
    opened: int = 0
    open_until: float = 0.0
    probing: bool = False
    unhealthy: Mapping[str, str] = attrs.field(factory=dict)

    def state(self, now: float) -> State:
        """Return what it is now."""
        if self.unhealthy:
            return State.OPEN
        if not self.open_until:
            return State.CLOSED
        return State.OPEN if now < self.open_until else State.HALF_OPEN

    def admit(self, now: float) -> tuple["Circuit", bool]:
        """Return the circuit after a request has come by, and whether the request may go through."""
        state = self.state(now)
        if state is State.CLOSED:
            return self, True
        if state is State.OPEN or self.probing:
            return self, False
        return attrs.evolve(self, probing=True), True

    def abandoned(self) -> "Circuit":
        """The request that went through ended before anything was known: the next one may take its place."""
        return attrs.evolve(self, probing=False)

    def began(self) -> "Circuit":
        """Its stream has begun: others may follow, and if this one breaks off it counts with the failures before."""
        return attrs.evolve(self, open_until=0.0, probing=False)

    def succeeded(self) -> "Circuit":
        """It answered, to the end."""
        known = self.failures or self.opened or self.open_until or self.probing
        return Circuit(unhealthy=self.unhealthy) if known else self

    def failed(self, now: float, policy: CircuitPolicy, rng: random.Random) -> "Circuit":
        """It did not."""
        failures = self.failures + 1
        if self.state(now) is State.CLOSED and failures < policy.failures:
            return attrs.evolve(self, failures=failures, probing=False)
        if self.state(now) is State.OPEN:
            return attrs.evolve(self, failures=failures)  # it went out before the circuit opened
        opened = self.opened + 1
        return Circuit(failures, opened, now + policy.backoff.delay(opened, rng), unhealthy=self.unhealthy)

    def found(self, by: str, why: str, now: float) -> "Circuit":
        """Something beside requests has found it unwell, or well, which is "": then one request goes through first."""
        unhealthy = {name: each for name, each in self.unhealthy.items() if name != by} | ({by: why} if why else {})
        if unhealthy or not self.unhealthy:
            return attrs.evolve(self, unhealthy=unhealthy)
        return attrs.evolve(self, unhealthy={}, open_until=max(self.open_until, now, _AT_ONCE), probing=False)

    def rate_limited(self, now: float, seconds: float) -> "Circuit":
        """It said itself when it wants to be asked again."""
        return attrs.evolve(self, open_until=max(self.open_until, now + seconds), probing=False)


@attrs.define(eq=False)
class Circuits:
    """Those of all backends, by name.

    Attributes:
        policy: Of all.
        rng: Spreads the pauses.
    """

    policy: CircuitPolicy
    rng: random.Random
    _by_name: dict[str, Circuit] = attrs.field(factory=dict)

    def of(self, name: str) -> Circuit:
        """Return the circuit of a backend."""
        return self._by_name.get(name, _CLOSED)

    def admit(self, name: str, now: float) -> bool:
        """Whether a request may go to this backend; if so, its circuit has to become another one, or the same."""
        self._by_name[name], may = self.of(name).admit(now)
        return may

    def put(self, name: str, circuit: Circuit) -> None:
        """Take up what has become of a backend's circuit."""
        self._by_name[name] = circuit

    def failed(self, name: str, now: float) -> None:
        """The backend did not answer."""
        self.put(name, self.of(name).failed(now, self.policy, self.rng))

    def keep_only(self, names: frozenset[str]) -> None:
        """Forget backends that are no more, or are others under the same name."""
        self._by_name = {name: circuit for name, circuit in self._by_name.items() if name in names}


_CLOSED = Circuit()


_EWMA_WEIGHT: Final = 0.2


@attrs.define(eq=False)
class BackendStats:
    """What was seen of the backends.

    Attributes:
        in_flight: Requests under way, those in a queue among them, by the backend's name.
        first_byte_seconds: Time to the first byte, by the backend's name: a mean in which the newest counts a fifth.
    """

    in_flight: Counter[str] = attrs.field(factory=Counter)
    first_byte_seconds: dict[str, float] = attrs.field(factory=dict)

    def began(self, backend: str, seconds: float) -> None:
        """Note how long a backend took to begin its answer."""
        before = self.first_byte_seconds.get(backend, seconds)
        self.first_byte_seconds[backend] = before + _EWMA_WEIGHT * (seconds - before)
