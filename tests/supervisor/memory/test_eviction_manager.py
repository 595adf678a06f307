"""The loop that samples and evicts, and its waits."""

import math
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import UNREADABLE, Level, Sample
from llmkube.supervisor.memory.eviction_manager import (
    CALM_SECONDS,
    MAX_MISSED_SAMPLES,
    MEASURE_SECONDS,
    EvictionManager,
    Readings,
    update_readings,
)
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.reservation import Need
from pressure.carrier import GIB, Engine, Memory, run_host


@attrs.define(eq=False)
class Measured(Memory):
    """A host on which it takes this long to measure the engines."""

    seconds: float = 0.0
    blind: bool = False
    measurements: list[float] = attrs.field(factory=list)

    async def footprint(self, pids):
        self.measurements.append(trio.current_time())
        found = await super().footprint(pids)
        await trio.sleep(self.seconds)
        return {} if self.blind else found


ENGINES = [Engine("big", 30, "low"), Engine("small", 10)]


async def play(seconds, timeline, *, blind=False):
    """A host of 64 GiB with two engines, which load for 20 s."""
    memory = Measured(64, 6, seconds=seconds, blind=blind)

    async def loaded(host):
        await trio.sleep(20.5)
        await timeline(host)

    return await run_host(loaded, memory=memory, engines=ENGINES)


async def test_a_critical_host_does_not_wait_for_a_measurement(autojump_clock):
    """While the kernel still measures the engines, a victim is evicted at the moment of the signal."""

    async def timeline(host):
        await trio.sleep(100)
        assert host.memory.measurements, "the one that never ends"
        host.memory.level = Level.CRITICAL
        host.memory.news.set()
        at = trio.current_time()
        await wait_all_tasks_blocked()
        assert [(moment, evict.key.name) for moment, evict in host.evictions] == [(at, "big")]

    await play(math.inf, timeline)


@pytest.mark.parametrize("seconds", [0.0, 2.0, 3.3])
async def test_engines_are_measured_shortly_after_their_load(autojump_clock, seconds):
    """The figure of a loading engine is out of date within two measurements and a second after the load."""

    async def timeline(host):
        await trio.sleep_until(max(host.at("big", "ready") + host.at("small", "ready")) + 2 * seconds + 1.0)
        held = host.ledger.book.records.reservations()
        assert {each.key.name: each.resident_bytes / GIB for each in held} == {"big": 30, "small": 10}

    await play(seconds, timeline)


async def test_a_calm_host_is_measured_twice_a_minute(autojump_clock):
    """Without changes samples are taken every five seconds, measurements every thirty to forty, even slow ones."""

    async def timeline(host):
        await trio.sleep(40)
        before = len(host.memory.measurements)
        await trio.sleep(600)
        assert 15 <= len(host.memory.measurements) - before <= 21

    await play(3.0, timeline)


async def test_an_engine_that_cannot_be_measured_does_not_keep_the_loop_busy(autojump_clock):
    """A process without a measurement is measured again after a pause."""

    async def timeline(host):
        await trio.sleep(10)
        assert host.ledger.book.records.is_unmeasured
        before = len(host.decisions)
        await trio.sleep(60)
        assert len(host.decisions) - before <= 130

    await play(0.0, timeline, blind=True)


GOOD = Sample(64 * GIB, 32 * GIB, Level.NORMAL)
SHORT = Sample(64 * GIB, 2 * GIB, Level.CRITICAL, why="2.0 GiB of 64.0 GiB left")
NAN = float("nan")

ABSURD = [
    UNREADABLE,
    attrs.evolve(GOOD, level=Level.UNKNOWN),
    attrs.evolve(GOOD, total_bytes=0, available_bytes=0),
    attrs.evolve(GOOD, total_bytes=-1),
    attrs.evolve(GOOD, available_bytes=-1),
    attrs.evolve(GOOD, available_bytes=65 * GIB),
    attrs.evolve(GOOD, total_bytes=NAN),
    attrs.evolve(GOOD, available_bytes=NAN),
    attrs.evolve(GOOD, total_bytes=float("inf")),
    attrs.evolve(GOOD, swap_out_bytes_per_second=NAN),
    attrs.evolve(GOOD, compress_bytes_per_second=-1.0),
    attrs.evolve(GOOD, device_limit_bytes=-1),
]


def after(*samples):
    readings = Readings()
    for sample in samples:
        readings = update_readings(readings, sample)
    return readings.trusted


@pytest.mark.parametrize("absurd", ABSURD)
def test_the_last_good_reading_is_held_for_three_samples(absurd):
    """An implausible reading is replaced by the last good one three times, and by UNKNOWN from the fourth on."""
    assert MAX_MISSED_SAMPLES == 3
    assert after(SHORT, *[absurd] * 3) == SHORT
    assert after(SHORT, *[absurd] * 4).level is Level.UNKNOWN
    assert after(SHORT, *[absurd] * 40).why == "none of the last 40 samples was plausible"


