"""The ledger as a scope: order of admission, duration of reservations, and no wait without an end."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.eviction import Cause, Decision, Eviction
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.policy import Policy, Rules
from llmkube.supervisor.memory.reservation import MemorySpec, Need
from llmkube.weights.estimate.demand import Component, Location

GIB = 1 << 30
CALM = Decision(Level.NORMAL, admitting=True, calm_seconds=1e9)
A, B, C = (Key("ns", name) for name in "abc")


def sample(ledger, available=56, footprints=None, total=64, decision=CALM):
    """One sample of a host with this much memory left, in GiB."""
    sampled = Sample(total * GIB, int(available * GIB), decision.level, wired_bytes=0)  # as a Mac
    ledger.observe(sampled, footprints or {})
    ledger.decide(decision)


class Service:
    """A service that requests memory, holds it until evicted, and takes its time to exit."""

    def __init__(self, ledger, key, gib, nursery, ends_after=0.0):
        self.ledger, self.key, self.need = ledger, key, Need(int(gib * GIB))
        self.scope, self.allocation, self.reports, self.ends_after = trio.CancelScope(), None, [], ends_after
        nursery.start_soon(self.run)

    async def run(self):
        with self.scope:
            async with self.ledger.admitted(
                self.key, self.need, scope=self.scope, report=self.reports.append
            ) as self.allocation:
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.move_on_after(self.ends_after, shield=True):
                        await trio.sleep_forever()
        self.allocation = None


def evict(ledger, cause, why):
    ledger.carry_out(ledger.book.evict(Eviction(A, cause, why), trio.current_time()))


@pytest.fixture
async def ledger():
    """The ledger of a host with one sample."""
    ledger = Ledger()
    await trio.lowlevel.checkpoint()
    sample(ledger)
    return ledger


async def test_no_service_starts_before_the_first_sample(autojump_clock, nursery):
    """Until the host's memory has been sampled, all services wait, and get no report."""
    ledger = Ledger()
    one = Service(ledger, A, 1, nursery)
    await wait_all_tasks_blocked()
    assert one.allocation is None
    assert not one.reports
    sample(ledger)
    await wait_all_tasks_blocked()
    assert one.allocation is not None


async def test_without_an_eviction_manager_every_service_is_admitted(autojump_clock, nursery):
    """On a host without an eviction manager a need of any size is admitted at once."""
    one = Service(Ledger(watched=False), A, 10_000, nursery)
    await wait_all_tasks_blocked()
    assert one.allocation is not None


@pytest.mark.parametrize(("seen_gib", "promised_gib"), [(12, 12), (48, 48), (90, 48)])
async def test_a_leak_does_not_make_a_model_one_that_never_fits(
    autojump_clock, ledger, nursery, seen_gib, promised_gib
):
    """The peak of an engine is reserved for the next one, up to the bound of all models of the host."""
    need = Need(seen_gib * GIB, estimated_bytes=10 * GIB)
    assert ledger.permanent_refusal(A, need) is None
    one = Service(ledger, A, 0, nursery)
    one.need = need
    await wait_all_tasks_blocked()
    assert one.allocation.reservation.need.total_bytes == promised_gib * GIB


async def test_each_byte_is_reserved_once_for_concurrent_requests(autojump_clock, ledger, nursery):
    """Of three that arrive together and fit two at a time, two start, and the third as soon as one has exited."""
    services = [Service(ledger, key, 20, nursery) for key in (A, B, C)]
    await wait_all_tasks_blocked()
    assert sum(each.allocation is not None for each in services) == 2
    waiting = next(each for each in services if each.allocation is None)
    assert "needs 20.0 GiB" in waiting.reports[-1].message
    next(each for each in services if each.allocation is not None).scope.cancel()
    await wait_all_tasks_blocked()
    assert waiting.allocation is not None


async def test_bytes_stay_reserved_until_the_memory_is_free(autojump_clock, ledger, nursery):
    """Between the eviction and the sample that shows the memory no other service gets it."""
    one = Service(ledger, A, 30, nursery, ends_after=5)
    await wait_all_tasks_blocked()
    ledger.started(one.allocation, 7)
    sample(ledger, 26, {7: 30 * GIB})
    other = Service(ledger, B, 30, nursery)
    one.scope.cancel()
    await trio.sleep(4)
    assert other.allocation is None, "the process still ends"
    await trio.sleep(2)
    sample(ledger, 26)
    await wait_all_tasks_blocked()
    assert other.allocation is None, "the memory is not back"
    sample(ledger, 56)
    await wait_all_tasks_blocked()
    assert other.allocation is not None


async def test_memory_that_never_comes_back_is_waited_for_until_the_deadline(autojump_clock, ledger, nursery):
    """Other programs may take freed memory: after the deadline the ledger releases it, and the host decides."""
    one = Service(ledger, A, 30, nursery)
    await wait_all_tasks_blocked()
    ledger.started(one.allocation, 7)
    sample(ledger, 26, {7: 30 * GIB})
    one.scope.cancel()
    await wait_all_tasks_blocked()
    sample(ledger, 26)
    assert ledger.book.is_releasing
    await trio.sleep(Policy().release_seconds + 1)
    sample(ledger, 26)
    assert not ledger.book.is_releasing


