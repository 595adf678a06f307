"""The book alone: its reservations, its orders, and its state after all services are gone. No Trio."""

import math

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.admission import Strategy
from llmkube.supervisor.memory.book import (
    Book,
    ExpediteStop,
    Grant,
    PendingReleases,
    ReportDoors,
    ReportRefusal,
    StopEngine,
    UnreturnedMemory,
)
from llmkube.supervisor.memory.eviction import Cause, Decision, Eviction, Observation, PressureState, step
from llmkube.supervisor.memory.policy import Policy
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Role, Usage

GIB = 1 << 30
TOTAL, OTHERS = 64 * GIB, 8 * GIB
CALM = Decision(Level.NORMAL, admitting=True, calm_seconds=1e9)
KEYS = tuple(Key("ns", name) for name in "abcde")
A, B, C = KEYS[:3]


def opened(available=56, **facts):
    """A book with one assessment of its host."""
    book = Book(**facts)
    book.observe(Sample(TOTAL, available * GIB, Level.NORMAL), {}, 0.0)
    book.decide(CALM, 0.0)
    return book


def served(book, key, gib, now=0.0):
    """The reservation of an engine that has loaded."""
    (start,) = book.make_request(key, Need(gib * GIB), now)
    book.records.change(start.reservation, pid=hash(key))
    book.record_loaded(book.records.newest(start.reservation), now)
    return book.records.newest(start.reservation)


def kinds(orders):
    return [type(order) for order in orders]


@pytest.mark.parametrize(
    ("gib", "order"),
    [(20, Grant), (48, Grant), (49, ReportRefusal)],
)
def test_a_request_is_answered_at_once(gib, order):
    """A request that fits is reserved in the same call, and one that does not gets the reason."""
    assert kinds(opened().make_request(A, Need(gib * GIB), 1.0)) == [order]


def test_a_models_own_budget_above_the_default_is_not_exceeded():
    """An engine of 52 GiB under its Model's 56Gi is within bounds, even once that is removed; a host's cap applies."""
    book = opened(available=64)
    book.set_spec(A, MemorySpec(hardware=Hardware(memory_budget="56Gi")), 0.0)
    served(book, A, 52)
    book.set_spec(A, MemorySpec(), 2.0)
    assert book.assess(Sample(TOTAL, 12 * GIB, Level.NORMAL)).over_bytes == 0
    book.observe(Sample(48 * GIB, 12 * GIB, Level.NORMAL), {}, 3.0)
    assert book.assess(Sample(48 * GIB, 12 * GIB, Level.NORMAL)).over_bytes == 4 * GIB


def test_before_the_first_assessment_a_request_waits():
    """Without an assessment of the host there is no order, and the first one brings it."""
    book = Book()
    assert book.make_request(A, Need(GIB), 0.0) == ()
    book.observe(Sample(TOTAL, 56 * GIB, Level.NORMAL), {}, 1.0)
    assert kinds(book.decide(CALM, 1.0)) == [Grant]


def test_a_more_important_request_evicts_another_engine():
    """The order names the reservation and the winner, and the winner gets the reason of its wait."""
    book = opened()
    victim = served(book, A, 40)
    book.set_spec(B, MemorySpec("high"), 1.0)
    reported, closed, leave = book.make_request(B, Need(40 * GIB), 1.0)
    assert (closed, book.closed[A].winner) == (ReportDoors(), B)
    assert isinstance(reported, ReportRefusal)
    assert reported.key == B
    assert isinstance(leave, StopEngine)
    assert leave.reservation.number == victim.number
    assert leave.evict.winner == B
    assert kinds(book.release(leave.reservation, 2.0)) == [Grant, ReportDoors]
    assert not book.closed


def test_an_engine_is_evicted_once_and_expedited_when_memory_is_critical():
    """A second eviction orders nothing; CRITICAL takes the time for requests away, once."""
    book = opened()
    served(book, A, 30)
    assert kinds(book.evict(Eviction(A, Cause.WARNING, "short"), 1.0)) == [StopEngine]
    assert book.evict(Eviction(A, Cause.WARNING, "short"), 1.0) == ()
    assert kinds(book.decide(Decision(Level.CRITICAL), 2.0)) == [ExpediteStop]
    assert book.decide(Decision(Level.CRITICAL), 3.0) == ()


