"""Services on an Ollama or oMLX that its owner uses too: memory pressure, and faults of the daemon."""

from contextlib import asynccontextmanager

import pytest
import trio

from sim.daemons import RUNTIMES
from sim.machine import Script
from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world

GIB = 25.0
MODEL, NOT_THE_OWNERS = "builtin://one", "builtin://three"
"""The owner's oMLX has a folder for the first; an Ollama accepts every file."""

WEIGHTS = {"ollama": "gguf", "omlx": "mlx"}
MOVED = {"ollama": "OLLAMA_HOST", "omlx": "--omlx-port"}

both = pytest.mark.parametrize("runtime", RUNTIMES)


def host(**settings):
    return open_world(settings=agent_settings(**settings), memory=SimMemory)


def prepare(world, runtime):
    """Install the program, and set the sizes of both models."""
    world.machine.programs |= {runtime}
    world.machine.shapes |= {"builtin://demo": shape_of(30.0), MODEL: shape_of(GIB), NOT_THE_OWNERS: shape_of(GIB)}
    world.machine.memory.sizes |= {"other": GIB, "chat": 30.0}
    return world.machine.daemons[runtime].shared


async def serve(world, runtime, *, source=MODEL, **spec):
    await world.apply("other", source=source, weights=WEIGHTS[runtime], runtime=runtime, **spec)
    await world.until(world.ready_addresses, 1, "other", seconds=300)
    (front,) = world.machine.live("other")
    return front


@asynccontextmanager
async def serving(runtime, **spec):
    """Serve on the daemon of the host's owner; yield the world, that server, and its front."""
    async with host() as world:
        server = prepare(world, runtime)
        yield world, server, await serve(world, runtime, **spec)


def held(world, runtime):
    """Return the names of the models in memory, in order; "" for one that is not listed."""
    return sorted(each.name for _, each in world.machine.daemons[runtime].held())


def theirs(server):
    """Have another client load a model of its own."""
    server.engine.replace_model(server.fake, "theirs")


@both
async def test_it_is_admitted_evicted_and_brought_back(autojump_clock, runtime):
    """Under memory pressure the model is unloaded, and returns afterwards; its owner's model stays."""
    async with host() as world:
        server = prepare(world, runtime)
        theirs(server)
        world.machine.shapes["builtin://demo"], world.machine.memory.sizes["chat"] = shape_of(2.0), 2.0
        await world.apply("chat", priority="high")
        front = await serve(world, runtime)
        assert held(world, runtime) == sorted(["theirs", front.keeper.adapter.name])
        world.machine.memory.other = 36.0
        await world.until(world.ready_addresses, 0, "other", seconds=300)
        await trio.sleep(30)
        assert held(world, runtime) == ["theirs"]
        assert server.answers
        world.machine.memory.other = 8.0
        await world.until(world.ready_addresses, 1, "other", seconds=1200)
        assert len(held(world, runtime)) == 2
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_it_is_displaced_by_a_more_important_service(autojump_clock, runtime):
    """The winner starts when the model is out of memory, and the model returns after the winner."""
    async with serving(runtime, priority="low") as (world, _, _):
        await world.apply("chat", priority="critical")
        await world.until(world.ready_addresses, 1, "chat", seconds=300)
        assert held(world, runtime) == []
        await world.delete("chat")
        await world.until(world.ready_addresses, 1, "other", seconds=600)
        assert world.machine.memory.lowest_bytes >= 0


@pytest.mark.ci
@both
async def test_a_reported_unload_that_frees_nothing(autojump_clock, runtime):
    """The memory stays reserved: the winner waits, and starts when the owner has quit the daemon."""
    async with serving(runtime, priority="low") as (world, server, front):
        server.fake.lies = True
        await world.apply("chat", priority="critical")
        await trio.sleep(120)
        assert world.machine.live("other") == []
        assert front.exit.code == 1
        await trio.sleep(600)
        assert held(world, runtime) == [""]
        assert server.fake.ended == []
        assert world.machine.live("chat") == []
        assert world.machine.memory.lowest_bytes >= 0
        server.restart()
        await world.until(world.ready_addresses, 1, "chat", seconds=600)
        assert world.machine.memory.lowest_bytes >= 0