async def test_a_sample_between_an_engines_exit_and_its_release_delays_no_service(autojump_clock, ledger, nursery):
    """Memory that is seen while the exited engine's task still closes does not have to be seen twice."""
    one = Service(ledger, A, 30, nursery, ends_after=5)
    await wait_all_tasks_blocked()
    ledger.started(one.allocation, 7)
    sample(ledger, 26, {7: 30 * GIB})
    evict(ledger, Cause.WARNING, "short")
    await trio.sleep(4)
    sample(ledger, 56)  # process 7 has exited
    await trio.sleep(2)
    assert ledger.book.is_releasing
    sample(ledger, 56)
    assert not ledger.book.is_releasing


async def test_an_early_victim_returns_with_the_need_that_it_held(autojump_clock, ledger, nursery):
    """An engine that outgrew its need, and was evicted before it was measured, waits for as much as it held."""
    scope = trio.CancelScope()
    reports, need = [], Need(10 * GIB, estimated_bytes=10 * GIB)

    async def run():
        with scope:
            async with ledger.admitted(A, need, scope=scope, report=reports.append) as allocation:
                ledger.started(allocation, 7)
                await trio.sleep_forever()
        async with ledger.admitted(A, need, scope=trio.CancelScope(), report=reports.append):
            await trio.sleep_forever()

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    sample(ledger, 30, {7: 26 * GIB})
    evict(ledger, Cause.CRITICAL, "short")
    await wait_all_tasks_blocked()
    sample(ledger, 30)
    await wait_all_tasks_blocked()
    assert "needs 26.0 GiB" in reports[-1].message


async def test_an_adopted_engine_is_counted_before_it_is_taken_over(autojump_clock, nursery):
    """An earlier agent's engine is counted from the start, never waits, and is not evicted while no task holds it."""
    ledger = Ledger()
    ledger.adopt(A, Need(40 * GIB))
    sample(ledger, 16)
    late = Service(ledger, B, 20, nursery)
    await wait_all_tasks_blocked()
    assert late.allocation is None
    evict(ledger, Cause.CRITICAL, "why")
    assert not ledger.book.evictions
    adopted = Service(ledger, A, 40, nursery)
    await wait_all_tasks_blocked()
    assert adopted.allocation is not None
    evict(ledger, Cause.CRITICAL, "why")
    assert ledger.book.evictions == {Cause.CRITICAL: 1}


async def test_a_service_that_is_deleted_while_it_waits_leaves_nothing(autojump_clock, ledger, nursery):
    """A wait that is cancelled holds nothing, and does not affect other waits."""
    Service(ledger, A, 40, nursery)
    big, other = Service(ledger, B, 30, nursery), Service(ledger, C, 20, nursery)
    await wait_all_tasks_blocked()
    big.scope.cancel()
    await wait_all_tasks_blocked()
    ledger.forget(B)
    assert {each.key for each in (*ledger.book.records.reservations(), *ledger.book.records.requests())} == {A, C}
    ledger.forget(A)
    sample(ledger)
    await wait_all_tasks_blocked()
    assert other.allocation is not None


async def test_an_edit_of_the_priority_applies_at_once(autojump_clock, ledger, nursery):
    """A waiting service may evict others as soon as it has become more important than they are."""
    one, other = Service(ledger, A, 40, nursery), None
    await wait_all_tasks_blocked()
    other = Service(ledger, B, 40, nursery)
    await wait_all_tasks_blocked()
    assert one.allocation is not None
    ledger.set_spec(B, MemorySpec("high"))
    await wait_all_tasks_blocked()
    assert (one.allocation is None, other.allocation is not None) == (True, True)
    assert ledger.book.evictions == {Cause.DISPLACED: 1}


async def test_a_victim_is_notified_once(autojump_clock, nursery):
    """An engine that is being evicted is not evicted again, but expedited when memory becomes critical."""
    notified = []
    ledger = Ledger(Book(Rules(gentle_seconds=45, urgent_seconds=15)), notified=notified.append)
    sample(ledger)
    one = Service(ledger, A, 30, nursery, ends_after=100)
    await wait_all_tasks_blocked()
    allocation = one.allocation
    evict(ledger, Cause.WARNING, "short")
    evict(ledger, Cause.WARNING, "short")
    assert len(notified) == 1
    assert not allocation.urgent
    sample(ledger, 1, decision=Decision(Level.CRITICAL))
    assert allocation.urgent
    assert allocation.reservation.exit_deadline == trio.current_time() + 15


async def test_the_same_wait_is_not_reported_twice(autojump_clock, ledger, nursery):
    """Samples that change nothing report nothing: a status is not written once per second."""
    Service(ledger, A, 40, nursery)
    other = Service(ledger, B, 40, nursery)
    for second in range(300):
        sample(ledger, 16 + second % 2 / 10)
        await trio.sleep(1)
    assert len(other.reports) == 1


async def test_a_part_that_is_not_used_is_released_where_it_was(ledger):
    """On the devices that hold it, or in the machine's memory."""
    need = Need(10 * GIB, devices={"CUDA0": 6 * GIB, "CUDA1": 2 * GIB})
    on_device, on_host = (Component("draft model", place, 4 * GIB) for place in (Location.DEVICE, Location.HOST))
    async with ledger.admitted(A, need, scope=trio.CancelScope(), report=print) as allocation:
        ledger.release_parts(allocation, [on_device])
        assert allocation.reservation.need == Need(10 * GIB, devices={"CUDA0": 3 * GIB, "CUDA1": GIB})
        ledger.release_parts(allocation, [on_host])
        assert allocation.reservation.need.total_bytes == 6 * GIB
