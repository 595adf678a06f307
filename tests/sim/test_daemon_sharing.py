"""What killed engines leave in an Ollama or oMLX of the host's owner, and several engines on one model of it."""

import trio

from llmkube.k8s.wire.names import RESTARTED_AT
from sim.memory import shape_of
from sim.test_shared_daemon import MODEL, WEIGHTS, both, held, host, prepare, serve, serving, theirs


def small(world):
    """There is room for several models of the owner's folder."""
    world.machine.shapes[MODEL] = shape_of(8.0)
    world.machine.memory.sizes |= {"other": 8.0, "twin": 8.0}


async def is_back(world, server, *, seconds):
    """The service is ready again, once in memory, and nothing of others has gone for that."""
    await world.until(world.ready_addresses, 0, "other", seconds=30)
    await world.until(world.ready_addresses, 1, "other", seconds=seconds)
    (front,) = world.machine.live("other")
    assert held(world, server.engine.runtime) == sorted(["theirs", front.keeper.adapter.name])
    assert server.fake.ended == []
    assert world.machine.memory.lowest_bytes >= 0


@both
async def test_what_a_killed_engine_has_left_does_not_keep_the_next_one_waiting(autojump_clock, runtime):
    """25 GiB do not fit beside themselves: they are unloaded first, and Ollama's five minutes are not waited for."""
    async with serving(runtime) as (world, server, _):
        theirs(server)
        world.machine.kill("other")
        await is_back(world, server, seconds=90)
        assert len(world.machine.starts("other")) == 2


@both
async def test_what_was_left_while_no_agent_ran_does_not_either(autojump_clock, runtime):
    """Agent and engine are killed at once: the next agent finds neither of them, and the model in memory."""
    async with serving(runtime) as (world, server, _):
        theirs(server)
        await world.kill_agent()
        world.machine.kill("other")
        await trio.sleep(20)
        await world.start_agent()
        await is_back(world, server, seconds=90)


async def test_an_unload_that_is_not_answered_is_repeated(autojump_clock):
    """OMLX hangs for some minutes, in which the service says that it waits for memory; then it comes back."""
    async with serving("omlx") as (world, server, _):
        theirs(server)
        server.fake.hangs = True
        world.machine.kill("other")
        await trio.sleep(200)
        assert await world.ready_addresses("other") == 0
        assert (await world.condition(name="other"))[1] == "InsufficientMemory"
        server.fake.hangs = False
        await is_back(world, server, seconds=300)


@both
async def test_what_fits_beside_what_was_left_takes_it_over(autojump_clock, runtime):
    """It is not loaded anew."""
    async with host() as world:
        server = prepare(world, runtime)
        small(world)
        front = await serve(world, runtime)
        ((_, before),) = world.machine.daemons[runtime].held()
        world.machine.kill("other")
        await world.until(world.ready_addresses, 0, "other", seconds=30)
        await world.until(world.ready_addresses, 1, "other", seconds=60)
        assert world.machine.live("other") != [front]
        assert [each.pid for _, each in world.machine.daemons[runtime].held()] == [before.pid]
        assert not any("unload" in call for call in server.fake.calls)


async def test_what_is_left_goes_with_the_service(autojump_clock):
    """The service is deleted while its next engine waits for memory: by then the model is unloaded."""
    async with serving("omlx") as (world, _, _):
        world.machine.memory.other = 30.0
        world.machine.kill("other")
        await trio.sleep(60)
        await world.delete("other")
        await trio.sleep(10)
        assert held(world, "omlx") == []


async def test_what_its_owner_has_loaded_stays_while_a_service_waits(autojump_clock):
    """The service has unloaded the folder in order; what is in memory of it since then is not its own."""
    async with serving("omlx") as (world, server, _):
        await world.delete("other")
        await trio.sleep(60)
        assert held(world, "omlx") == []
        server.fake.put("one")
        await trio.sleep(10)
        await world.apply("other", source=MODEL, weights="mlx", runtime="omlx")
        await trio.sleep(120)
        assert (await world.condition(name="other"))[1] == "InsufficientMemory"
        assert held(world, "omlx") == ["one"]


async def test_two_services_on_one_folder_do_not_disturb_each_other(autojump_clock):
    """The end of one takes nothing from the other; the end of the last one unloads the model."""
    async with host() as world:
        prepare(world, "omlx")
        small(world)
        front = await serve(world, "omlx")
        await world.apply("twin", source=MODEL, weights="mlx", runtime="omlx")
        await world.until(world.ready_addresses, 1, "twin", seconds=60)
        (twin,) = world.machine.live("twin")
        await world.delete("twin")
        for _ in range(60):
            await trio.sleep(1)
            assert front.ready
        assert twin.exit.code == 0
        assert (front.keeper.state.losses, held(world, "omlx")) == ((), ["one"])
        await world.delete("other")
        await trio.sleep(30)
        assert held(world, "omlx") == []


async def test_what_a_killed_engine_has_left_stays_while_another_service_uses_it(autojump_clock):
    """It waits for memory beside that one, which is not touched."""
    async with host() as world:
        prepare(world, "omlx")
        small(world)
        await serve(world, "omlx")
        await world.apply("twin", source=MODEL, weights="mlx", runtime="omlx")
        await world.until(world.ready_addresses, 1, "twin", seconds=60)
        (twin,) = world.machine.live("twin")
        world.machine.memory.other = 46.0
        world.machine.kill("other")
        for _ in range(120):
            await trio.sleep(1)
            assert twin.ready
        assert twin.keeper.state.losses == ()


@both
async def test_an_engine_that_replaces_another_one_keeps_their_model(autojump_clock, runtime):
    """Both have it under one name; the end of the older one unloads nothing."""
    async with host() as world:
        prepare(world, runtime)
        small(world)
        old = await serve(world, runtime)
        restarted = {RESTARTED_AT: "2026-01-01T00:00:00Z"}
        await world.apply("other", source=MODEL, weights=WEIGHTS[runtime], runtime=runtime, podAnnotations=restarted)
        with trio.fail_after(120):
            await old.ended.wait()
        (new,) = world.machine.live("other")
        assert new.ready
        for _ in range(60):
            await trio.sleep(1)
            assert new.ready
        assert new.keeper.state.losses == ()
        assert held(world, runtime) == [new.keeper.adapter.name]