def test_an_adopted_engine_is_not_evicted_before_a_task_holds_it():
    """An order that no task could carry out is not given."""
    book = opened()
    book.adopt(A, Need(30 * GIB), 0.0)
    assert book.evict(Eviction(A, Cause.CRITICAL, "short"), 1.0) == ()
    book.records.change(book.records.serving(A), held=True)
    assert kinds(book.evict(Eviction(A, Cause.CRITICAL, "short"), 1.0)) == [StopEngine]


def test_a_successor_has_a_reservation_of_its_own_until_it_serves():
    """Two engines of one service are both counted; the replaced one is until its process has exited."""
    book = opened()
    before = served(book, A, 20)
    assert book.replacement(A, Need(20 * GIB), 1.0) is Strategy.ROLLING_UPDATE
    after = book.request_successor(A, Need(20 * GIB), 1.0)
    assert book.request_successor(A, Need(GIB), 1.0) is None
    book.take_over(after, 2.0)
    assert {each.number: each.role for each in book.records.reservations()} == {
        before.number: Role.PREDECESSOR,
        after.number: Role.SERVING,
    }
    book.release(before, 3.0)
    assert [each.number for each in book.records.reservations()] == [after.number]


def test_a_successor_alone_is_the_one_that_serves():
    """When the engine before it ends by itself, its successor takes its place in the book."""
    book = opened()
    before = served(book, A, 20)
    after = book.request_successor(A, Need(20 * GIB), 1.0)
    book.release(before, 2.0)
    assert book.records.serving(A).number == after.number


def test_a_displacement_is_charged_to_the_tenant_that_waits_longest():
    """Not to one whose request has ended, nor to others that wait, and not for ever."""
    book, now = opened(), 0.0
    for key, other, tenant in ((A, B, "one"), (B, A, "two"), (A, B, "one"), (C, A, "three")):
        book.set_spec(key, MemorySpec(on_request=True), now)
        book.set_spec(other, MemorySpec(on_request=True), now)
        held = served(book, other, 40, now)
        now += 3600.0
        book.set_usage(key, Usage(1, 1, now, tenants={"gone": now, tenant: math.inf, "later": math.inf}), now)
        assert StopEngine in kinds(book.make_request(key, Need(40 * GIB), now))
        book.forget(key, now)
        book.release(held, now)
        book.forget(other, now)
        book.observe(Sample(TOTAL, 56 * GIB, Level.NORMAL), {}, now)
        book.decide(CALM, now)
    assert {name: cost.recent_loads(now) for name, cost in book.swaps.items()} == {"one": 0.25 * 1.0625, "three": 1.0}


def test_the_same_reason_is_reported_once():
    """Assessments that change nothing order nothing."""
    book = opened()
    served(book, A, 40)
    assert kinds(book.make_request(B, Need(40 * GIB), 1.0)) == [ReportRefusal]
    assert not any(book.decide(CALM, float(second)) for second in range(2, 300))


