"""A host that sleeps and wakes in the middle of an operation: no working engine stops, and nothing is done twice.

A sleeping host's own clocks stop, so for the host itself a sleep is a moment in which the wall clock jumps and every
connection dies (`nap`). For other hosts time passes: for them its agent is stopped meanwhile (`asleep`).
"""

from contextlib import contextmanager

import attrs
import pytest
import trio

from llmkube.supervisor.cluster import host_lease
from llmkube.supervisor.cluster.claim_manager import ClaimManager
from llmkube.supervisor.engine import health
from llmkube.supervisor.host_cordon import POLL_SECONDS
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.liveness import Verdict
from pressure.hosts import pressed_world, running
from sim.freezing import frozen
from sim.machine import Script
from sim.mutation import assert_caught, do_nothing, never_yields, rows
from sim.world import agent_settings, open_world

pytestmark = pytest.mark.ci

NIGHT = 8 * 3600.0
QUICK = {"lease_renew_seconds": 5.0}


def a_host(**changes):
    return open_world(settings=agent_settings(**QUICK, **changes))


def nap(host, seconds=NIGHT):
    """Let the host sleep and wake: its connections are dead, and fail at their next use."""
    host.network.hush()
    host.asleep_seconds += seconds


@contextmanager
def asleep(host):
    """Let the host sleep during the block while other hosts do not."""
    before, host.faults.kind = trio.current_time(), "half-open"
    host.network.hush()
    with frozen(host.program):
        yield
    host.faults.kind = ""
    host.network.sever()
    host.asleep_seconds += trio.current_time() - before


async def test_requests_in_flight_continue_after_a_wake(autojump_clock):
    """Their engine is not called hung for the hours without progress, and serves them to their end."""
    async with a_host() as world:
        engine = await world.serve()
        engine.in_flight = 2
        await trio.sleep(120)
        nap(world.first)
        await trio.sleep(1800)
        assert engine.exit is None
        assert await world.ready_addresses() == 1
        engine.in_flight = 0
        await trio.sleep(600)
        assert len(world.machine.spawned) == 1
        assert await world.phase() == "Ready"


async def test_a_drain_continues_after_a_wake(autojump_clock):
    """After a sleep in the middle of a drain, requests have the rest of their time before the engine stops."""
    async with a_host() as world:
        engine = await world.serve()
        engine.in_flight = 1
        world.first.cordon()
        await world.until(world.ready_addresses, 0, seconds=POLL_SECONDS + 2)
        await trio.sleep(10)
        nap(world.first)
        await trio.sleep(10)
        assert engine.exit is None, "the night was taken for the end of the drain"
        engine.in_flight = 0
        await world.until(world.live, [], "chat", seconds=15)
        assert world.machine.cordon is not None
        await trio.sleep(600)
        assert world.live("chat") == []


async def test_a_wake_during_a_download_starts_no_second_one(autojump_clock):
    """The fetched part is kept: there is one fetch, and the service is ready afterwards."""
    async with a_host() as world:
        world.machine.fetch_seconds["builtin://demo"] = 400.0
        await world.apply()
        await trio.sleep(100)
        nap(world.first)
        await trio.sleep(100)
        nap(world.first, 60)
        await world.until(world.phase, "Ready", seconds=250)
        assert len(world.machine.spawned) == 1


async def test_a_wake_during_a_load_is_no_stall(autojump_clock):
    """A load that continues after the night is the same load."""
    async with a_host() as world:
        world.machine.default = Script(load_seconds=600.0)
        await world.apply()
        await world.until(world.live, ["sim"], "chat")
        await trio.sleep(200)
        nap(world.first)
        await trio.sleep(150)
        nap(world.first)
        await world.until(world.phase, "Ready", seconds=300)
        assert len(world.machine.spawned) == 1


async def test_a_wake_during_an_eviction_evicts_no_other(autojump_clock):
    """A victim that is still being stopped when its host falls asleep is the only one, and returns later."""
    async with pressed_world(**QUICK) as world:
        (victim,) = world.machine.live("draft")
        victim.script = attrs.evolve(victim.script, stop_seconds=8.0)
        world.machine.memory.other = 20
        await trio.sleep(6)
        assert victim.exit is None
        nap(world.first)
        await world.until(running, ["chat", "embed"], world, seconds=30)
        await trio.sleep(300)
        assert await running(world) == ["chat", "embed"]
        assert sum(world.agent.memory().evictions.values()) == 1
        world.machine.memory.other = 8
        nap(world.first)
        await world.until(running, ["chat", "draft", "embed"], world, seconds=60)
        assert [len(world.machine.starts(name)) for name in ("chat", "embed", "draft")] == [1, 1, 2]