@both
async def test_a_daemon_that_restarts_by_itself_costs_no_engine(autojump_clock, runtime):
    """Not ready while it is away, ready when the model is loaded again, in the same front."""
    async with serving(runtime) as (world, server, front):
        server.stop()
        await trio.sleep(10)
        assert not front.ready
        await trio.sleep(5)
        assert await world.ready_addresses("other") == 0
        status, why, words = await world.condition(name="other")
        assert (status, why) == ("False", "Loading")
        assert "its model was unloaded and is being loaded again" in words
        server.start()
        await trio.sleep(60)
        assert world.machine.live("other") == [front]
        assert await world.ready_addresses("other") == 1
        assert held(world, runtime) == [front.keeper.adapter.name]


def reported_builds(world):
    """Return the builds in the agent's metrics."""
    return {view.build for view in world.agent.services().values()}


@both
async def test_the_status_follows_an_upgrade(autojump_clock, runtime):
    """Status and metrics have the new build within 20 s of its first answer, and the next agent's at once."""
    async with serving(runtime) as (world, server, front):
        old = server.fake.version  # the server's, and not the one of the installed program
        engine = {"runtime": runtime, "build": old, "weightsFormat": WEIGHTS[runtime]}
        assert (await world.service("other"))["status"]["engine"] == engine
        server.stop()
        await trio.sleep(3)
        server.start("0.98.0")
        await trio.sleep(20)
        assert (await world.service("other"))["status"]["engine"] == engine | {"build": "0.98.0"}
        assert reported_builds(world) == {"0.98.0"}
        _, _, words = await world.condition(name="other")
        assert f"{runtime} is now 0.98.0 (was {old})" in words
        await world.kill_agent()
        server.stop()
        server.start("0.99.0")
        await trio.sleep(20)
        await world.start_agent()
        builds = []
        for _ in range(60):
            await trio.sleep(0.5)
            builds.append((await world.service("other"))["status"]["engine"]["build"])
        assert world.machine.live("other") == [front]
        assert list(dict.fromkeys(builds)) in (["0.98.0", "0.99.0"], ["0.99.0"])  # never the build of the start
        assert reported_builds(world) == {"0.99.0"}


@both
async def test_a_daemon_that_upgrades_itself_costs_no_engine(autojump_clock, runtime):
    """The new release has lost the settings of the model, or lists it under another name."""
    async with serving(runtime) as (world, server, front):
        server.stop()
        await trio.sleep(1)
        if runtime == "ollama":
            server.fake.store.clear()
        else:
            server.fake.folders = {f"{name}-2": folder for name, folder in server.fake.folders.items()}
        server.start("0.99.0")
        await trio.sleep(60)
        assert world.machine.live("other") == [front]
        assert front.keeper.sample.version == "0.99.0"
        assert await world.ready_addresses("other") == 1
        assert held(world, runtime) == [front.keeper.adapter.name]


async def test_a_model_that_an_ollama_has_lost_is_created_again(autojump_clock):
    """Its store loses the model while nothing is loaded."""
    async with serving("ollama") as (world, server, front):
        server.fake.drop(front.keeper.adapter.name)
        server.fake.store.clear()
        await trio.sleep(120)
        assert world.machine.live("other") == [front]
        assert await world.ready_addresses("other") == 1
        assert len(server.fake.store) == 1


async def test_a_model_that_an_omlx_has_lost_is_served_by_one_of_our_own(autojump_clock):
    """Its default model answers to all names, and gets no request; the engine exits and names the folder."""
    async with serving("omlx") as (world, server, front):
        server.stop()
        server.engine.forget(server.fake)
        server.start()
        await trio.sleep(60)
        assert front.exit is not None
        assert "no longer lists /sim/builtin:__one among its models" in front.script.words[0]
        assert server.fake.loaded == set()
        await world.until(world.ready_addresses, 1, "other", seconds=900)
        assert len(world.machine.daemons["omlx"].servers) == 2


@both
async def test_another_model_under_its_name_is_not_served(autojump_clock, runtime):
    """The listed name is not trusted: no endpoint is ready until the right model is loaded."""
    async with serving(runtime) as (world, server, front):
        name = front.keeper.adapter.name
        server.fake.drop(name)
        server.engine.replace_model(server.fake, name)
        await world.until(world.ready_addresses, 0, "other", seconds=15)
        assert not front.ready
        await world.until(world.ready_addresses, 1, "other", seconds=900)
        (following,) = world.machine.live("other")
        assert world.machine.daemons[runtime].holders(following)