@settings(stateful_step_count=40)
class BookMachine(RuleBasedStateMachine):
    """Services request, load, stay within their reservations, are evicted, replaced and deleted, and exit."""

    @initialize()
    def begin(self):
        self.now, self.reported, self.held, self.book = 0.0, set(), {}, Book()
        self.assess(Level.NORMAL)

    def carry_out(self, orders):
        for order in orders:
            if isinstance(order, Grant):
                self.held[order.reservation.number] = self.book.records.change(order.reservation, held=True)
            elif isinstance(order, ReportRefusal):
                self.reported.add(order.key)

    @rule(level=st.sampled_from([Level.NORMAL, Level.NORMAL, Level.WARNING, Level.CRITICAL, Level.UNKNOWN]))
    def assess(self, level):
        held = {each.number: each.need.total_bytes for each in self.held.values() if self.book.records.newest(each).pid}
        sample = Sample(TOTAL, TOTAL - OTHERS - sum(held.values()), level)
        self.now += 15.0
        self.book.observe(sample, held, self.now)
        calm = level is Level.NORMAL
        self.carry_out(self.book.decide(Decision(level, admitting=calm, calm_seconds=1e9 * calm), self.now))

    @rule(key=st.sampled_from(KEYS), gib=st.integers(1, 50))
    def make_request(self, key, gib):
        if self.book.records.serving(key) is None and key not in {each.key for each in self.book.records.requests()}:
            self.reported.discard(key)
            self.carry_out(self.book.make_request(key, Need(gib * GIB), self.now))

    @rule(key=st.sampled_from(KEYS), gib=st.integers(1, 30))
    def request_successor(self, key, gib):
        if self.book.records.serving(key) and (after := self.book.request_successor(key, Need(gib * GIB), self.now)):
            self.held[after.number] = after

    @rule(key=st.sampled_from(KEYS), priority=st.sampled_from(["low", "normal", "high"]), protected=st.booleans())
    def edit(self, key, priority, protected):
        self.carry_out(self.book.set_spec(key, MemorySpec(priority, protected), self.now))

    @rule(key=st.sampled_from(KEYS), cause=st.sampled_from([Cause.CRITICAL, Cause.WARNING, Cause.IDLE]))
    def evict(self, key, cause):
        self.carry_out(self.book.evict(Eviction(key, cause, "short"), self.now))

    @rule(key=st.sampled_from(KEYS))
    def withdraw(self, key):
        self.book.withdraw(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def load(self, data):
        one = data.draw(st.sampled_from(sorted(self.held)))
        self.book.records.change(self.held[one], pid=one)
        self.book.record_loaded(self.held[one], self.now)
        self.book.take_over(self.held[one], self.now)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data):
        one = data.draw(st.sampled_from(sorted(self.held)))
        self.carry_out(self.book.release(self.held.pop(one), self.now))

    @invariant()
    def reservations_fit_the_budget(self):
        """All reservations together fit the budget at all times."""
        promised = sum(each.total_bytes for each in self.book.records.reservations())
        assert promised <= self.book.budget.limit_bytes

    @invariant()
    def every_reservation_is_held_by_an_engine(self):
        """No reservation outlives its engine, and none is dropped before."""
        assert {each.number for each in self.book.records.reservations()} == set(self.held)

    @invariant()
    def every_request_has_the_reason_of_its_wait(self):
        """A service that waits has the reason."""
        assert {each.key for each in self.book.records.requests()} <= self.reported

    @invariant()
    def one_engine_of_a_service_serves(self):
        """A service has one serving engine at most, and one successor."""
        roles = [
            (each.key, each.role) for each in self.book.records.reservations() if each.role is not Role.PREDECESSOR
        ]
        assert len(roles) == len(set(roles))

    def teardown(self):
        for each in KEYS:
            self.book.withdraw(each)
        for each in self.held.values():
            self.book.release(each, self.now)
        self.book.observe(Sample(TOTAL, TOTAL - OTHERS, Level.NORMAL), {}, self.now + Policy().release_seconds + 1)
        assert not self.book.records.reservations()
        assert not self.book.is_releasing
        self.book.decide(CALM, self.now)
        assert self.book.capacity(self.now).free_bytes == self.book.budget.limit_bytes


TestBook = BookMachine.TestCase


def test_a_forgotten_service_releases_everything():
    """A service's reservations and requests are deleted with it, and a late release of its engine changes nothing."""
    book = opened()
    held = served(book, A, 40)
    book.make_request(B, Need(40 * GIB), 1.0)
    assert kinds(book.forget(A, 2.0)) == [Grant]
    before = book.records.reservations()
    assert book.release(held, 3.0) == ()
    assert book.records.reservations() == before


@pytest.mark.parametrize(("elsewhere", "gone"), [(False, False), (True, True)])
def test_a_model_that_a_daemon_holds_frees_its_reservation(elsewhere, gone):
    """The process of the engine is small, and the model is not: under pressure its service is evicted all the same."""
    book = opened()
    (start,) = book.make_request(A, Need(30 * GIB, elsewhere=elsewhere), 1.0)
    book.records.change(start.reservation, pid=7)
    book.observe(Sample(TOTAL, 50 * GIB, Level.NORMAL), {7: 60 << 20}, 2.0)
    loading = book.records.newest(start.reservation)
    assert (loading.resident_bytes, loading.reclaimable_bytes) == (60 << 20, 30 * GIB)
    book.record_loaded(loading, 3.0)
    book.observe(Sample(TOTAL, GIB >> 2, Level.CRITICAL), {7: 60 << 20}, 4.0)
    held = book.records.newest(start.reservation)
    assert (held.reclaimable_bytes, held.unused_bytes(4.0)) == (
        (30 * GIB, 0) if elsewhere else (60 << 20, (30 << 30) - (60 << 20))
    )
    two = held, attrs.evolve(held, number=99, key=B)  # a host's last engine is kept
    policy, state, now = Policy(), PressureState(), 100.0
    seen = Observation(Sample(TOTAL, GIB >> 2, Level.CRITICAL), two)
    for _ in range(60):
        state, decision = step(policy, state, seen, now)
        if decision.evict:
            break
        now += 5.0
    assert (decision.evict is not None) == gone


