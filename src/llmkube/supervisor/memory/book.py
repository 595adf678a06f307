"""Decide on the memory of one host, and enter what was decided. Pure: no clock, no task, no process.

`admission` and `eviction` decide, `records` keeps who was promised what. Every method that can change which engines run
returns orders, which the ledger carries out before anything else happens: two services that ask at the same moment
cannot be promised the same bytes.

Memory of engines that have ended counts until it is seen to be back. macOS may keep what the GPU had wired for a
process that was killed until the next boot (oMLX issue 2184). No process has it then, so that only a sum tells: what is
wired, less what engines have on the device.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import UNREADABLE, Level, Sample
from llmkube.supervisor.memory import admission
from llmkube.supervisor.memory.admission import Strategy
from llmkube.supervisor.memory.budget import Budget, host_budget
from llmkube.supervisor.memory.capacity import Capacity, CapacitySummary, MemoryView, summarize_capacity
from llmkube.supervisor.memory.eviction import Cause, Decision, Eviction, Observation, Skip
from llmkube.supervisor.memory.policy import Rules
from llmkube.supervisor.memory.records import Records, ServiceRecord
from llmkube.supervisor.memory.refusal import Refusal, find_refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Request, Reservation, Role

RECOVERED_SHARE: Final = 0.8
"""Memory is back when so much of it is seen; other programs may have taken the rest meanwhile."""


@attrs.frozen
class _Release:
    size_bytes: int
    before_bytes: int
    until: float
    device_bytes: int


@attrs.define(eq=False)
class PendingReleases:
    """Memory of engines that have ended, as long as it is not seen to be back, or its deadline is over."""

    _open: list[_Release] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        """Whether any is expected."""
        return bool(self._open)

    @property
    def size_bytes(self) -> int:
        """How much is expected."""
        return sum(each.size_bytes for each in self._open)

    def expect(self, size_bytes: int, before_bytes: int, until: float, device_bytes: int = 0) -> None:
        """So much more should be seen than was available before, by then; so much of it was the device's."""
        self._open.append(_Release(size_bytes, before_bytes, until, min(size_bytes, device_bytes)))

    def update(self, sample: Sample, now: float) -> int:
        """Take in a look at the host; returns what of the device's was not seen and is not waited for any more."""
        before = min((each.before_bytes for each in self._open), default=0)
        if sample.level is not Level.UNKNOWN and sample.available_bytes >= before + RECOVERED_SHARE * self.size_bytes:
            self._open.clear()
        overdue = sum(each.device_bytes for each in self._open if now >= each.until)
        self._open = [each for each in self._open if now < each.until]
        return overdue


@attrs.define(eq=False)
class UnreturnedMemory:
    """What is wired for no process since engines have ended.

    Attributes:
        size_bytes: How much that is.
        min_bytes: Less than this is not told: other programs wire memory, too.
    """

    min_bytes: int
    size_bytes: int = 0
    _max_bytes: int = 0
    _usual_bytes: int | None = None  # what others than engines have wired while all is well

    def suspect(self, size_bytes: int) -> None:
        """So much of an engine that has ended was not seen to be back in time."""
        self._max_bytes += size_bytes

    def update(self, others_bytes: int, *, settled: bool) -> None:
        """Take in a look at the host.

        Args:
            others_bytes: What is wired, less what engines have been promised on the device.
            settled: Whether no engine loads or ends: else the difference may be too small, and only its growth counts.
        """
        if self._usual_bytes is None or (settled and not self._max_bytes):
            self._usual_bytes, self._max_bytes = others_bytes, 0
            return
        unexplained = min(self._max_bytes, max(0, others_bytes - self._usual_bytes))
        unexplained = unexplained if unexplained >= self.min_bytes else 0
        if settled:  # it can only become less, as no other engine has ended
            self.size_bytes = self._max_bytes = unexplained
        else:
            self.size_bytes = max(self.size_bytes, unexplained)


@attrs.frozen
class Grant:
    """The wait of a service is over: this is its reservation."""

    reservation: Reservation


@attrs.frozen
class ReportRefusal:
    """A service is told why it waits."""

    key: Key
    refusal: Refusal


@attrs.frozen
class StopEngine:
    """An engine has to end."""

    reservation: Reservation
    evict: Eviction


@attrs.frozen
class ExpediteStop:
    """An engine that has to end does not finish its requests any more."""

    reservation: Reservation


Order = Grant | ReportRefusal | StopEngine | ExpediteStop
Orders = tuple[Order, ...]


