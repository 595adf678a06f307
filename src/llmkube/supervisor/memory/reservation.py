"""Requests of services and reservations of engines: the values that decisions about memory read. Pure.

```
 Request ──admitted──▶ Reservation(SERVING) ──replaced──▶ PREDECESSOR ──process gone──▶ released
                       Reservation(SUCCESSOR) ──answers──▶ SERVING
```
"""

import enum
import math
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import PRIORITIES
from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import PATIENCE_SECONDS

UNMEASURED_SECONDS: Final = 10.0
"""Time after its load in which an engine's first measurement is expected; some processes cannot be measured."""


def rank_of(priority: str) -> int:
    """Return a priority as a number, the lowest first; an unknown priority is treated as normal."""
    return PRIORITIES.index(priority) if priority in PRIORITIES else PRIORITIES.index("normal")


@attrs.frozen
class PoolShare:
    """The place of a service in a ModelPool on this host.

    Attributes:
        name: The pool, for messages.
        limit: GPUs that its members use together at most.
        gpus: GPUs of the service, at most `limit`.
        patience_seconds: `spec.swapBudget`.
        ranked: Whether members of higher priority displace others sooner.
    """

    name: str
    limit: int = 1
    gpus: int = 1
    patience_seconds: float = PATIENCE_SECONDS
    ranked: bool = False


@attrs.frozen
class MemorySpec:
    """The memory settings of a service's objects; an edit applies from the next decision on.

    Attributes:
        priority: `spec.priority`.
        protected: `spec.evictionProtection`: the service is neither evicted nor displaced.
        hardware: That of the Model, for `memoryBudget` and `memoryFraction`.
        on_request: Whether it is loaded when requests need it.
        pinned: `spec.activation.pin`: the service is not displaced.
        pool: Its place in a ModelPool; None if it is in none.
    """

    priority: str = "normal"
    protected: bool = False
    hardware: Hardware | None = None
    on_request: bool = False
    pinned: bool = False
    pool: PoolShare | None = None

    @property
    def rank(self) -> int:
        """The priority as a number, the lowest first."""
        return rank_of(self.priority)


@attrs.frozen
class Need:
    """Memory that an engine will use: the largest of estimated, learned and measured figures.

    Attributes:
        total_bytes: The sum of host and device memory; a guess if not `sized`, which is used only where guesses are
            allowed.
        device_bytes: The part of it on a device that shares the machine's memory.
        devices: Bytes on each device with memory of its own, by its name; not part of the total.
        sized: Whether the figure is known.
        why: The reason why it is not.
        estimated_bytes: The estimate before anything was measured; 0 if there is none.
        elsewhere: Whether a process outside the engine, such as a daemon, may hold the memory: measuring the engine's
            own processes says little then, so once loaded it holds at least its reservation.
    """

    total_bytes: int
    device_bytes: int = 0
    sized: bool = True
    why: str = ""
    estimated_bytes: int = 0
    elsewhere: bool = False
    devices: Mapping[str, int] = {}

    @property
    def pools(self) -> dict[str, int]:
        """Bytes on each device; `device` shares the machine's memory."""
        return {"device": self.device_bytes, **self.devices}

    def capped_at(self, max_bytes: int) -> "Need":
        """Return the need with at most `max_bytes`, or its estimate if that is larger."""
        if not self.estimated_bytes:
            return self
        # An engine that had grown must not make its model one that never fits.
        return attrs.evolve(self, total_bytes=min(self.total_bytes, max(max_bytes, self.estimated_bytes)))


@attrs.frozen
class Usage:
    """The requests and users of a service.

    Attributes:
        requests: Number of requests that wait for it or run.
        held: Number of those that wait for its load, or at its closed door.
        held_since: Arrival of the oldest of them; infinite if there are none.
        awaited: Whether a user waits for its load.
        pinned: Whether it is not displaced, used or not.
        used_at: When the last of its requests ended.
        tenants: When the last request of each tenant ended, infinite until it has; not those of long ago.
    """

    requests: int = 0
    held: int = 0
    held_since: float = math.inf
    awaited: bool = False
    pinned: bool = False
    used_at: float = -math.inf
    tenants: Mapping[str, float] = {}

    @property
    def in_use(self) -> bool:
        """Whether it should be loaded."""
        return self.requests > 0 or self.awaited or self.pinned


