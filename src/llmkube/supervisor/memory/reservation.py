"""What a service asks for and what an engine has been promised: the values that decisions about memory read. Pure.

```
 Request ──admitted──▶ Reservation(SERVING) ──replaced──▶ PREDECESSOR ──process gone──▶ released
                       Reservation(SUCCESSOR) ──answers──▶ SERVING
```
"""

import enum

import attrs

from llmkube.k8s.crd.inferenceservice import PRIORITIES
from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.resource import Key


def rank_of(priority: str) -> int:
    """Return a priority as a number, the lowest first; an unknown one counts as normal."""
    return PRIORITIES.index(priority) if priority in PRIORITIES else PRIORITIES.index("normal")


@attrs.frozen
class MemorySpec:
    """What a service's objects say about memory; an edit counts from the next decision on.

    Attributes:
        priority: `spec.priority`.
        protected: `spec.evictionProtection`: the service is neither evicted nor displaced.
        hardware: The Model's, for its own `memoryBudget` or `memoryFraction`.
    """

    priority: str = "normal"
    protected: bool = False
    hardware: Hardware | None = None

    @property
    def rank(self) -> int:
        """The priority as a number, the lowest first."""
        return rank_of(self.priority)


@attrs.frozen
class Need:
    """How much an engine will take: the largest of what was estimated, learned and measured.

    Attributes:
        total_bytes: All of it; a guess when it is not sized, which counts only where guesses are allowed.
        device_bytes: What of it lies on the device.
        sized: Whether the figure is known.
        why: Why it is not known.
        estimated_bytes: What was expected before anything was measured; 0 if nothing was.
        elsewhere: Whether a process may hold it that is not the engine's, such as a daemon's: what the engine's own
            processes hold says little then, and the model counts with what was promised once it is loaded.
    """

    total_bytes: int
    device_bytes: int = 0
    sized: bool = True
    why: str = ""
    estimated_bytes: int = 0
    elsewhere: bool = False

    def capped_at(self, max_bytes: int) -> "Need":
        """Return it as a start counts: an engine that had grown must not make its model one that never fits."""
        if not self.estimated_bytes:
            return self
        return attrs.evolve(self, total_bytes=min(self.total_bytes, max(max_bytes, self.estimated_bytes)))


@attrs.frozen
class Request:
    """A service that waits for memory.

    Attributes:
        key: The service.
        need: How much its engine will take.
        spec: What its objects say.
        since: When it began to wait.
        dwell_seconds: How long memory must have been normal; more than 0 after an eviction for pressure.
        margin_bytes: How much more than its need must be there; after an eviction.
        may_displace: Whether less important services may be ended for it.
    """

    key: Key
    need: Need
    spec: MemorySpec = MemorySpec()
    since: float = 0.0
    dwell_seconds: float = 0.0
    margin_bytes: int = 0
    may_displace: bool = True

    @property
    def returns(self) -> bool:
        """Whether the service was evicted for pressure."""
        return self.dwell_seconds > 0


class Role(enum.Enum):
    """Which of its service's engines a reservation is for."""

    SERVING = "serving"
    SUCCESSOR = "successor"  # it starts beside the one that serves, and replaces it when it answers
    PREDECESSOR = "predecessor"  # it has been replaced, and ends its requests


@attrs.frozen
class Reservation:
    """The bytes that one engine has been promised, and what is known of the process that uses them.

    Times are those of the monotonic clock, in seconds.

    Attributes:
        number: Names the reservation within its book; 0 for one that is only supposed.
        key: The service.
        need: What was promised.
        spec: What the service's objects say now.
        role: Which of the service's engines this is for.
        since: When it was made.
        held: Whether a task has taken it over; until then an adopted engine cannot be told to go.
        returns: The engine starts again after an eviction for pressure.
        pid: The process; 0 while there is none.
        resident_bytes: What the process held when it was last measured.
        peak_bytes: The most that it ever held.
        measured: Whether it was measured, since it was loaded if it is.
        loaded_at: When the engine answered; None before.
        busy_at: When it had work last.
        load_seconds: How long the service's last load took.
        evicted_why: Why the engine has to go; None while it may stay.
        exit_deadline: When it should have gone; None while it stays.
        urgent: Whether its requests are not waited for.
        host_free_bytes: What the host had left when the process was last seen, once it has to go.
        granted_bytes: What all engines may take together by the word of this one's Model when it was promised; 0 where
            that was the host's budget. An edit of the word ends no engine.
        capacity_bytes: The most that all engines could have had since this was made: what they held, and what was left.
    """

    number: int
    key: Key
    need: Need
    spec: MemorySpec = MemorySpec()
    role: Role = Role.SERVING
    since: float = 0.0
    held: bool = True
    returns: bool = False
    pid: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0
    measured: bool = False
    loaded_at: float | None = None
    busy_at: float = 0.0
    load_seconds: float = 0.0
    evicted_why: str | None = None
    exit_deadline: float | None = None
    urgent: bool = False
    host_free_bytes: int = 0
    granted_bytes: int = 0
    capacity_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """What counts: what was promised, or what the engine has taken if that is more."""
        return max(self.need.total_bytes, self.peak_bytes)

    @property
    def held_bytes(self) -> int:
        """What is there now; an engine that was not measured since it loaded counts with its whole reservation."""
        return self.total_bytes if self.loaded_at is not None and not self.measured else self.resident_bytes

    @property
    def reclaimable_bytes(self) -> int:
        """What the end of the engine gives back: what it holds, or is about to hold while it loads."""
        return self.total_bytes if self.loaded_at is None else self.held_bytes

    @property
    def unused_bytes(self) -> int:
        """What was promised and is not resident yet."""
        return max(0, self.total_bytes - self.held_bytes)

    @property
    def is_exiting(self) -> bool:
        """Whether the engine has been told to go."""
        return self.exit_deadline is not None

    @property
    def is_reloading(self) -> bool:
        """Whether the engine loads again after an eviction for pressure."""
        return self.returns and self.loaded_at is None

    def exits_in_time(self, now: float) -> bool:
        """Whether the engine has been told to go, and may still do so in time."""
        return self.exit_deadline is not None and now < self.exit_deadline

    def idle_seconds(self, now: float) -> float:
        """How long the engine has had no work; one that loads has."""
        return now - self.busy_at if self.loaded_at is not None else 0.0
