"""The services of one host with their reservations and requests, and sums over them. Pure."""

from collections import defaultdict
from itertools import count
from typing import Any, Final

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.memory.policy import Mode, Policy
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Request, Reservation, Role, Usage

REPORT_SECONDS: Final = 10.0
"""Minimum time between two reports about the same wait."""

REPEAT_SECONDS: Final = 600.0
"""Time after which an unchanged reason is reported again."""

REPORT_DELTA_BYTES: Final = 512 << 20
"""A report is out of date if its figure is off by at least this much."""

LONG_AGO: Final = float("-inf")


@attrs.define(eq=False)
class ServiceRecord:
    """One service, running or waiting.

    Attributes:
        reservations: Those of its engines by number: one, or two while one engine replaces the other.
        request: The memory that it waits for; None while it does not wait.
        reported: The refusal that was reported last for this wait.
        evicted: Its last eviction; None once it is loaded again.
        estimated_bytes: The estimate for the evicted engine.
        peak_bytes: The most memory that the evicted engine used.
        relapses: Times in a row that its return has caused pressure again.
        capacity_bytes: Memory that all engines could have had when it was evicted.
        displaced_at: When others were last displaced for it.
        usage: Its requests and users.
    """

    spec: MemorySpec = MemorySpec()
    reservations: dict[int, Reservation] = attrs.field(factory=dict)
    request: Request | None = None
    reported: Refusal | None = None
    reported_at: float = LONG_AGO
    evicted: Eviction | None = None
    estimated_bytes: int = 0
    peak_bytes: int = 0
    relapses: int = 0
    capacity_bytes: int = 0
    displaced_at: float = LONG_AGO
    usage: Usage = Usage()

    def engine(self, role: Role) -> Reservation | None:
        """Return the reservation of its engine in this role."""
        return next((each for each in self.reservations.values() if each.role is role), None)

    def set_spec(self, spec: MemorySpec) -> bool:
        """Update the spec, and return whether it changed."""
        if spec == self.spec:
            return False
        self.spec, self.displaced_at = spec, LONG_AGO
        self.reservations = {at: attrs.evolve(each, spec=spec) for at, each in self.reservations.items()}
        return True

    def set_usage(self, usage: Usage) -> None:
        """Update the requests and users of the service."""
        self.usage = usage
        self.reservations = {at: attrs.evolve(each, usage=usage) for at, each in self.reservations.items()}

    def make_request(self, policy: Policy, request: Request) -> Request:
        """Return a request; after an eviction for pressure it has a dwell time and a margin."""
        returns = self.evicted is not None and self.evicted.cause is not Cause.DISPLACED
        need = request.need
        if returns and need.estimated_bytes == self.estimated_bytes:  # it may have exited before anything was learned
            need = attrs.evolve(need, total_bytes=max(need.total_bytes, self.peak_bytes))
        margin = int(need.total_bytes * policy.margin_share) if returns else 0
        return attrs.evolve(request, need=need, dwell_seconds=float(returns), margin_bytes=margin)

    def with_newest_spec(self, policy: Policy, request: Request, max_bytes: int, now: float) -> Request:
        """Return a request with the newest spec, and its need capped at `max_bytes`."""
        rested = now - self.displaced_at >= policy.displace_seconds
        unused = self.evicted is not None and self.evicted.cause is Cause.IDLE  # displaces nothing: it has no users
        needed = self.usage.in_use if self.spec.on_request else rested and not unused
        may_displace = needed and policy.mode is Mode.ON
        need = request.need.capped_at(max_bytes)
        return attrs.evolve(request, need=need, spec=self.spec, may_displace=may_displace, usage=self.usage)

    def reserve(self, reservation: Reservation) -> Reservation:
        """Add a reservation; one for the serving engine ends the wait."""
        reservation = attrs.evolve(reservation, spec=self.spec, usage=self.usage)
        self.reservations[reservation.number] = reservation
        if reservation.role is Role.SERVING:
            self.request = None
        return reservation

    def remove(self, number: int) -> Reservation | None:
        """Remove a reservation and return it; a successor without a serving engine takes over that role."""
        gone = self.reservations.pop(number, None)
        successor = self.engine(Role.SUCCESSOR)
        if gone is not None and gone.role is Role.SERVING and successor is not None:
            self.reservations[successor.number] = attrs.evolve(successor, role=Role.SERVING)
        return gone

    def record_eviction(self, evict: Eviction, engine: Reservation) -> None:
        """Record an eviction, and the memory of the evicted engine."""
        self.evicted, self.estimated_bytes, self.peak_bytes = evict, engine.need.estimated_bytes, engine.peak_bytes

    def record_pressure(
        self, engine: Reservation, policy: Policy, capacity_bytes: int, reclaim_bytes: int, now: float
    ) -> None:
        """Record an eviction for pressure: a relapse if the return of this engine has caused the pressure.

        The return is taken as the cause if it was recent, and no other program has taken memory since.

        Args:
            engine: The evicted engine.
            policy: Sets how soon after a return an eviction is a relapse.
            capacity_bytes: Memory that all engines could have now.
            reclaim_bytes: The smallest difference that matters.
            now: Monotonic time in seconds.
        """
        soon = engine.loaded_at is None or now - engine.loaded_at < policy.relapse_seconds
        squeezed = engine.capacity_bytes - capacity_bytes >= reclaim_bytes
        self.relapses = self.relapses + 1 if engine.returns and soon and not squeezed else 0
        self.capacity_bytes = capacity_bytes

    def dwell_seconds(self, policy: Policy, capacity_bytes: int, reclaim_bytes: int) -> float:
        """Return how long memory must be normal before it returns; relapses do not count if memory was freed since."""
        eased = capacity_bytes - self.capacity_bytes >= reclaim_bytes
        return policy.dwell_seconds(0 if eased else self.relapses)

    def should_report(self, refusal: Refusal, now: float) -> bool:
        """Record a refusal, and return whether to report it: not too often, and rarely while nothing has changed."""
        if self.reported is not None:
            same = (
                self.reported.block is refusal.block
                and abs(self.reported.free_bytes - refusal.free_bytes) < REPORT_DELTA_BYTES
                and (self.reported.until, self.reported.awaited) == (refusal.until, refusal.awaited)
            )
            if now - self.reported_at < (REPEAT_SECONDS if same else REPORT_SECONDS):
                return False
        self.reported, self.reported_at = refusal, now
        return True


