"""The ledger as a scope: who is admitted when, what is counted for how long, and that nobody who waits is stuck."""

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

GIB = 1 << 30
CALM = Decision(Level.NORMAL, admitting=True, calm_seconds=1e9)
A, B, C = (Key("ns", name) for name in "abc")


def seen(ledger, available=56, footprints=None, total=64, decision=CALM):
    """One look at a host with so many GiB left."""
    ledger.observe(Sample(total * GIB, int(available * GIB), decision.level), footprints or {})
    ledger.decide(decision)


class Service:
    """Somebody who wants memory, holds it until told to go, and takes its time to go."""

    def __init__(self, ledger, key, gib, nursery, ends_after=0.0):
        self.ledger, self.key, self.need = ledger, key, Need(int(gib * GIB))
        self.scope, self.allocation, self.said, self.ends_after = trio.CancelScope(), None, [], ends_after
        nursery.start_soon(self.run)

    async def run(self):
        with self.scope:
            async with self.ledger.admitted(
                self.key, self.need, scope=self.scope, report=self.said.append
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
    """The ledger of a host that has been looked at once."""
    ledger = Ledger()
    await trio.lowlevel.checkpoint()
    seen(ledger)
    return ledger


async def test_nobody_starts_before_the_first_look(autojump_clock, nursery):
    """Until the host's memory has been seen, everybody waits, and is told nothing that is not known."""
    ledger = Ledger()
    one = Service(ledger, A, 1, nursery)
    await wait_all_tasks_blocked()
    assert one.allocation is None
    assert not one.said
    seen(ledger)
    await wait_all_tasks_blocked()
    assert one.allocation is not None


async def test_without_anybody_who_looks_everybody_is_admitted(autojump_clock, nursery):
    """On a host whose memory nobody watches a need of any size starts at once."""
    one = Service(Ledger(watched=False), A, 10_000, nursery)
    await wait_all_tasks_blocked()
    assert one.allocation is not None


@pytest.mark.parametrize(("seen_gib", "promised_gib"), [(12, 12), (48, 48), (90, 48)])
async def test_a_leak_does_not_make_a_model_one_that_never_fits(
    autojump_clock, ledger, nursery, seen_gib, promised_gib
):
    """What an engine once held is promised to the next one, up to what all models of the host may take."""
    need = Need(seen_gib * GIB, estimated_bytes=10 * GIB)
    assert ledger.permanent_refusal(A, need) is None
    one = Service(ledger, A, 0, nursery)
    one.need = need
    await wait_all_tasks_blocked()
    assert one.allocation.reservation.need.total_bytes == promised_gib * GIB


async def test_who_arrives_at_the_same_moment_is_promised_each_byte_once(autojump_clock, ledger, nursery):
    """Of three that arrive together and fit two at a time, two start, and the third as soon as one has gone."""
    services = [Service(ledger, key, 20, nursery) for key in (A, B, C)]
    await wait_all_tasks_blocked()
    assert sum(each.allocation is not None for each in services) == 2
    waiting = next(each for each in services if each.allocation is None)
    assert "needs 20.0 GiB" in waiting.said[-1].message
    next(each for each in services if each.allocation is not None).scope.cancel()
    await wait_all_tasks_blocked()
    assert waiting.allocation is not None


async def test_bytes_are_kept_until_the_process_is_gone_and_its_memory_back(autojump_clock, ledger, nursery):
    """Between the order to go and the look that sees the memory nobody else is promised it."""
    one = Service(ledger, A, 30, nursery, ends_after=5)
    await wait_all_tasks_blocked()
    ledger.started(one.allocation, 7)
    seen(ledger, 26, {7: 30 * GIB})
    other = Service(ledger, B, 30, nursery)
    one.scope.cancel()
    await trio.sleep(4)
    assert other.allocation is None, "the process still ends"
    await trio.sleep(2)
    seen(ledger, 26)
    await wait_all_tasks_blocked()
    assert other.allocation is None, "the memory is not back"
    seen(ledger, 56)
    await wait_all_tasks_blocked()
    assert other.allocation is not None


async def test_memory_that_is_never_seen_again_is_waited_for_until_the_deadline(autojump_clock, ledger, nursery):
    """Other programs may take what has come free: after the deadline the ledger lets go, and the host decides."""
    one = Service(ledger, A, 30, nursery)
    await wait_all_tasks_blocked()
    ledger.started(one.allocation, 7)
    seen(ledger, 26, {7: 30 * GIB})
    one.scope.cancel()
    await wait_all_tasks_blocked()
    seen(ledger, 26)
    assert ledger.book.is_releasing
    await trio.sleep(Policy().release_seconds + 1)
    seen(ledger, 26)
    assert not ledger.book.is_releasing


async def test_a_look_between_an_engines_end_and_its_farewell_delays_nobody(autojump_clock, ledger, nursery):
    """Memory that is seen to be back while the ended engine's task still tidies up does not have to come back twice."""
    one = Service(ledger, A, 30, nursery, ends_after=5)
    await wait_all_tasks_blocked()
    ledger.started(one.allocation, 7)
    seen(ledger, 26, {7: 30 * GIB})
    evict(ledger, Cause.WARNING, "short")
    await trio.sleep(4)
    seen(ledger, 56)  # process 7 is gone
    await trio.sleep(2)
    assert ledger.book.is_releasing
    seen(ledger, 56)
    assert not ledger.book.is_releasing


async def test_who_was_evicted_at_once_returns_for_what_it_held(autojump_clock, ledger, nursery):
    """An engine that took more than was expected, and went before anybody learned from it, waits for as much."""
    scope = trio.CancelScope()
    said, need = [], Need(10 * GIB, estimated_bytes=10 * GIB)

    async def run():
        with scope:
            async with ledger.admitted(A, need, scope=scope, report=said.append) as allocation:
                ledger.started(allocation, 7)
                await trio.sleep_forever()
        async with ledger.admitted(A, need, scope=trio.CancelScope(), report=said.append):
            await trio.sleep_forever()

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    seen(ledger, 30, {7: 26 * GIB})
    evict(ledger, Cause.CRITICAL, "short")
    await wait_all_tasks_blocked()
    seen(ledger, 30)
    await wait_all_tasks_blocked()
    assert "needs 26.0 GiB" in said[-1].message


async def test_an_adopted_engine_is_counted_before_it_is_taken_over(autojump_clock, nursery):
    """What an agent left counts from the first moment, never waits, and is not evicted while nobody holds it."""
    ledger = Ledger()
    ledger.adopt(A, Need(40 * GIB))
    seen(ledger, 16)
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


async def test_who_is_deleted_while_it_waits_leaves_nothing(autojump_clock, ledger, nursery):
    """A wait that is cancelled holds nothing, and those who wait with it do not notice."""
    Service(ledger, A, 40, nursery)
    big, other = Service(ledger, B, 30, nursery), Service(ledger, C, 20, nursery)
    await wait_all_tasks_blocked()
    big.scope.cancel()
    await wait_all_tasks_blocked()
    ledger.forget(B)
    assert {each.key for each in (*ledger.book.records.reservations(), *ledger.book.records.requests())} == {A, C}
    ledger.forget(A)
    seen(ledger)
    await wait_all_tasks_blocked()
    assert other.allocation is not None


async def test_an_edit_of_the_priority_is_heard_at_once(autojump_clock, ledger, nursery):
    """Who waits may make others go as soon as it has become more important than they are."""
    one, other = Service(ledger, A, 40, nursery), None
    await wait_all_tasks_blocked()
    other = Service(ledger, B, 40, nursery)
    await wait_all_tasks_blocked()
    assert one.allocation is not None
    ledger.follow(B, MemorySpec("high"))
    await wait_all_tasks_blocked()
    assert (one.allocation is None, other.allocation is not None) == (True, True)
    assert ledger.book.evictions == {Cause.DISPLACED: 1}


async def test_a_victim_is_told_once(autojump_clock, nursery):
    """Who is on the way out already is not told again, but hurried when memory becomes critical."""
    notified = []
    ledger = Ledger(Book(Rules(gentle_seconds=45, urgent_seconds=15)), notified=notified.append)
    seen(ledger)
    one = Service(ledger, A, 30, nursery, ends_after=100)
    await wait_all_tasks_blocked()
    allocation = one.allocation
    evict(ledger, Cause.WARNING, "short")
    evict(ledger, Cause.WARNING, "short")
    assert len(notified) == 1
    assert not allocation.urgent
    seen(ledger, 1, decision=Decision(Level.CRITICAL))
    assert allocation.urgent
    assert allocation.reservation.exit_deadline == trio.current_time() + 15


async def test_the_same_wait_is_not_told_twice(autojump_clock, ledger, nursery):
    """Looks that change nothing say nothing: a status is not written once per second."""
    Service(ledger, A, 40, nursery)
    other = Service(ledger, B, 40, nursery)
    for second in range(300):
        seen(ledger, 16 + second % 2 / 10)
        await trio.sleep(1)
    assert len(other.said) == 1
