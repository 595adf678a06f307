"""Memory pressure with services whose model is in an Ollama or an oMLX that the host's owner shares with others.

The daemon's processes hold the memory of such a service, and of the models that other clients have loaded. The agent
stops its own process; the daemon frees the memory, and the agent measures that.
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
    """Run a host of 64 GiB with a low-priority service on a daemon, in which another client has a model of 4 GiB."""
    async with pressed_world(
        {"chat": (26, "high"), "embed": (6, "normal")} if services is None else services, **settings
    ) as world:
        machine = world.machine
        machine.programs |= {runtime}
        machine.shapes[MODEL], machine.memory.sizes["draft"] = shape_of(size), size
        machine.memory.sizes[""] = THEIRS  # a model of no service
        theirs(machine.daemons[runtime].shared)
        await world.apply("draft", source=MODEL, weights=WEIGHTS[runtime], runtime=runtime, priority="low")
        await world.until(world.ready_addresses, 1, "draft", seconds=120)
        yield world, machine.daemons[runtime].shared


def left(world):
    """Return the available memory in GiB."""
    return world.machine.memory.available_bytes / GIB


def reserved(world):
    """Return the reservation of each service in GiB."""
    return {each.key.name: each.total_bytes / GIB for each in world.agent.memory().reservations}


@both
async def test_the_memory_of_the_daemon_is_in_the_ledger(autojump_clock, runtime):
    """The front's process holds next to nothing; the service has its whole reservation."""
    async with shared_world(runtime) as (world, _):
        await trio.sleep(60)
        assert 10 <= reserved(world)["draft"] <= 11.5
        await serve(world, "late", 12, "low")
        await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "late", seconds=30)
        assert "needs 12.1 GiB" in (await why(world, "late"))[1]
        await world.delete("draft")
        await world.until(running, ["chat", "embed", "late"], world, seconds=120)
        assert held(world, runtime) == ["theirs"]
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_a_loaded_model_is_not_reserved_twice(autojump_clock, runtime):
    """The daemon holds the memory already: a service that fits into the rest starts."""
    async with shared_world(runtime, {"chat": (16, "high")}) as (world, _):
        await serve(world, "late", 14, "low")
        await world.until(running, ["chat", "draft", "late"], world, seconds=60)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_models_of_other_clients_are_accounted_as_other_programs(autojump_clock, runtime):
    """A model of no service is in the used memory, and a service that does not fit into the rest waits."""
    async with shared_world(runtime, {"chat": (26, "high")}) as (world, server):
        world.machine.memory.sizes[""] = 16.0
        await trio.sleep(5)
        await serve(world, "late", 10, "low")
        await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "late", seconds=30)
        server.fake.drop("theirs")
        await world.until(running, ["chat", "draft", "late"], world, seconds=90)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_an_eviction_gives_the_memory_back(autojump_clock, runtime):
    """The model is unloaded, the next victim is spared, and the model returns; the other client's model stays.

    The front, which holds next to nothing itself, was measured before.
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
async def test_a_reported_unload_that_frees_nothing_takes_the_next_victim(autojump_clock, runtime):
    """As no memory is freed, the next service is evicted; the memory is not reserved again until it is free."""
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
    """The restart unloads the model; the front exits on its eviction, and the new process stays without it."""
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
async def test_models_of_others_are_not_unloaded_under_pressure(autojump_clock, runtime):
    """Under CRITICAL with nothing of ours left to evict, the other client's model stays, in the same process."""
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
async def test_a_daemon_of_our_own_that_keeps_the_memory_is_stopped(autojump_clock, runtime):
    """It serves no other client: its process and memory are freed, and no second victim is needed."""
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


async def test_a_new_model_of_others_is_not_taken_for_ours(autojump_clock):
    """OMLX has all models in one process: the agent sees that ours is freed although another one is loaded."""
    async with shared_world("omlx") as (world, server):
        (front,) = world.machine.live("draft")
        server.fake.folders["more"] = server.fake.folders["theirs"]
        server.fake.next = "more"  # loaded as soon as ours is unloaded
        world.machine.memory.other = 19
        await world.until(running, ["chat", "embed"], world, seconds=60)
        assert front.exit.code == 0
        assert held(world, "omlx") == ["more", "theirs"]
