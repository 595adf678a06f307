"""The loop that looks and acts: what it waits for, and what it never waits for."""

import math

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from llmkube.supervisor.host.sample import Level
from pressure.carrier import GIB, Engine, Memory, run_host


@attrs.define(eq=False)
class Measured(Memory):
    """A host on which it takes so long to add up what the engines hold."""

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
    """While the kernel still adds up what engines hold, somebody is evicted in the moment of the signal."""

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
async def test_what_engines_hold_is_known_shortly_after_they_have_loaded(autojump_clock, seconds):
    """What an engine held while it loaded is out of date within two measurements and a second after it has loaded."""

    async def timeline(host):
        await trio.sleep_until(max(host.at("big", "ready") + host.at("small", "ready")) + 2 * seconds + 1.0)
        held = host.ledger.book.records.reservations()
        assert {each.key.name: each.resident_bytes / GIB for each in held} == {"big": 30, "small": 10}

    await play(seconds, timeline)


async def test_a_calm_host_is_measured_twice_a_minute(autojump_clock):
    """Looks come every five seconds when nothing moves, measurements every thirty to forty, however long one takes."""

    async def timeline(host):
        await trio.sleep(40)
        before = len(host.memory.measurements)
        await trio.sleep(600)
        assert 15 <= len(host.memory.measurements) - before <= 21

    await play(3.0, timeline)


async def test_an_engine_that_nobody_can_measure_does_not_keep_the_loop_busy(autojump_clock):
    """A process that is not in the answer is asked for again after a pause."""

    async def timeline(host):
        await trio.sleep(10)
        assert host.ledger.book.records.is_unmeasured
        before = len(host.decisions)
        await trio.sleep(60)
        assert len(host.decisions) - before <= 130

    await play(0.0, timeline, blind=True)