@pytest.mark.parametrize("absurd", ABSURD)
def test_nothing_is_known_before_the_first_good_reading(absurd):
    """Without any good reading the level is UNKNOWN at once."""
    assert after().level is Level.UNKNOWN
    assert after(absurd).level is Level.UNKNOWN


def test_one_good_reading_resets_the_count():
    """Three bad readings, a good one and three bad ones never lead to UNKNOWN."""
    assert after(GOOD, *[UNREADABLE] * 3, SHORT, *[UNREADABLE] * 3) == SHORT
    assert after(GOOD, *[UNREADABLE] * 9, SHORT) == SHORT


@pytest.mark.parametrize("total", [16 * GIB, 48 * GIB, 128 * GIB, 256 * GIB])
def test_a_host_that_grows_or_shrinks_is_believed_at_once(total):
    """A total up to four times as large or as small is used in the sample that shows it."""
    changed = Sample(total, GIB, Level.WARNING)
    assert after(GOOD, changed) == changed


@pytest.mark.parametrize("total", [15 * GIB, 257 * GIB, 1 << 20])
def test_a_wild_change_needs_a_second_reading(total):
    """A total that jumps further is used when a second reading in a row agrees, and not before."""
    wild = Sample(total, 1 << 19, Level.WARNING)
    assert after(GOOD, wild) == GOOD
    assert after(GOOD, wild, wild) == wild
    assert after(GOOD, wild, GOOD, wild) == GOOD
    assert after(GOOD, wild, UNREADABLE, wild) == GOOD


def test_numbers_that_jump_about_are_never_believed():
    """Totals that agree neither with the last good one nor with each other lead to UNKNOWN."""
    jumps = [Sample(GIB << (5 * (number % 3 + 2)), GIB, Level.NORMAL) for number in range(4)]
    assert after(Sample(GIB, GIB, Level.NORMAL), *jumps).level is Level.UNKNOWN


SAMPLES = st.builds(
    Sample,
    st.sampled_from([0, -5, 16 * GIB, 64 * GIB, 512 * GIB, NAN]),
    st.sampled_from([-5, 0, GIB, 600 * GIB, NAN]),
    st.sampled_from(list(Level)),
)


@given(st.lists(SAMPLES, max_size=30))
def test_decisions_use_only_plausible_figures(samples):
    """For any reading, an accepted sample with a level has plausible figures."""
    trusted = after(*samples)
    if trusted.level is not Level.UNKNOWN:
        assert 0 <= trusted.available_bytes <= trusted.total_bytes
        assert trusted.total_bytes > 0


GIB = 1 << 30
CALM = Sample(32 * GIB, 16 * GIB, Level.NORMAL)


class Memory:
    """A host whose memory is a field."""

    def __init__(self):
        self.now = CALM
        self.looks = 0

    async def sample(self):
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return self.now

    async def wait_change(self):
        await trio.sleep_forever()

    async def footprint(self, pids):
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(pids, GIB)


@asynccontextmanager
async def watched(*, engine=False):
    """A host's memory, and the times of decisions; nothing has happened for a minute."""
    memory, decided_at, ledger = Memory(), [], Ledger()
    pressure = EvictionManager(memory, ledger, lambda *_: decided_at.append(trio.current_time()))
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(pressure.run)
        if engine:
            admitted = ledger.admitted(Key("ns", "chat"), Need(GIB), scope=trio.CancelScope(), report=print)
            allocation = await stack.enter_async_context(admitted)
            ledger.started(allocation, 7)
            ledger.record_loaded(allocation)
        await trio.sleep(60)
        memory.looks = 0
        decided_at.clear()
        yield memory, decided_at
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("engine", [False, True])
async def test_idle_memory_is_sampled_often_and_decided_on_seldom(engine, autojump_clock):
    """Without changes memory is read every five seconds; decisions follow every thirty and after measurements."""
    async with watched(engine=engine) as (memory, decided_at):
        await trio.sleep(300)
        measured = 300 / MEASURE_SECONDS if engine else 0
        assert memory.looks == pytest.approx(300 / CALM_SECONDS + measured, abs=1)
        assert len(decided_at) == pytest.approx(300 / MEASURE_SECONDS + measured, abs=1)


@pytest.mark.parametrize(
    "changed",
    [
        attrs.evolve(CALM, available_bytes=15 * GIB),
        attrs.evolve(CALM, available_bytes=2 * GIB, level=Level.WARNING),
        attrs.evolve(CALM, total_bytes=16 * GIB),
    ],
)
async def test_a_change_is_decided_on_at_the_next_sample(changed, autojump_clock):
    """Another level, another size, and a thirty-second of the memory gone are decided on within five seconds."""
    async with watched() as (memory, decided_at):
        memory.now = changed
        await trio.sleep(CALM_SECONDS + 0.1)
        assert decided_at