@both
async def test_a_model_that_another_client_unloads_is_loaded_again(autojump_clock, runtime):
    """It is loaded once, in the same front."""
    async with serving(runtime) as (world, server, front):
        for _ in range(3):
            server.fake.drop(front.keeper.adapter.name)
            await trio.sleep(60)
            assert world.machine.live("other") == [front]
            assert await world.ready_addresses("other") == 1
            assert held(world, runtime) == [front.keeper.adapter.name]


@both
async def test_a_daemon_at_another_port_is_reported_and_replaced(autojump_clock, runtime):
    """The engine exits with the fix; the next one has a server of its own, and two models are never reserved."""
    async with serving(runtime) as (world, server, front):
        server.stop()
        server.port += 1
        server.start()
        await trio.sleep(60)
        assert MOVED[runtime] in front.script.words[0]
        await world.until(world.ready_addresses, 1, "other", seconds=900)
        assert len(world.machine.daemons[runtime].servers) == 2
        assert world.machine.memory.lowest_bytes >= 0
        await world.delete("other")
        await trio.sleep(60)
        assert len(world.machine.daemons[runtime].servers) == 1


async def test_a_changed_key_is_reported_and_one_of_our_own_serves(autojump_clock):
    """OMLX answers 401: the engine exits with its message; the unload is refused, and its memory stays reserved."""
    async with host() as world:
        server = prepare(world, "omlx")
        world.machine.shapes[MODEL], world.machine.memory.sizes["other"] = shape_of(10.0), 10.0
        front = await serve(world, "omlx")
        server.fake.key = "CanaryKeyOfTheOwner"
        await trio.sleep(180)
        assert "oMLX answers 401: Invalid API key" in front.script.words[0]
        await world.until(world.ready_addresses, 1, "other", seconds=900)
        assert len(world.machine.daemons["omlx"].servers) == 2
        assert len(held(world, "omlx")) == 2
        assert world.machine.memory.lowest_bytes >= 0
        assert server.fake.ended == []


@both
async def test_without_a_daemon_of_the_owners_one_of_our_own_serves(autojump_clock, runtime):
    """It exits with its front, stopped or killed, and frees all memory that it kept after an unload."""
    async with host() as world:
        prepare(world, runtime).stop()
        front = await serve(world, runtime, source=NOT_THE_OWNERS)
        (own,) = world.machine.daemons[runtime].servers[1:]
        world.machine.kill("other")
        await trio.sleep(5)
        await world.until(world.ready_addresses, 1, "other", seconds=300)
        (front,) = world.machine.live("other")
        assert own not in world.machine.daemons[runtime].servers
        (own,) = world.machine.daemons[runtime].servers[1:]
        own.fake.lies = True
        await world.delete("other")
        await trio.sleep(60)
        assert front.exit.code == 0
        assert len(own.fake.ended) == 1
        assert held(world, runtime) == []


@both
async def test_one_of_our_own_that_is_killed_is_started_again(autojump_clock, runtime):
    """Its front restarts as well, and forwards no request meanwhile."""
    async with host() as world:
        prepare(world, runtime).stop()
        front = await serve(world, runtime)
        world.machine.daemons[runtime].servers[1].stop(killed=True)
        await trio.sleep(7)
        assert not front.ready
        await trio.sleep(20)
        assert front.exit is not None
        await world.until(world.ready_addresses, 1, "other", seconds=300)


async def test_a_stop_before_the_first_check_unloads_the_model_of_a_killed_front(autojump_clock):
    """The next front is stopped while it starts: it knows the model's folder, but not oMLX's name for it."""
    async with host() as world:
        prepare(world, "omlx")
        world.machine.shapes[MODEL], world.machine.memory.sizes["other"] = shape_of(10.0), 10.0
        await serve(world, "omlx")
        world.machine.scripts["other"] = Script(load_seconds=60.0)
        world.machine.kill("other")
        await trio.sleep(30)
        assert held(world, "omlx") == ["one"]
        assert len(world.machine.live("other")) == 1
        await world.delete("other")
        await trio.sleep(30)
        assert world.machine.live("other") == []
        assert held(world, "omlx") == []