@pytest.mark.parametrize(
    ("available", "level", "now", "pending"),
    [
        (20, Level.NORMAL, 1.0, 10),  # nothing has come back
        (27, Level.NORMAL, 1.0, 10),  # less than four fifths
        (28, Level.NORMAL, 1.0, 0),
        (28, Level.WARNING, 1.0, 0),
        (28, Level.UNKNOWN, 1.0, 10),  # a reading that failed proves nothing
        (20, Level.NORMAL, 10.0, 0),  # its deadline is over
    ],
)
def test_a_release_is_pending_until_most_of_it_is_seen(available, level, now, pending):
    """10 GiB of an engine that ended with 20 GiB available are back at 28 GiB, or after ten seconds."""
    releases = PendingReleases()
    releases.expect(10 * GIB, 20 * GIB, until=10.0)
    releases.update(Sample(64 * GIB, available * GIB, level, wired_bytes=0), now)
    assert releases.size_bytes == pending * GIB
    assert bool(releases) is (pending > 0)


def test_linux_has_released_what_its_next_sample_does_not_show():
    """The pages of a mapped model are available before and after the exit of its engine."""
    releases = PendingReleases()
    releases.expect(10 * GIB, 20 * GIB, until=10.0)
    releases.update(Sample(64 * GIB, 20 * GIB, Level.UNKNOWN), 1.0)
    assert releases
    releases.update(Sample(64 * GIB, 20 * GIB, Level.NORMAL), 1.0)
    assert not releases


def test_two_releases_are_seen_together():
    """Memory that two engines release is compared with the lower of the two available amounts before."""
    releases = PendingReleases()
    releases.expect(10 * GIB, 20 * GIB, until=10.0)
    releases.expect(10 * GIB, 25 * GIB, until=10.0)
    releases.update(Sample(64 * GIB, 35 * GIB, Level.NORMAL, wired_bytes=0), 1.0)
    assert releases.size_bytes == 20 * GIB
    releases.update(Sample(64 * GIB, 36 * GIB, Level.NORMAL, wired_bytes=0), 1.0)
    assert not releases


def kept(*looks, suspected=40):
    """The suspected bytes after samples of wired memory, in GiB; the engine's 40 GiB are suspected after the first."""
    seen = UnreturnedMemory(GIB)
    for number, (others, settled) in enumerate(looks):
        if number == 1:
            seen.record_unreleased(suspected * GIB)
        seen.update(int(others * GIB), settled=settled)
    return seen.size_bytes / GIB


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        ([(3, True), (3, True)], 0),  # it came back, and other programs have taken what was free
        ([(3, True), (43, True)], 40),
        ([(3, True), (23, True)], 20),
        ([(3, True), (3.5, True)], 0),  # too little to report
        ([(3, True), (90, True)], 40),  # never more than the engine had
        ([(3, True), (43, True), (13, True)], 10),
        ([(3, True), (43, True), (13, True), (43, True)], 10),  # what others wire later is theirs
        ([(3, True), (43, True), (3, True), (43, True)], 0),
        ([(3, True), (43, False), (13, False)], 40),  # an engine loads, and has not wired yet what it has reserved
        ([(3, True), (-7, False), (43, True)], 40),
        ([(43, True), (43, True)], 0),
    ],
)
def test_leaked_wired_memory(looks, wanted):
    """It is the growth of wired memory of others, up to the engine's size, and it only becomes less."""
    assert kept(*looks) == wanted


def test_without_an_earlier_sample_no_leak_is_known():
    """An agent that starts on a Mac with leaked memory has nothing to compare with."""
    seen = UnreturnedMemory(GIB)
    seen.record_unreleased(40 * GIB)
    seen.update(43 * GIB, settled=True)
    assert seen.size_bytes == 0