@attrs.frozen
class Request:
    """A service that waits for memory.

    Attributes:
        since: When it began to wait.
        dwell_seconds: Time for which memory must have been normal; more than 0 after an eviction for pressure.
        margin_bytes: Bytes that must be available beyond its need, after an eviction.
        may_displace: Whether other services may be displaced for it.
        usage: Its requests and users.
    """

    key: Key
    need: Need
    spec: MemorySpec = MemorySpec()
    since: float = 0.0
    dwell_seconds: float = 0.0
    margin_bytes: int = 0
    may_displace: bool = True
    usage: Usage = Usage()

    @property
    def returns(self) -> bool:
        """Whether the service was evicted for pressure."""
        return self.dwell_seconds > 0


class Role(enum.Enum):
    """The role of an engine among those of its service."""

    SERVING = "serving"
    SUCCESSOR = "successor"  # it starts while another engine serves, and replaces that one when it answers
    PREDECESSOR = "predecessor"  # it has been replaced, and finishes its requests


@attrs.frozen
class Reservation:
    """Bytes that are reserved for one engine, and the state of the process that uses them.

    Times are those of the monotonic clock, in seconds.

    Attributes:
        number: Identifies the reservation within its book; 0 for a hypothetical one.
        spec: The newest spec of the service.
        since: When it was made.
        held: Whether a task runs the engine; until then an adopted engine cannot be stopped.
        returns: Whether the engine starts again after an eviction for pressure.
        pid: The engine's process; 0 while there is none.
        resident_bytes: Bytes that the process held when it was last measured.
        peak_bytes: The most that it ever held.
        measured: Whether it has been measured; for a loaded engine, since it was loaded.
        loaded_at: When the engine first answered; None before.
        busy_at: When it last had work.
        evicted_why: Why the engine is evicted; None while it is not.
        exit_deadline: When it should have exited; None while it is not exiting.
        urgent: Whether its requests are cut short.
        host_free_bytes: Available bytes of the host when the exiting process was last seen.
        granted_bytes: The limit for all engines together that this engine's Model set when this was made; 0 where the
            host's budget applied. An edit of the Model stops no engine.
        capacity_bytes: The most that all engines could have had since this was made: held and available bytes.
        usage: Requests and users of the service.
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
    evicted_why: str | None = None
    exit_deadline: float | None = None
    urgent: bool = False
    host_free_bytes: int = 0
    granted_bytes: int = 0
    capacity_bytes: int = 0
    usage: Usage = Usage()

    @property
    def total_bytes(self) -> int:
        """Reserved bytes, or the engine's peak if that is larger."""
        return max(self.need.total_bytes, self.peak_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes held now; an engine that has not been measured since it loaded holds its whole reservation."""
        return self.total_bytes if self.loaded_at is not None and not self.measured else self.resident_bytes

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that stopping the engine releases: those that it holds, or will hold once loaded."""
        return self.total_bytes if self.loaded_at is None else self.held_bytes

    def unused_bytes(self, now: float) -> int:
        """Return reserved bytes that are not resident yet.

        An engine that has just loaded is treated as loading until it is measured: it may hold less than is reserved.
        """
        has_just_loaded = self.loaded_at is not None and now < self.loaded_at + UNMEASURED_SECONDS
        held_bytes = self.resident_bytes if has_just_loaded else self.held_bytes
        return max(0, self.total_bytes - held_bytes)

    @property
    def is_exiting(self) -> bool:
        """Whether the engine has been asked to stop."""
        return self.exit_deadline is not None

    @property
    def is_reloading(self) -> bool:
        """Whether the engine is loading again after an eviction for pressure."""
        return self.returns and self.loaded_at is None

    @property
    def is_unused(self) -> bool:
        """Whether no request needs the engine now, and the next one would load it again."""
        is_used = self.usage.requests > 0 or self.usage.pinned
        return self.spec.on_request and self.loaded_at is not None and not is_used

    def exits_in_time(self, now: float) -> bool:
        """Whether the engine is exiting and has not passed its deadline."""
        return self.exit_deadline is not None and now < self.exit_deadline

    def idle_seconds(self, now: float) -> float:
        """Return the time since the engine last had work; 0 while it loads."""
        return now - self.busy_at if self.loaded_at is not None else 0.0