@attrs.define(eq=False)
class Book:
    """The memory of one host: its budget, its last sample, and its records.

    Times (`now`) are those of the monotonic clock, in seconds.

    Attributes:
        rules: What the operator has decided.
        sample: The last good look at the host.
        budget: What engines may take.
        decision: What was last decided about pressure; None before the first look, while nothing is admitted.
        evictions: How many engines were evicted since the agent started, by the cause.
        skips: How often no engine was evicted although memory was short, by the reason; counted when that changes.
        records: Every service with its reservations and its request.
        unreturned: What macOS has kept of engines that have ended.
    """

    rules: Rules = Rules()
    sample: Sample = UNREADABLE
    budget: Budget = Budget(0, 0)
    decision: Decision | None = None
    evictions: Counter[Cause] = attrs.field(factory=Counter)
    skips: Counter[Skip] = attrs.field(factory=Counter)
    records: Records = attrs.field(factory=Records)
    unreturned: UnreturnedMemory = attrs.field(init=False)
    _releases: PendingReleases = attrs.field(factory=PendingReleases)
    _host_free_bytes: int = 0  # what the host had left at the last look, also at one that is not believed

    _engines_limit: int | None = None

    def __attrs_post_init__(self) -> None:
        self.unreturned = UnreturnedMemory(self.rules.policy.worthwhile_bytes)

    # -- services -------------------------------------------------------------------------------------------------

    def follow(self, key: Key, spec: MemorySpec, now: float) -> Orders:
        """Take in what the objects say now."""
        return self.admit(now) if self.records[key].follow(spec) else ()

    def adopt(self, key: Key, need: Need, now: float) -> None:
        """Promise at once what an engine has already that an earlier agent left."""
        self.records.promise(key, need, now, held=False)

    def forget(self, key: Key, now: float) -> Orders:
        """Strike a service that is no longer this host's, with all that its engines hold."""
        record = self.records.pop(key, None)
        for each in record.reservations.values() if record else ():
            self._expect_release(each, now)
        return self.admit(now)

    def make_request(self, key: Key, need: Need, now: float) -> Orders:
        """Have a service wait for memory."""
        record = self.records[key]
        record.request, record.reported = record.make_request(self.rules.policy, Request(key, need, since=now)), None
        return self.admit(now)

    def withdraw(self, key: Key) -> None:
        """Have a service wait no longer."""
        if (record := self.records.get(key)) is not None:
            record.request = None

    def request_successor(self, key: Key, need: Need, now: float) -> Reservation | None:
        """Promise a second engine of a service what it needs, if there is room now; None otherwise."""
        if (
            self.records[key].engine(Role.SUCCESSOR) is not None
            or self.replacement(key, need, now) is not Strategy.ROLLING_UPDATE
        ):
            return None
        return self._promise(key, need.capped_at(self._max_bytes(key)), now, role=Role.SUCCESSOR)

    def replacement(self, key: Key, need: Need, now: float) -> Strategy | Refusal:
        """Return how the engine of a service gives way to one of another plan, or why it should not yet."""
        if self.decision is None:
            return Strategy.RECREATE  # whether the host holds both is not known
        return admission.replacement(
            self._up_to_date(self.records[key], Request(key, need, since=now), now), self.capacity(now)
        )

    def permanent_refusal(self, key: Key, need: Need, now: float) -> Refusal | None:
        """Return why a service could not start if it had the host to itself; None if it could, or it is not known."""
        if self.decision is None:
            return None
        record = self.records[key]
        request = record.make_request(self.rules.policy, Request(key, need, since=now))
        alone = Capacity(self.budget, self.budget.total_bytes, admit_unsized=self.rules.admit_unsized)
        return find_refusal(self._up_to_date(record, request, now), alone)

    # -- engines --------------------------------------------------------------------------------------------------

    def loaded(self, reservation: Reservation, now: float) -> None:
        """The engine answers: what it needs is there, and the next evicted service may return."""
        record = self.records.get(reservation.key)
        if record is not None:
            record.load_seconds, record.evicted = now - reservation.since, None
            record.relapses = record.relapses if reservation.returns else 0
        # What was measured while it loaded is out of date.
        self.records.change(
            reservation, loaded_at=now, busy_at=now, measured=False, load_seconds=now - reservation.since
        )

    def set_device_limit(self, limit_bytes: int) -> None:
        """An engine's GPU has told it how much it may hold; counts where this host itself could only guess."""
        self._engines_limit = limit_bytes

    def take_over(self, successor: Reservation, now: float) -> None:
        """The successor serves from now on; its predecessor is on its way out."""
        record = self.records.get(successor.key)
        if record is None or self.records.newest(successor).role is not Role.SUCCESSOR:
            return
        before = record.engine(Role.SERVING)
        self.records.change(successor, role=Role.SERVING)
        if before is not None:
            self._mark_exiting(before, now + self.rules.gentle_seconds, role=Role.PREDECESSOR)

    def release(self, reservation: Reservation, now: float) -> Orders:
        """The engine's process has gone."""
        record = self.records.get(reservation.key)
        gone = record.strike(reservation.number) if record else None
        if gone is None:
            return ()  # the service is not this host's any more, and all has been given back
        self._expect_release(gone, now)
        return self.admit(now)

    # -- the host -------------------------------------------------------------------------------------------------

    def observe(self, sample: Sample, footprints: Mapping[int, int], now: float) -> None:
        """Take in one look at the host, and what processes hold, by pid; `decide` follows."""
        self._host_free_bytes = sample.available_bytes
        for each in self.records.reservations():
            if each.pid in footprints:
                held = footprints[each.pid]
                promised = each.need.total_bytes if each.need.elsewhere and each.loaded_at is not None else 0
                # A process that leaves and is not seen may be gone by now, and its memory back.
                left = sample.available_bytes if each.is_exiting else 0
                peak = max(each.peak_bytes, held)
                self.records.change(
                    each, measured=True, resident_bytes=max(held, promised), peak_bytes=peak, host_free_bytes=left
                )
        self.unreturned.suspect(self._releases.update(sample, now))
        if sample.level is Level.UNKNOWN:
            return
        if sample.wired_bytes is not None:
            settled = not (self.is_releasing or self.records.is_moving)
            self.unreturned.update(sample.wired_bytes - self.records.device_bytes(), settled=settled)
        self.sample = sample
        limit = self._engines_limit if sample.device_limit_guessed and self._engines_limit else None
        self.budget = host_budget(sample.total_bytes, self.rules.fraction, limit or sample.device_limit_bytes)
        spare = self._capacity_bytes()
        for each in self.records.reservations():
            if each.capacity_bytes < spare:
                self.records.change(each, capacity_bytes=spare)

    def decide(self, decision: Decision, now: float) -> Orders:
        """Take in what follows from the look: admit what fits now, and have go what has to."""
        self.decision = decision
        expedited: Orders = ()
        if decision.level is Level.CRITICAL:
            slow = [each for each in self.records.reservations() if each.is_exiting and not each.urgent]
            expedited = tuple(ExpediteStop(self._expedite(each, now)) for each in slow)
        orders = expedited + self.admit(now)
        return orders + self.evict(decision.evict, now) if decision.evict is not None else orders

    def evict(self, evict: Eviction, now: float) -> Orders:
        """Have a service's engine go; the service waits for its turn to come back. A successor goes with it."""
        record = self.records.get(evict.key)
        if record is None:
            return ()
        successor, engine = record.engine(Role.SUCCESSOR), record.engine(Role.SERVING)
        orders = self._stop_engine(successor, evict, now) if successor is not None else ()
        if evict.successor:
            self.evictions[evict.cause] += 1
            return orders
        if engine is None or not engine.held or engine.evicted_why is not None:
            return orders
        if evict.cause is not Cause.DISPLACED:
            record.record_pressure(engine, self.rules.policy, self._capacity_bytes(), self._reclaim_bytes, now)
        record.record_eviction(evict, engine)
        self.evictions[evict.cause] += 1
        return orders + self._stop_engine(engine, evict, now)

    def admit(self, now: float) -> Orders:
        """Promise memory to every service that fits now, have go what has to for that, and say why the others wait."""
        if self.decision is None:
            return ()
        queue = {
            key: self._current_request(record, now)
            for key, record in self.records.items()
            if record.request is not None
        }
        outcome = admission.step(tuple(queue.values()), self.capacity(now))
        orders: list[Order] = []
        for key in outcome.admitted:
            queued = queue[key]
            orders.append(Grant(self._promise(key, queued.need, now, returns=queued.returns)))
        for key, refusal in outcome.refused:
            if self.records[key].should_report(refusal, now):
                orders.append(ReportRefusal(key, refusal))
        for each in outcome.displaced:
            self.records[each.winner].displaced_at = now
            orders += self.evict(Eviction(each.victim, Cause.DISPLACED, each.why, winner=each.winner), now)
        return tuple(orders)

    def assess(self, sample: Sample) -> Observation:
        """What the eviction policy decides on, after a sample has been observed."""
        unsettled = self.is_releasing or self.records.is_adopting
        return Observation(sample, self.records.reservations(), unsettled, self.records.over_bytes(self.budget))

    def capacity(self, now: float) -> Capacity:
        """What admission decides on."""
        decision, sample, policy = self.decision, self.sample, self.rules.policy
        assert decision is not None, "nothing is admitted before the first look"
        return Capacity(
            budget=self.budget,
            available_bytes=sample.available_bytes,
            floor_bytes=policy.floor_bytes(sample.total_bytes),
            small_bytes=policy.small_bytes,
            level=Level.UNKNOWN if decision.level is Level.UNKNOWN else sample.level,
            admitting=decision.admitting,
            calm_seconds=decision.calm_seconds,
            reservations=self.records.reservations(),
            releasing_bytes=self._releases.size_bytes,
            unreturned_bytes=self.unreturned.size_bytes,
            admit_unsized=self.rules.admit_unsized,
            now=now,
        )

    # -- what others want to know ---------------------------------------------------------------------------------

    def evicted(self, key: Key) -> Eviction | None:
        """Why a service had to go, until it is loaded again."""
        return record.evicted if (record := self.records.get(key)) else None

    @property
    def is_short(self) -> bool:
        """Whether the host was short of memory at the last look."""
        return self.decision is not None and self.decision.level >= Level.WARNING

    @property
    def is_critical(self) -> bool:
        """Whether it was about to run out of memory then."""
        return self.decision is not None and self.decision.level is Level.CRITICAL

    @property
    def is_releasing(self) -> bool:
        """Whether memory of an engine that has ended is not seen to be back."""
        return bool(self._releases)

    def capacity_summary(self, now: float) -> CapacitySummary | None:
        """What there is for engines; None before the first look."""
        return None if self.decision is None else summarize_capacity(self.capacity(now), self.sample.total_bytes)

    def view(self, now: float) -> MemoryView | None:
        """A snapshot for people and metrics; None before the first look."""
        capacity_summary = self.capacity_summary(now)
        if self.decision is None or capacity_summary is None:
            return None
        return MemoryView(
            self.decision.level,
            self.sample,
            self.budget,
            capacity_summary.free_bytes,
            self.records.reservations(),
            self.records.requests(),
            dict(self.evictions),
            dict(self.skips),
            self.unreturned.size_bytes,
        )

    # -- details --------------------------------------------------------------------------------------------------

    def _promise(
        self, key: Key, need: Need, now: float, *, role: Role = Role.SERVING, returns: bool = False
    ) -> Reservation:
        max_bytes = self._max_bytes(key)
        granted_bytes = max_bytes if max_bytes > self.budget.limit_bytes else 0
        return self.records.promise(
            key,
            need,
            now,
            role=role,
            returns=returns,
            granted_bytes=granted_bytes,
            capacity_bytes=self._capacity_bytes(),
        )

    def _max_bytes(self, key: Key) -> int:
        """What all engines may take once one of this service is among them."""
        return self.budget.for_model(self.records[key].spec.hardware).limit_bytes

    def _up_to_date(self, record: ServiceRecord, request: Request, now: float) -> Request:
        request = record.up_to_date(self.rules.policy, request, self._max_bytes(request.key), now)
        return attrs.evolve(request, may_displace=request.may_displace and not self.records.is_adopting)

    def _current_request(self, record: ServiceRecord, now: float) -> Request:
        """A request as the newest objects have it."""
        assert record.request is not None, "only what waits is asked"
        request, dwell = self._up_to_date(record, record.request, now), 0.0
        if request.returns:
            dwell = record.dwell_seconds(self.rules.policy, self._capacity_bytes(), self._reclaim_bytes)
        return attrs.evolve(request, dwell_seconds=dwell)

    def _stop_engine(self, engine: Reservation, evict: Eviction, now: float) -> Orders:
        if not engine.held or engine.evicted_why is not None:
            return ()
        engine = self._mark_exiting(engine, now + self.rules.gentle_seconds, evicted_why=evict.why)
        if evict.urgent:
            engine = self._expedite(engine, now)
        return (StopEngine(engine, evict),)

    def _mark_exiting(self, engine: Reservation, by: float, **changes: Any) -> Reservation:
        return self.records.change(engine, exit_deadline=by, host_free_bytes=self._host_free_bytes, **changes)

    def _expedite(self, engine: Reservation, now: float) -> Reservation:
        return self.records.change(engine, exit_deadline=now + self.rules.urgent_seconds, urgent=True)

    def _capacity_bytes(self) -> int:
        """What all engines could have: what they hold, what is coming back, and what is left."""
        return self.sample.available_bytes + self.records.held_bytes() + self._releases.size_bytes

    @property
    def _reclaim_bytes(self) -> int:
        return self.rules.policy.reclaim_bytes(self.sample.total_bytes)

    def _expect_release(self, gone: Reservation, now: float) -> None:
        """The bytes of a process that has gone count until they are seen to be back, or for so long."""
        policy = self.rules.policy
        if gone.resident_bytes >= policy.worthwhile_bytes:
            before = gone.host_free_bytes if gone.is_exiting else self._host_free_bytes
            until = now + policy.release_seconds
            self._releases.expect(gone.resident_bytes, before, until, gone.need.device_bytes)
