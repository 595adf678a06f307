"""Models that killed engines leave in an owner's Ollama or oMLX, and several engines on one model."""

import trio

from llmkube.k8s.wire.names import RESTARTED_AT
from sim.memory import shape_of
from sim.test_shared_daemon import MODEL, WEIGHTS, both, held, host, prepare, serve, serving, theirs


def small(world):
    """Let the host have memory for several models of the owner's folder."""
    world.machine.shapes[MODEL] = shape_of(8.0)
    world.machine.memory.sizes |= {"other": 8.0, "twin": 8.0}


async def is_back(world, server, *, seconds):
    """Assert that the service is ready again, in memory once, and that no other model was unloaded."""
    await world.until(world.ready_addresses, 0, "other", seconds=30)
    await world.until(world.ready_addresses, 1, "other", seconds=seconds)
    (front,) = world.machine.live("other")
    assert held(world, server.engine.runtime) == sorted(["theirs", front.keeper.adapter.name])
    assert server.fake.ended == []
    assert world.machine.memory.lowest_bytes >= 0


@both
async def test_the_model_of_a_killed_engine_does_not_delay_the_next_one(autojump_clock, runtime):
    """25 GiB do not fit twice: the old copy is unloaded first, without waiting for Ollama's five minutes."""
    async with serving(runtime) as (world, server, _):
        theirs(server)
        world.machine.kill("other")
        await is_back(world, server, seconds=90)
        assert len(world.machine.starts("other")) == 2


@both
async def test_a_model_left_while_no_agent_ran_does_not_delay_the_next_engine(autojump_clock, runtime):
    """Agent and engine are killed at once: the next agent finds the model in memory, and neither process."""
    async with serving(runtime) as (world, server, _):
        theirs(server)
        await world.kill_agent()
        world.machine.kill("other")
        await trio.sleep(20)
        await world.start_agent()
        await is_back(world, server, seconds=90)


async def test_an_unload_that_is_not_answered_is_repeated(autojump_clock):
    """OMLX hangs for some minutes, in which the service reports that it waits for memory; then it returns."""
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
async def test_a_model_that_fits_is_taken_over(autojump_clock, runtime):
    """It is not loaded again."""
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


async def test_the_model_of_a_killed_engine_goes_with_the_service(autojump_clock):
    """The service is deleted while its next engine waits for memory: its model has been unloaded by then."""
    async with serving("omlx") as (world, _, _):
        world.machine.memory.other = 30.0
        world.machine.kill("other")
        await trio.sleep(60)
        await world.delete("other")
        await trio.sleep(10)
        assert held(world, "omlx") == []


async def test_a_model_that_its_owner_has_loaded_stays_while_a_service_waits(autojump_clock):
    """The service has unloaded its model in order; a later load of the same folder is not its own."""
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
    """The end of one service unloads nothing that the other uses; the end of the last one unloads the model."""
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


async def test_the_model_of_a_killed_engine_stays_while_another_service_uses_it(autojump_clock):
    """The next engine waits for memory, and the other service is not touched."""
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
    """Both use it under one name; the end of the older one unloads nothing."""
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
