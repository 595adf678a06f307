"""Memory pressure over services whose model is in an Ollama or an oMLX that the host's owner shares with others.

What such a service takes is in the daemon's processes, and so is what other clients have loaded there. The agent ends
its own process; whether the memory is back is the daemon's doing, and is measured.
"""

from contextlib import asynccontextmanager

import pytest
import trio

from llmkube.supervisor.memory.policy import Policy
from pressure.hosts import events, pressed_world, running, serve, why
from sim.daemons import RUNTIMES
from sim.memory import GIB, shape_of
from sim.test_shared_daemon import MODEL, WEIGHTS, held, theirs

pytestmark = pytest.mark.ci

both = pytest.mark.parametrize("runtime", RUNTIMES)
OURS, THEIRS = 10.0, 4.0


@asynccontextmanager
async def shared_world(runtime, services=None, *, size=OURS, **settings):
    """A host of 64 GiB with a service of low priority on a daemon, in which another client has a model of 4 GiB."""
    async with pressed_world(
        {"chat": (26, "high"), "embed": (6, "normal")} if services is None else services, **settings
    ) as world:
        machine = world.machine
        machine.programs |= {runtime}
        machine.shapes[MODEL], machine.memory.sizes["draft"] = shape_of(size), size
        machine.memory.sizes[""] = THEIRS  # a model that no service has asked for
        theirs(machine.daemons[runtime].shared)
        await world.apply("draft", source=MODEL, weights=WEIGHTS[runtime], runtime=runtime, priority="low")
        await world.until(world.ready_addresses, 1, "draft", seconds=120)
        yield world, machine.daemons[runtime].shared


def left(world):
    """GiB that programs could still get."""
    return world.machine.memory.available_bytes / GIB


def reserved(world):
    """GiB that the agent counts for each of its services."""
    return {each.key.name: each.total_bytes / GIB for each in world.agent.memory().reservations}


