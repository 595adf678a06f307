"""Decide on the memory of one host, and record the decisions. Pure: no clock, no task, no process.

`admission` and `eviction` decide, `records` stores the reservations. Every method that can change which engines run
returns orders, which the ledger carries out before anything else happens: two simultaneous requests cannot reserve the
same bytes.

The memory of an engine that has exited stays reserved until samples show that it was released. macOS may keep memory
that the GPU had wired for a killed process until the next boot (oMLX issue 2184). No process owns it then; it shows
only as a difference: wired memory minus the device memory of the engines.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import UNKNOWN, Cost
from llmkube.runtimes.swap import Outcome as Room
from llmkube.supervisor.host.sample import UNREADABLE, Level, Sample
from llmkube.supervisor.memory import admission
from llmkube.supervisor.memory.admission import Strategy
from llmkube.supervisor.memory.budget import Budget, host_budget
from llmkube.supervisor.memory.capacity import Capacity, CapacitySummary, Door, MemoryView, summarize_capacity
from llmkube.supervisor.memory.eviction import Cause, Decision, Eviction, Observation, Skip
from llmkube.supervisor.memory.policy import Rules
from llmkube.supervisor.memory.records import Records, ServiceRecord
from llmkube.supervisor.memory.refusal import Refusal, find_refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Request, Reservation, Role, Usage

RECOVERED_SHARE: Final = 0.8
"""Memory counts as released when this share of it is available again; other programs may have taken the rest."""

FORGOTTEN_SWAPS: Final = 0.1
"""Recent swaps of a tenant below which they are forgotten."""


@attrs.frozen
class _Release:
    size_bytes: int
    before_bytes: int
    until: float
    device_bytes: int


@attrs.define(eq=False)
class PendingReleases:
    """Memory of exited engines until a sample shows that it was released, or its deadline has passed."""

    _open: list[_Release] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        """Whether a release is pending."""
        return bool(self._open)

    @property
    def size_bytes(self) -> int:
        """Bytes that are expected to be released."""
        return sum(each.size_bytes for each in self._open)

    def expect(self, size_bytes: int, before_bytes: int, until: float, device_bytes: int = 0) -> None:
        """Expect the release of `size_bytes`, `device_bytes` of them on the device; `before_bytes` were available."""
        self._open.append(_Release(size_bytes, before_bytes, until, min(size_bytes, device_bytes)))

    def update(self, sample: Sample, now: float) -> int:
        """Update the pending releases with a sample; return the device bytes whose deadline has passed."""
        before = min((each.before_bytes for each in self._open), default=0)
        # Linux frees a process's memory before its exit is seen. Pages of a mapped model were available all the time.
        is_seen = sample.wired_bytes is None or sample.available_bytes >= before + RECOVERED_SHARE * self.size_bytes
        if sample.level is not Level.UNKNOWN and is_seen:
            self._open.clear()
        overdue = sum(each.device_bytes for each in self._open if now >= each.until)
        self._open = [each for each in self._open if now < each.until]
        return overdue


@attrs.define(eq=False)
class UnreturnedMemory:
    """Memory that has stayed wired, for no process, after engines exited.

    Attributes:
        min_bytes: Smaller amounts are not reported: other programs wire memory, too.
    """

    min_bytes: int
    size_bytes: int = 0
    _max_bytes: int = 0
    _usual_bytes: int | None = None  # wired memory of other programs while nothing is unreturned

    def record_unreleased(self, size_bytes: int) -> None:
        """Add memory of an exited engine whose release was not seen in time."""
        self._max_bytes += size_bytes

    def update(self, others_bytes: int, *, settled: bool) -> None:
        """Update the estimate with a sample.

        Args:
            others_bytes: Wired memory minus the device memory that engines have reserved.
            settled: Whether no engine is loading or exiting: otherwise the difference may be too small, and can only
                raise the estimate.
        """
        if self._usual_bytes is None or (settled and not self._max_bytes):
            self._usual_bytes, self._max_bytes = others_bytes, 0
            return
        unexplained = min(self._max_bytes, max(0, others_bytes - self._usual_bytes))
        unexplained = unexplained if unexplained >= self.min_bytes else 0
        if settled:  # it can only shrink, since no other engine has exited
            self.size_bytes = self._max_bytes = unexplained
        else:
            self.size_bytes = max(self.size_bytes, unexplained)


@attrs.frozen
class Grant:
    """Grants a waiting service its reservation."""

    reservation: Reservation


@attrs.frozen
class ReportRefusal:
    """Reports to a service why it waits."""

    key: Key
    refusal: Refusal


@attrs.frozen
class StopEngine:
    """Stops an engine."""

    reservation: Reservation
    evict: Eviction


@attrs.frozen
class ReportDoors:
    """Reports that doors have been closed or opened."""


@attrs.frozen
class ExpediteStop:
    """Makes an engine that is stopping cut its requests short."""

    reservation: Reservation


Order = Grant | ReportRefusal | StopEngine | ReportDoors | ExpediteStop
Orders = tuple[Order, ...]


@attrs.define(eq=False)
class Book:
    """The memory of one host: its budget, its last sample, and its records.

    Times (`now`) are those of the monotonic clock, in seconds.

    Attributes:
        rules: The operator's settings.
        sample: The last credible sample of the host.
        budget: The limit for all engines together.
        decision: The last decision about pressure; None before the first sample, when nothing is admitted.
        evictions: Evictions since the agent started, by cause.
        skips: Number of times memory was short but no engine was evicted, by reason; counted when the reason changes.
        costs: Costs of loading services, as measured on this host.
        swaps: Displacements by tenant; `Cost.loads` is their number.
        closed: Doors that are closed to new requests.
        room: Residents that made room at the last decision, and for which service.
        unreturned: Memory that macOS has kept after engines exited.
    """

    rules: Rules = Rules()
    sample: Sample = UNREADABLE
    budget: Budget = Budget(0, 0)
    decision: Decision | None = None
    evictions: Counter[Cause] = attrs.field(factory=Counter)
    skips: Counter[Skip] = attrs.field(factory=Counter)
    records: Records = attrs.field(factory=Records)
    costs: dict[Key, Cost] = attrs.field(factory=dict)
    swaps: dict[str, Cost] = attrs.field(factory=dict)
    closed: Mapping[Key, Door] = {}
    room: Room = Room()
    unreturned: UnreturnedMemory = attrs.field(init=False)
    _releases: PendingReleases = attrs.field(factory=PendingReleases)
    _host_free_bytes: int = 0  # available bytes of the last sample, even if that was not credible
    _engines_limit: int | None = None

    def __attrs_post_init__(self) -> None:
        self.unreturned = UnreturnedMemory(self.rules.policy.worthwhile_bytes)

    # -- services -------------------------------------------------------------------------------------------------

    def set_spec(self, key: Key, spec: MemorySpec, now: float) -> Orders:
        """Update the spec of a service from its objects."""
        return self.admit(now) if self.records[key].set_spec(spec) else ()

    def set_usage(self, key: Key, usage: Usage, now: float) -> Orders:
        """Update the requests and users of a service: it may displace others for them, and is not displaced."""
        before = self.records[key].usage
        self.records[key].set_usage(usage)
        if usage.requests > before.requests:
            self.costs[key] = self.costs.get(key, UNKNOWN).used(now)
        is_drained = key in self.closed and usage.requests == usage.held
        is_shared = usage.held > 0 and usage.tenants.keys() != before.tenants.keys()
        return self.admit(now) if is_drained or is_shared or usage.in_use is not before.in_use else ()

    def adopt(self, key: Key, need: Need, now: float) -> None:
        """Reserve at once the memory of a running engine that an earlier agent started."""
        self.records.reserve(key, need, now, held=False)

    def forget(self, key: Key, now: float) -> Orders:
        """Remove a service that this host no longer serves, with its reservations."""
        record = self.records.pop(key, None)
        for each in record.reservations.values() if record else ():
            self._expect_release(each, now)
        return self.admit(now)

    def make_request(self, key: Key, need: Need, now: float) -> Orders:
        """Let a service wait for memory."""
        record = self.records[key]
        record.request, record.reported = record.make_request(self.rules.policy, Request(key, need, since=now)), None
        return self.admit(now)

    def withdraw(self, key: Key) -> None:
        """Withdraw the request of a service."""
        if (record := self.records.get(key)) is not None:
            record.request = None

    def request_successor(self, key: Key, need: Need, now: float) -> Reservation | None:
        """Reserve memory for a second engine of a service; return None if there is not enough now."""
        if (
            self.records[key].engine(Role.SUCCESSOR) is not None
            or self.replacement(key, need, now) is not Strategy.ROLLING_UPDATE
        ):
            return None
        return self._reserve(key, need.capped_at(self._max_bytes(key)), now, role=Role.SUCCESSOR)

    def replacement(self, key: Key, need: Need, now: float) -> Strategy | Refusal:
        """Return how to replace the engine of a service by one with another plan, or why not to do it yet."""
        if self.decision is None:
            return Strategy.RECREATE  # it is not known whether the host can hold both
        request = self._with_newest_spec(self.records[key], Request(key, need, since=now), now)
        return admission.replacement(request, self.capacity(now))

    def permanent_refusal(self, key: Key, need: Need, now: float) -> Refusal | None:
        """Return why a service could not start even alone on the host; None if it could, or that is not known."""
        if self.decision is None:
            return None
        record = self.records[key]
        request = record.make_request(self.rules.policy, Request(key, need, since=now))
        alone = Capacity(self.budget, self.budget.total_bytes, admit_unsized=self.rules.admit_unsized)
        return find_refusal(self._with_newest_spec(record, request, now), alone)

    # -- engines --------------------------------------------------------------------------------------------------

    def record_loaded(self, reservation: Reservation, now: float, *, adopted: bool = False) -> None:
        """Record that the engine answers: its memory is allocated, and the next evicted service may return."""
        key, record = reservation.key, self.records.get(reservation.key)
        if record is not None:
            record.evicted = None
            record.relapses = record.relapses if reservation.returns else 0
        if not adopted:
            self.costs[key] = self.costs.get(key, UNKNOWN).loaded(now - reservation.since, now)
        # A measurement from the time of loading is out of date.
        self.records.change(reservation, loaded_at=now, busy_at=now, measured=False)

    def record_activity(self, reservation: Reservation, now: float) -> None:
        """Record that an engine has just had work."""
        self.records.change(reservation, busy_at=now)
        self.costs[reservation.key] = self.costs.get(reservation.key, UNKNOWN).seen(now)

    def set_device_limit(self, limit_bytes: int) -> None:
        """Set the GPU memory limit that an engine reported; it applies where this host could only guess."""
        self._engines_limit = limit_bytes

    def take_over(self, successor: Reservation, now: float) -> None:
        """Make the successor the serving engine, and its predecessor an exiting one."""
        record = self.records.get(successor.key)
        if record is None or self.records.newest(successor).role is not Role.SUCCESSOR:
            return
        before = record.engine(Role.SERVING)
        self.records.change(successor, role=Role.SERVING)
        if before is not None:
            self._mark_exiting(before, now + self.rules.gentle_seconds, role=Role.PREDECESSOR)

    def record_stopping(self, key: Key, now: float) -> None:
        """Record that the engine of a service is being stopped: its memory will be free."""
        if (engine := self.records.serving(key)) is not None and not engine.is_exiting:
            self._mark_exiting(engine, now + self.rules.gentle_seconds)

    def release(self, reservation: Reservation, now: float) -> Orders:
        """Release the reservation of an engine whose process is gone."""
        record = self.records.get(reservation.key)
        gone = record.remove(reservation.number) if record else None
        if gone is None:
            return ()  # the service was forgotten, and its memory released with it
        self._expect_release(gone, now)
        return self.admit(now)

    # -- the host -------------------------------------------------------------------------------------------------

    def observe(self, sample: Sample, footprints: Mapping[int, int], now: float) -> None:
        """Record a sample of the host and the memory of processes by pid; call `decide` next."""
        self._host_free_bytes = sample.available_bytes
        for each in self.records.reservations():
            if each.pid in footprints:
                held = footprints[each.pid]
                reserved = each.need.total_bytes if each.need.elsewhere and each.loaded_at is not None else 0
                # An exiting process that is not among the footprints may be gone, and its memory released.
                left = sample.available_bytes if each.is_exiting else 0
                resident, peak = max(held, reserved), max(each.peak_bytes, held)
                self.records.change(each, measured=True, resident_bytes=resident, peak_bytes=peak, host_free_bytes=left)
        self.unreturned.record_unreleased(self._releases.update(sample, now))
        if sample.level is Level.UNKNOWN:
            return
        if sample.wired_bytes is not None:
            settled = not (self.is_releasing or self.records.is_moving)
            self.unreturned.update(sample.wired_bytes - self.records.device_bytes(), settled=settled)
        self.sample = sample
        limit = self._engines_limit if sample.device_limit_guessed and self._engines_limit else None
        budget = host_budget(sample.total_bytes, self.rules.fraction, limit or sample.device_limit_bytes)
        self.budget = attrs.evolve(budget, devices=self.rules.devices)
        spare = self._capacity_bytes()
        for each in self.records.reservations():
            if each.capacity_bytes < spare:
                self.records.change(each, capacity_bytes=spare)

    def decide(self, decision: Decision, now: float) -> Orders:
        """Apply a decision about pressure: admit what fits, evict what was chosen."""
        self.decision = decision
        expedited: Orders = ()
        if decision.level is Level.CRITICAL:
            slow = [each for each in self.records.reservations() if each.is_exiting and not each.urgent]
            expedited = tuple(ExpediteStop(self._expedite(each, now)) for each in slow)
        orders = expedited + self.admit(now)
        return orders + self.evict(decision.evict, now) if decision.evict is not None else orders

    def evict(self, evict: Eviction, now: float) -> Orders:
        """Stop the engine of a service, and its successor; the service then waits to return."""
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
        if evict.cause is not Cause.DISPLACED or not engine.spec.on_request:  # otherwise it does not wait to return
            record.record_eviction(evict, engine)
        self.evictions[evict.cause] += 1
        return orders + self._stop_engine(engine, evict, now)

    def admit(self, now: float) -> Orders:
        """Reserve memory for every service that fits now, displace others for it, and report why the rest wait."""
        if self.decision is None or not (self.records.is_awaited or self.closed):
            return ()
        waiting = [(key, record) for key, record in self.records.items() if record.request is not None]
        queue = {key: self._current_request(record, now) for key, record in waiting}
        outcome = admission.step(tuple(queue.values()), self.capacity(now))
        orders: list[Order] = []
        for key in outcome.admitted:
            queued = queue[key]
            orders.append(Grant(self._reserve(key, queued.need, now, returns=queued.returns)))
        for key, refusal in outcome.refused:
            if self.records[key].should_report(refusal, now):
                orders.append(ReportRefusal(key, refusal))
        self.room = outcome.room
        orders += self._set_doors({**outcome.room.closed, **outcome.room.displaced}, now)
        for each in outcome.displaced:
            self.records[each.winner].displaced_at = now
            self._charge(self.records[each.winner].usage, now)
            orders += self.evict(Eviction(each.victim, Cause.DISPLACED, each.why, winner=each.winner), now)
        return tuple(orders)

    def assess(self, sample: Sample) -> Observation:
        """Return the input of the eviction policy; call `observe` with the sample first."""
        unsettled = self.is_releasing or self.records.is_adopting
        return Observation(sample, self.records.reservations(), unsettled, self.records.over_bytes(self.budget))

    def capacity(self, now: float) -> Capacity:
        """Return the input of admission."""
        decision, sample, policy = self.decision, self.sample, self.rules.policy
        assert decision is not None, "nothing is admitted before the first sample"
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
            costs=self.costs,
            swaps=self.swaps,
            closed=self.closed,
            now=now,
            devices=sample.devices,
        )

    # -- queries --------------------------------------------------------------------------------------------------

    def load_seconds(self, key: Key) -> float:
        """Return the duration of a service's last load, 0 if it is not known."""
        return cost.load_seconds if (cost := self.costs.get(key)) and cost.loads else 0.0

    @property
    def next_at(self) -> float:
        """Time of the next decision if nothing happens before; infinite for none."""
        return math.inf if self.room.next_at is None or not self.records.is_awaited else self.room.next_at

    def evicted(self, key: Key) -> Eviction | None:
        """Return why a service was evicted; None once it is loaded again."""
        return record.evicted if (record := self.records.get(key)) else None

    @property
    def is_short(self) -> bool:
        """Whether the host was short of memory at the last decision."""
        return self.decision is not None and self.decision.level >= Level.WARNING

    @property
    def is_critical(self) -> bool:
        """Whether the host was about to run out of memory at the last decision."""
        return self.decision is not None and self.decision.level is Level.CRITICAL

    @property
    def is_releasing(self) -> bool:
        """Whether memory of an exited engine has yet to be released."""
        return bool(self._releases)

    def capacity_summary(self, now: float) -> CapacitySummary | None:
        """Return the memory for engines; None before the first sample."""
        return None if self.decision is None else summarize_capacity(self.capacity(now), self.sample.total_bytes)

    def view(self, now: float) -> MemoryView | None:
        """Return a snapshot for people and metrics; None before the first sample."""
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

    def _reserve(
        self, key: Key, need: Need, now: float, *, role: Role = Role.SERVING, returns: bool = False
    ) -> Reservation:
        max_bytes = self._max_bytes(key)
        granted_bytes = max_bytes if max_bytes > self.budget.limit_bytes else 0
        limits = {"granted_bytes": granted_bytes, "capacity_bytes": self._capacity_bytes()}
        return self.records.reserve(key, need, now, role=role, returns=returns, **limits)

    def _max_bytes(self, key: Key) -> int:
        """Return the limit for all engines together once one of this service is among them."""
        return self.budget.for_model(self.records[key].spec.hardware).limit_bytes

    def _with_newest_spec(self, record: ServiceRecord, request: Request, now: float) -> Request:
        request = record.with_newest_spec(self.rules.policy, request, self._max_bytes(request.key), now)
        return attrs.evolve(request, may_displace=request.may_displace and not self.records.is_adopting)

    def _current_request(self, record: ServiceRecord, now: float) -> Request:
        """Return the request of a service with its newest spec."""
        assert record.request is not None, "only waiting services are passed"
        request, dwell = self._with_newest_spec(record, record.request, now), 0.0
        if request.returns:
            dwell = record.dwell_seconds(self.rules.policy, self._capacity_bytes(), self._reclaim_bytes)
        return attrs.evolve(request, dwell_seconds=dwell)

    def _charge(self, usage: Usage, now: float) -> None:
        """Charge a displacement to the tenant whose request waits longest; forget those of long ago."""
        tenant = next((name for name, at in usage.tenants.items() if at == math.inf), None)
        if tenant is not None:
            kept = {name: cost for name, cost in self.swaps.items() if cost.recent_loads(now) >= FORGOTTEN_SWAPS}
            self.swaps = {**kept, tenant: self.swaps.get(tenant, UNKNOWN).loaded(0.0, now)}

    def _set_doors(self, closed: Mapping[Key, Key], now: float) -> Orders:
        """Close these doors; the others are open again, except those of engines that exit."""
        before = self.closed
        kept = {key for key in before if (engine := self.records.serving(key)) is not None and engine.is_exiting}
        doors = {key: Door(winner, now) for key, winner in closed.items()}
        self.closed = {**doors, **{key: door for key, door in before.items() if key in kept or key in doors}}
        return (ReportDoors(),) if self.closed.keys() != before.keys() else ()

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
        """Return the bytes that all engines could have: available, held, and being released."""
        return self.sample.available_bytes + self.records.held_bytes() + self._releases.size_bytes

    @property
    def _reclaim_bytes(self) -> int:
        return self.rules.policy.reclaim_bytes(self.sample.total_bytes)

    def _expect_release(self, gone: Reservation, now: float) -> None:
        """Keep the bytes of a process that is gone reserved until a sample shows their release, or a deadline."""
        policy = self.rules.policy
        if gone.resident_bytes >= policy.worthwhile_bytes:
            before = gone.host_free_bytes if gone.is_exiting else self._host_free_bytes
            until = now + policy.release_seconds
            self._releases.expect(gone.resident_bytes, before, until, gone.need.device_bytes)