async def test_a_wake_does_not_end_a_cordon(autojump_clock):
    """The cordon is valid after the night; one with an end is valid until then, and then the host serves."""
    async with a_host() as world:
        await world.serve()
        world.first.cordon()
        await world.until(world.live, [], "chat")
        nap(world.first)
        await trio.sleep(600)
        assert world.live("chat") == []
        world.first.cordon(NIGHT + 900)
        await trio.sleep(60)
        nap(world.first)
        await trio.sleep(600)
        assert world.live("chat") == [], "it has returned too early"
        await world.until(world.ready_addresses, 1, seconds=400)
        assert len(world.machine.spawned) == 2


async def test_two_sleeps_in_a_row(autojump_clock):
    """A host that sleeps again before it has written its state writes it after the second wake; nothing restarts."""
    async with a_host() as world:
        await world.serve()
        world.first.faults.kind = "half-open"
        nap(world.first)
        await trio.sleep(7)
        nap(world.first)
        await trio.sleep(1)
        await world.apply(contextSize=512)
        world.first.faults.kind = ""
        world.network.sever()
        nap(world.first)
        await world.until(lambda: len(world.machine.spawned), 2, seconds=60)
        await world.until(world.phase, "Ready", seconds=60)
        assert await world.ready_addresses() == 1
        assert len(world.machine.live("chat")) == 1


async def test_a_service_that_another_host_took_over_is_not_served_twice(autojump_clock):
    """After the wake the engine with its request in flight drains and stops; the other host's is published."""
    async with a_host() as world:
        holder, other = await world.serve_on_one_of_two()
        (engine,) = holder.machine.live("chat")
        engine.in_flight = 1
        with asleep(holder):
            await world.until(world.live, sorted([holder.name, other.name]), "chat", seconds=120)
            await trio.sleep(60)
        await trio.sleep(15)
        assert engine.exit is None, "its request was cut off"
        assert await world.claims() == {0: other.name}
        engine.in_flight = 0
        await world.until(world.live, [other.name], "chat", seconds=30)
        await trio.sleep(300)
        assert world.live("chat") == [other.name]
        assert [host for host, _, ready in await world.slices() if ready] == [other.name]
        assert await world.phase() == "Ready"


async def test_a_cordon_while_the_other_host_sleeps(autojump_clock):
    """Until the other host wakes no host serves, and the status has the reason; then it serves within a minute."""
    async with a_host() as world:
        holder, other = await world.serve_on_one_of_two()
        with asleep(other):
            holder.cordon()
            await world.until(world.live, [], "chat", seconds=60)
            await trio.sleep(60)
            assert (await world.condition("Available"))[1] == "NoHost"
        await world.until(world.live, [other.name], "chat", seconds=60)
        await world.until(world.phase, "Ready", seconds=60)


async def test_a_host_that_was_cordoned_in_its_sleep_frees_its_memory_at_the_wake(autojump_clock):
    """The cordon was set before the agent ran again: the engine stops, and the other host has the claim."""
    async with a_host() as world:
        holder, other = await world.serve_on_one_of_two()
        with asleep(holder):
            holder.cordon()
            await trio.sleep(5)
        await world.until(world.live, [other.name], "chat", seconds=90)
        await world.until(world.ready_addresses, 1, seconds=60)


# -- deliberate bugs --------------------------------------------------------------------------------------------------


def hung_when_it_works(original):
    def step(watch, stats, now, limits):
        watch, verdict = original(watch, stats, now, limits)
        return watch, Verdict(hung="nothing has moved for a night") if watch.work else verdict

    return step


def loads_have_a_clock(original):
    def step_load(load, stats, now, limits):
        load, stalled = original(load, stats, now, limits)
        return load, stalled or ("it takes long" if now > 400 else "")

    return step_load


def lease_without_cordon(original):
    def lease_manifest(settings, now, state, *, cordon):
        return original(settings, now, state)

    return lease_manifest


def ends_at_eight(self, now):
    return now.day == 1 and now.hour < 8


MUTANTS = {
    test_requests_in_flight_continue_after_a_wake: {
        "work is a sign of hanging": (health, "step", hung_when_it_works(health.step))
    },
    test_a_drain_continues_after_a_wake: {"requests are not waited for": (health.Engine, "wait_idle", do_nothing)},
    test_a_wake_during_a_load_is_no_stall: {
        "loads have a clock": (health, "step_load", loads_have_a_clock(health.step_load))
    },
    test_a_wake_does_not_end_a_cordon: {"a wake ends a cordon": (Cordon, "is_active", ends_at_eight)},
    test_a_service_that_another_host_took_over_is_not_served_twice: {
        "a returned host does not yield": (ClaimManager, "may_run", never_yields(ClaimManager.may_run))
    },
    test_a_cordon_while_the_other_host_sleeps: {
        "the Lease of a cordoned host has no cordon": (
            host_lease,
            "lease_manifest",
            lease_without_cordon(host_lease.lease_manifest),
        )
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(MUTANTS))
def test_mutants_are_caught(row, monkeypatch):
    """Each deliberate bug fails its timeline."""
    assert_caught(monkeypatch, row)