@both
async def test_what_the_daemon_holds_is_in_the_ledger(autojump_clock, runtime):
    """The front's process holds next to nothing; its service counts with all that it was promised."""
    async with shared_world(runtime) as (world, _):
        await trio.sleep(60)
        assert 10 <= reserved(world)["draft"] <= 11.5
        await serve(world, "late", 12, "low")
        await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "late", seconds=30)
        assert "needs 12.1 GiB" in (await why(world, "late"))[1]
        await world.delete("draft")
        await world.until(running, ["chat", "embed", "late"], world, seconds=120)
        assert held(world, runtime) == ["theirs"]
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_what_is_loaded_is_not_promised_once_more(autojump_clock, runtime):
    """The daemon has taken it already: a service for which there is room beside it starts."""
    async with shared_world(runtime, {"chat": (16, "high")}) as (world, _):
        await serve(world, "late", 14, "low")
        await world.until(running, ["chat", "draft", "late"], world, seconds=60)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_what_others_load_there_counts_as_other_programs(autojump_clock, runtime):
    """No service has asked for it: it is counted in what is taken, and what would not fit beside it waits."""
    async with shared_world(runtime, {"chat": (26, "high")}) as (world, server):
        world.machine.memory.sizes[""] = 16.0
        await trio.sleep(5)
        await serve(world, "late", 10, "low")
        await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "late", seconds=30)
        server.fake.drop("theirs")
        await world.until(running, ["chat", "draft", "late"], world, seconds=90)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_an_eviction_gives_the_memory_back(autojump_clock, runtime):
    """The model goes, the next victim is spared, and the model returns; the other client's stays all the while.

    By then the front was measured, which holds next to nothing itself.
    """
    async with shared_world(runtime) as (world, server):
        await trio.sleep(60)
        world.machine.memory.other = 16
        await world.until(running, ["chat", "embed"], world, seconds=60)
        assert held(world, runtime) == ["theirs"]
        assert left(world) > 11
        await trio.sleep(120)
        assert await running(world) == ["chat", "embed"]
        assert set(await events(world, "Evicted")) == {"draft"}
        world.machine.memory.other = 8
        await world.until(running, ["chat", "draft", "embed"], world, seconds=120)
        assert len(held(world, runtime)) == 2
        assert server.fake.ended == []
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_said_unloaded_and_was_not_takes_the_next_victim(autojump_clock, runtime):
    """Nothing has come back: the next service goes, and nobody is promised that memory until it is back."""
    async with shared_world(runtime) as (world, server):
        (front,) = world.machine.live("draft")
        server.fake.lies = True
        world.machine.memory.other = 16
        await world.until(running, ["chat"], world, seconds=120)
        assert front.exit.code == 1
        assert held(world, runtime) == ["", "theirs"]
        assert set(await events(world, "Evicted")) == {"draft", "embed"}
        await serve(world, "late", 8, "low")
        await trio.sleep(300)
        assert await running(world) == ["chat"]
        assert server.fake.ended == []
        assert world.machine.memory.lowest_bytes >= 0
        server.restart()
        await world.until(running, lambda now: {"chat", "embed"} <= set(now), world, seconds=300)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_a_daemon_that_restarts_in_the_middle_of_an_eviction_loads_nothing_again(autojump_clock, runtime):
    """With its process the model has gone; the front ends as told to, and the new process stays without it."""
    async with shared_world(runtime) as (world, server):
        (front,) = world.machine.live("draft")
        server.fake.lies = True  # so that the unload lasts
        world.machine.memory.other = 16
        with trio.fail_after(60):
            await front.stop_requested.wait()
        await trio.sleep(1)
        server.stop()
        await trio.sleep(1)
        server.fake.lies = False
        server.start()
        await world.until(running, ["chat", "embed"], world, seconds=30)
        assert front.exit.code == 0
        await trio.sleep(120)
        assert held(world, runtime) == []
        assert await running(world) == ["chat", "embed"]
        world.machine.memory.other = 8
        await world.until(running, ["chat", "draft", "embed"], world, seconds=120)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_what_is_not_ours_is_not_unloaded_whatever_the_pressure(autojump_clock, runtime):
    """Critical, and nothing of ours is left to go: the other client's model stays, in the same process."""
    policy = Policy(keep_last=False)
    async with shared_world(runtime, {"chat": (16, "high")}, memory_policy=policy) as (world, server):
        pid = server.fake.pid
        world.machine.memory.other = 42
        await world.until(running, ["chat"], world, seconds=300)
        world.machine.memory.other = 58.5
        await world.until(running, [], world, seconds=300)
        await trio.sleep(300)
        assert held(world, runtime) == ["theirs"]
        assert (server.answers, server.fake.pid, server.fake.ended) == (True, pid, [])


@both
async def test_one_of_our_own_that_keeps_the_memory_is_ended(autojump_clock, runtime):
    """It serves nobody else: its process goes with what it keeps, and no second victim is needed."""
    async with shared_world(runtime) as (world, server):
        await world.delete("draft")
        await world.until(world.service, None, "draft", seconds=60)
        server.stop()
        await world.apply("draft", source=MODEL, weights=WEIGHTS[runtime], runtime=runtime, priority="low")
        await world.until(world.ready_addresses, 1, "draft", seconds=120)
        (own,) = world.machine.daemons[runtime].servers[1:]
        own.fake.lies = True
        world.machine.memory.other = 19
        await world.until(running, ["chat", "embed"], world, seconds=60)
        await trio.sleep(120)
        assert await running(world) == ["chat", "embed"]
        assert held(world, runtime) == []
        assert set(await events(world, "Evicted")) == {"draft"}
        assert world.machine.memory.lowest_bytes >= 0


async def test_a_model_of_others_that_comes_meanwhile_is_not_taken_for_ours(autojump_clock):
    """OMLX has all models in one process: as ours goes another one comes, and ours is known to be back all the same."""
    async with shared_world("omlx") as (world, server):
        (front,) = world.machine.live("draft")
        server.fake.folders["more"] = server.fake.folders["theirs"]
        server.fake.next = "more"  # loaded as soon as ours is unloaded
        world.machine.memory.other = 19
        await world.until(running, ["chat", "embed"], world, seconds=60)
        assert front.exit.code == 0
        assert held(world, "omlx") == ["more", "theirs"]
