"""The services of one host with their reservations and requests: entered, changed, found and added up. Pure."""

from collections import defaultdict
from itertools import count
from typing import Any, Final

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.memory.policy import Mode, Policy
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Request, Reservation, Role

REPORT_SECONDS: Final = 10.0
"""The least time between two sentences about the same wait."""

REPEAT_SECONDS: Final = 600.0
"""After so long a sentence is brought up to date, although nothing has happened."""

REPORT_DELTA_BYTES: Final = 512 << 20
"""A sentence whose figure is off by more is out of date."""

LONG_AGO: Final = float("-inf")


@attrs.define(eq=False)
class ServiceRecord:
    """One service, whether it runs or waits.

    Attributes:
        spec: What its objects say.
        reservations: What its engines have been promised, by number: one, or two while one replaces the other.
        request: What it waits for; None while it does not.
        reported: Why it waits, as it was told last.
        reported_at: When.
        evicted: Why it had to go, until it is loaded again.
        estimated_bytes: What was expected of the evicted engine.
        peak_bytes: What the evicted engine held at most.
        relapses: How often in a row its return has brought the pressure back.
        capacity_bytes: What engines could have had when it was evicted.
        displaced_at: When others had to go for it last.
        load_seconds: How long its last load took.
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
    load_seconds: float = 0.0

    def engine(self, role: Role) -> Reservation | None:
        """The reservation of its engine in this role."""
        return next((each for each in self.reservations.values() if each.role is role), None)

    def follow(self, spec: MemorySpec) -> bool:
        """Take in what the objects say now, and return whether that is new: an edit is a new chance."""
        if spec == self.spec:
            return False
        self.spec, self.displaced_at = spec, LONG_AGO
        self.reservations = {at: attrs.evolve(each, spec=spec) for at, each in self.reservations.items()}
        return True

    def make_request(self, policy: Policy, request: Request) -> Request:
        """Return a request as it stands after an eviction: for pressure, with a wait for calm and a margin."""
        returns = self.evicted is not None and self.evicted.cause is not Cause.DISPLACED
        need = request.need
        if returns and need.estimated_bytes == self.estimated_bytes:  # it may have gone before anything was learned
            need = attrs.evolve(need, total_bytes=max(need.total_bytes, self.peak_bytes))
        margin = int(need.total_bytes * policy.margin_share) if returns else 0
        return attrs.evolve(request, need=need, dwell_seconds=float(returns), margin_bytes=margin)

    def up_to_date(self, policy: Policy, request: Request, max_bytes: int, now: float) -> Request:
        """Return a request with the newest spec, capped at what all engines may take."""
        rested = now - self.displaced_at >= policy.displace_seconds
        unused = self.evicted is not None and self.evicted.cause is Cause.IDLE  # no engine ends for one without users
        return attrs.evolve(
            request,
            need=request.need.capped_at(max_bytes),
            spec=self.spec,
            may_displace=rested and policy.mode is Mode.ON and not unused,
        )

    def promise(self, reservation: Reservation) -> Reservation:
        """Enter a reservation; what waited for it waits no longer."""
        reservation = attrs.evolve(reservation, spec=self.spec, load_seconds=self.load_seconds)
        self.reservations[reservation.number] = reservation
        if reservation.role is Role.SERVING:
            self.request = None
        return reservation

    def strike(self, number: int) -> Reservation | None:
        """Take a reservation out; a successor that is left alone becomes the one that serves."""
        gone = self.reservations.pop(number, None)
        successor = self.engine(Role.SUCCESSOR)
        if gone is not None and gone.role is Role.SERVING and successor is not None:
            self.reservations[successor.number] = attrs.evolve(successor, role=Role.SERVING)
        return gone

    def record_eviction(self, evict: Eviction, engine: Reservation) -> None:
        """Remember why an engine had to go, and what it had taken."""
        self.evicted, self.estimated_bytes, self.peak_bytes = evict, engine.need.estimated_bytes, engine.peak_bytes

    def record_pressure(
        self, engine: Reservation, policy: Policy, capacity_bytes: int, reclaim_bytes: int, now: float
    ) -> None:
        """Take in that its engine is evicted for pressure: a relapse if its own return has brought that back.

        It is one if the engine had returned lately, and no other program has taken memory since.

        Args:
            engine: The one that is evicted.
            policy: How soon after a return an eviction is a relapse.
            capacity_bytes: What all engines could have now.
            reclaim_bytes: A difference that matters.
            now: The moment.
        """
        soon = engine.loaded_at is None or now - engine.loaded_at < policy.relapse_seconds
        squeezed = engine.capacity_bytes - capacity_bytes >= reclaim_bytes
        self.relapses = self.relapses + 1 if engine.returns and soon and not squeezed else 0
        self.capacity_bytes = capacity_bytes

    def dwell_seconds(self, policy: Policy, capacity_bytes: int, reclaim_bytes: int) -> float:
        """How long memory has to be normal before it returns; memory that came free since makes up for relapses."""
        eased = capacity_bytes - self.capacity_bytes >= reclaim_bytes
        return policy.dwell_seconds(0 if eased else self.relapses)

    def should_report(self, refusal: Refusal, now: float) -> bool:
        """Whether the service is to be told why it waits: not at once again, and not while nothing has changed."""
        if self.reported is not None:
            same = (
                self.reported.block is refusal.block
                and abs(self.reported.free_bytes - refusal.free_bytes) < REPORT_DELTA_BYTES
            )
            if now - self.reported_at < (REPEAT_SECONDS if same else REPORT_SECONDS):
                return False
        self.reported, self.reported_at = refusal, now
        return True


class Records(defaultdict[Key, ServiceRecord]):
    """One record per service, made when it is first asked for, and a number for each new reservation."""

    def __init__(self) -> None:
        super().__init__(ServiceRecord)
        self._numbers = count(1)

    def requests(self) -> tuple[Request, ...]:
        """What services wait for."""
        return tuple(record.request for record in self.values() if record.request is not None)

    # -- reservations ---------------------------------------------------------------------------------------------

    def promise(self, key: Key, need: Need, now: float, **details: Any) -> Reservation:
        """Enter a reservation for an engine of a service; `details` are further fields of it."""
        return self[key].promise(Reservation(next(self._numbers), key, need, since=now, busy_at=now, **details))

    def newest(self, reservation: Reservation) -> Reservation:
        """Return a reservation as it is now; as it is given when it has been released."""
        record = self.get(reservation.key)
        return record.reservations.get(reservation.number, reservation) if record else reservation

    def change(self, reservation: Reservation, **changes: Any) -> Reservation:
        """Change a reservation as it is now, and return it."""
        record, after = self.get(reservation.key), attrs.evolve(self.newest(reservation), **changes)
        if record is not None and reservation.number in record.reservations:
            record.reservations[reservation.number] = after
        return after

    def serving(self, key: Key) -> Reservation | None:
        """The reservation of the engine that serves, or is to serve, a service."""
        return record.engine(Role.SERVING) if (record := self.get(key)) else None

    def reservations(self) -> tuple[Reservation, ...]:
        """What every engine has been promised."""
        return tuple(each for record in self.values() for each in record.reservations.values())

    # -- sums -----------------------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Whether an engine loads or is on the way out: figures change from one second to the next."""
        return any(each.loaded_at is None or each.is_exiting for each in self.reservations())

    @property
    def is_unmeasured(self) -> bool:
        """Whether an engine has loaded and was not measured since."""
        return any(each.pid and each.loaded_at is not None and not each.measured for each in self.reservations())

    @property
    def is_awaited(self) -> bool:
        """Whether a service waits for memory."""
        return any(record.request is not None for record in self.values())

    @property
    def is_adopting(self) -> bool:
        """Whether an adopted engine cannot be told to end yet, since no task runs it: a matter of milliseconds."""
        return any(not each.held for each in self.reservations())

    def pids(self) -> tuple[int, ...]:
        """The processes whose memory counts."""
        return tuple(each.pid for each in self.reservations() if each.pid)

    def held_bytes(self) -> int:
        """What all engines hold."""
        return sum(each.held_bytes for each in self.reservations())

    def device_bytes(self) -> int:
        """What all engines have been promised on the device."""
        return sum(each.need.device_bytes for each in self.reservations())

    def over_bytes(self, budget: Budget) -> int:
        """How much more than a budget the engines hold that stay; a fiftieth of it is not worth a restart."""
        staying = [each for each in self.reservations() if not each.is_exiting]
        limit_bytes = max((budget.for_model(each.spec.hardware).limit_bytes for each in staying), default=0)
        limit_bytes = max(limit_bytes, 0, *(min(each.granted_bytes, budget.total_bytes) for each in staying))
        over = sum(each.total_bytes for each in staying) - limit_bytes
        if budget.device_limit_bytes is not None:
            over = max(over, sum(each.need.device_bytes for each in staying) - budget.device_limit_bytes)
        return over if over > limit_bytes // 50 else 0