class Records(defaultdict[Key, ServiceRecord]):
    """One record per service, created on first access; numbers the reservations."""

    def __init__(self) -> None:
        super().__init__(ServiceRecord)
        self._numbers = count(1)

    def requests(self) -> tuple[Request, ...]:
        """Return the requests of all waiting services."""
        return tuple(record.request for record in self.values() if record.request is not None)

    # -- reservations ---------------------------------------------------------------------------------------------

    def reserve(self, key: Key, need: Need, now: float, **details: Any) -> Reservation:
        """Add a reservation for an engine of a service; `details` are further fields of it."""
        return self[key].reserve(Reservation(next(self._numbers), key, need, since=now, busy_at=now, **details))

    def newest(self, reservation: Reservation) -> Reservation:
        """Return the newest state of a reservation; the argument itself once it has been released."""
        record = self.get(reservation.key)
        return record.reservations.get(reservation.number, reservation) if record else reservation

    def change(self, reservation: Reservation, **changes: Any) -> Reservation:
        """Change the newest state of a reservation, and return it."""
        record, after = self.get(reservation.key), attrs.evolve(self.newest(reservation), **changes)
        if record is not None and reservation.number in record.reservations:
            record.reservations[reservation.number] = after
        return after

    def serving(self, key: Key) -> Reservation | None:
        """Return the reservation of the engine that serves a service, or will."""
        return record.engine(Role.SERVING) if (record := self.get(key)) else None

    def reservations(self) -> tuple[Reservation, ...]:
        """Return the reservations of all engines."""
        return tuple(each for record in self.values() for each in record.reservations.values())

    # -- sums -----------------------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Whether an engine is loading or exiting: figures change from one second to the next."""
        return any(each.loaded_at is None or each.is_exiting for each in self.reservations())

    @property
    def is_unmeasured(self) -> bool:
        """Whether an engine has loaded and has not been measured since."""
        return any(each.pid and each.loaded_at is not None and not each.measured for each in self.reservations())

    @property
    def is_awaited(self) -> bool:
        """Whether a service waits for memory."""
        return any(record.request is not None for record in self.values())

    @property
    def is_adopting(self) -> bool:
        """Whether an adopted engine has no task yet that could stop it: true for milliseconds."""
        return any(not each.held for each in self.reservations())

    def pids(self) -> tuple[int, ...]:
        """Return the processes of all engines."""
        return tuple(each.pid for each in self.reservations() if each.pid)

    def held_bytes(self) -> int:
        """Return the bytes that all engines hold."""
        return sum(each.held_bytes for each in self.reservations())

    def device_bytes(self) -> int:
        """Return the device bytes that all engines have reserved."""
        return sum(each.need.device_bytes for each in self.reservations())

    def over_bytes(self, budget: Budget) -> int:
        """Return the bytes by which engines that are not exiting exceed a budget; 0 for up to 2 % of it."""
        staying = [each for each in self.reservations() if not each.is_exiting]
        limit_bytes = max((budget.for_model(each.spec.hardware).limit_bytes for each in staying), default=0)
        limit_bytes = max(limit_bytes, 0, *(min(each.granted_bytes, budget.total_bytes) for each in staying))
        over = sum(each.total_bytes for each in staying) - limit_bytes
        for name, device_limit in budget.pools.items():
            over = max(over, sum(each.need.pools.get(name, 0) for each in staying) - device_limit)
        return over if over > limit_bytes // 50 else 0  # less is not worth a restart
