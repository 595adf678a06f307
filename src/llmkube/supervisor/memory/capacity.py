"""What a host has for engines, and what of it is promised; and how that looks once some of them have gone. Pure."""

from collections.abc import Iterable, Mapping

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.eviction import Cause, Skip
from llmkube.supervisor.memory.reservation import Request, Reservation


@attrs.frozen
class Capacity:
    """What there is, and what of it is promised.

    Attributes:
        budget: What engines may take.
        available_bytes: What programs could still take.
        floor_bytes: What of it is left to other programs.
        small_bytes: A need up to this does not have to leave the floor.
        level: How short memory is.
        admitting: Whether there is no pressure, nor has been a moment ago.
        calm_seconds: How long memory has been normal.
        reservations: What every engine has been promised.
        releasing_bytes: What engines held that have ended, while it is not seen to be back.
        unreturned_bytes: What of that stays wired, and belongs to no process.
        admit_unsized: Whether a need that is not known is admitted.
        now: The moment of all this, by the monotonic clock.
    """

    budget: Budget
    available_bytes: int
    floor_bytes: int = 0
    small_bytes: int = 0
    level: Level = Level.NORMAL
    admitting: bool = True
    calm_seconds: float = 0.0
    reservations: tuple[Reservation, ...] = ()
    releasing_bytes: int = 0
    unreturned_bytes: int = 0
    admit_unsized: bool = False
    now: float = 0.0

    @property
    def free_bytes(self) -> int:
        """What of the budget is not promised; below 0 when an engine has grown."""
        gone_bytes = self.releasing_bytes + self.unreturned_bytes
        return self.budget.limit_bytes - gone_bytes - sum(each.total_bytes for each in self.reservations)

    @property
    def device_free_bytes(self) -> int | None:
        """The same for the device, if its limit is known."""
        limit = self.budget.device_limit_bytes
        taken = self.unreturned_bytes + sum(each.need.device_bytes for each in self.reservations)
        return None if limit is None else limit - taken

    @property
    def promised_bytes(self) -> int:
        """What has been promised and is not resident yet: it is not free twice."""
        return sum(each.unused_bytes for each in self.reservations)

    @property
    def headroom_bytes(self) -> int:
        """What the host has to give now and leaves the floor untouched."""
        return self.available_bytes - self.floor_bytes - self.promised_bytes

    @property
    def exiting(self) -> tuple[Reservation, ...]:
        """The engines that have been told to go, and may still do so in time."""
        return tuple(each for each in self.reservations if each.exits_in_time(self.now))

    def without(self, keys: Iterable[Key]) -> "Capacity":
        """The same host once the engines of these services have gone and their memory is back."""
        gone = frozenset(keys)
        return self._after_exit_of([each for each in self.reservations if each.key in gone])

    def after_exits(self) -> "Capacity":
        """The same host once all engines that are on their way out have gone, and all memory is back."""
        soon = self._after_exit_of(self.exiting)
        return attrs.evolve(soon, available_bytes=soon.available_bytes + self.releasing_bytes, releasing_bytes=0)

    def _after_exit_of(self, ended: Iterable[Reservation]) -> "Capacity":
        gone = {id(each) for each in ended}
        back = sum(each.held_bytes for each in self.reservations if id(each) in gone)
        stay = tuple(each for each in self.reservations if id(each) not in gone)
        return attrs.evolve(self, reservations=stay, available_bytes=self.available_bytes + back)

    def with_reservation(self, request: Request) -> "Capacity":
        """The same host once this service has been admitted."""
        promised = Reservation(0, request.key, request.need, request.spec, returns=request.returns)
        return attrs.evolve(self, reservations=(*self.reservations, promised))

    def with_exiting(self, keys: Iterable[Key]) -> "Capacity":
        """The same host once the engines of these services have been told to go."""
        selected = frozenset(keys)
        after = tuple(
            attrs.evolve(each, exit_deadline=float("inf")) if each.key in selected else each
            for each in self.reservations
        )
        return attrs.evolve(self, reservations=after)


@attrs.frozen
class CapacitySummary:
    """What a host has for engines.

    Attributes:
        total_bytes: Its memory.
        limit_bytes: What engines may take of it.
        free_bytes: What a service that comes now could take: of that limit, and of what the host has.
    """

    total_bytes: int
    limit_bytes: int
    free_bytes: int


def summarize_capacity(host: Capacity, total_bytes: int) -> CapacitySummary:
    """Return what a host has for engines."""
    free_bytes = max(0, min(host.free_bytes, host.headroom_bytes))
    return CapacitySummary(total_bytes, host.budget.limit_bytes, free_bytes)


@attrs.frozen
class MemoryView:
    """A host's memory at one moment, for people and metrics.

    Attributes:
        level: How short it is.
        sample: The last good look.
        budget: What engines may take.
        free_bytes: What a service that comes now could take: of the budget, and of what the host has.
        reservations: What every engine has been promised.
        requests: Which services wait for memory.
        evictions: How many engines were evicted since the agent started, by the cause.
        skips: How often no engine was evicted although memory was short, by the reason.
        unreturned_bytes: What macOS keeps of engines that have ended.
    """

    level: Level
    sample: Sample
    budget: Budget
    free_bytes: int
    reservations: tuple[Reservation, ...]
    requests: tuple[Request, ...]
    evictions: Mapping[Cause, int]
    skips: Mapping[Skip, int]
    unreturned_bytes: int = 0
