"""Services on an Ollama that its owner runs too: under the memory of the host, and through what such a daemon does."""

import trio

from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world

GIB = 25.0
OLLAMA = "builtin://ollama"


def host(**settings):
    return open_world(settings=agent_settings(**settings), memory=SimMemory)


def prepare(world):
    """The program is there, and what both models take is known."""
    world.machine.programs |= {"ollama"}
    world.machine.shapes |= {"builtin://demo": shape_of(30.0), OLLAMA: shape_of(GIB)}
    world.machine.memory.sizes |= {"other": GIB, "chat": 30.0}
    return world.machine.ollama.shared


async def serve(world, **spec):
    await world.apply("other", source=OLLAMA, runtime="ollama", **spec)
    await world.until(world.ready_addresses, 1, "other", seconds=300)


async def test_it_is_admitted_evicted_and_brought_back(autojump_clock):
    """Another program takes the memory: the model goes, and returns when that program has gone; its owner's stays."""
    async with host() as world:
        daemon = prepare(world)
        daemon.services["blob of its owner"], daemon.held[9] = "", ("blob of its owner", daemon.pid)
        daemon.loaded["theirs"] = 9
        world.machine.shapes["builtin://demo"], world.machine.memory.sizes["chat"] = shape_of(2.0), 2.0
        await world.apply("chat", priority="high")
        await serve(world)
        assert len(daemon.held) == 2
        world.machine.memory.other = 36.0
        await world.until(world.ready_addresses, 0, "other", seconds=300)
        await trio.sleep(30)
        assert list(daemon.held) == [9]
        assert daemon.answers
        world.machine.memory.other = 8.0
        await world.until(world.ready_addresses, 1, "other", seconds=1200)
        assert world.machine.memory.lowest_bytes >= 0


async def test_it_gives_way_to_what_is_more_important(autojump_clock):
    """The winner starts when the model's process has gone, and it returns after the winner."""
    async with host() as world:
        daemon = prepare(world)
        await serve(world, priority="low")
        await world.apply("chat", priority="critical")
        await world.until(world.ready_addresses, 1, "chat", seconds=300)
        assert daemon.held == {}
        await world.delete("chat")
        await world.until(world.ready_addresses, 1, "other", seconds=600)
        assert world.machine.memory.lowest_bytes >= 0


async def test_said_unloaded_and_was_not(autojump_clock):
    """The memory counts as taken as long as it is: the winner waits, and starts when its owner has quit Ollama."""
    async with host() as world:
        daemon = prepare(world)
        await serve(world, priority="low")
        daemon.lies = True
        await world.apply("chat", priority="critical")
        await trio.sleep(120)
        assert world.machine.live("other") == []
        await trio.sleep(600)
        assert daemon.loaded == {}
        assert len(daemon.held) == 1
        assert world.machine.live("chat") == []
        assert world.machine.memory.lowest_bytes >= 0
        daemon.restart()
        await world.until(world.ready_addresses, 1, "chat", seconds=600)
        assert world.machine.memory.lowest_bytes >= 0


async def test_a_daemon_that_restarts_by_itself_costs_no_engine(autojump_clock):
    """Not ready while it is away, ready when the model is loaded again, in the same front; an upgrade is the same."""
    async with host() as world:
        daemon = prepare(world)
        await serve(world)
        (front,) = world.machine.live("other")
        for version in ("0.17.4", "0.18.0"):
            daemon.stop()
            await trio.sleep(10)
            assert not front.ready
            await trio.sleep(5)
            assert await world.ready_addresses("other") == 0
            held, why, words = await world.condition(name="other")
            assert (held, why) == ("False", "Loading")
            assert "its model is not loaded any more, and is loaded again" in words
            daemon.store.clear()
            daemon.start(version)
            await trio.sleep(60)
            assert world.machine.live("other") == [front]
            assert await world.ready_addresses("other") == 1
            assert len(daemon.held) == 1


def told_builds(world):
    """The build in the agent's own words: of its metrics."""
    return {view.build for view in world.agent.services().values()}


async def test_the_status_follows_an_upgrade(autojump_clock):
    """Status and metrics have the new build within 20 s of its first answer, and so says the next agent at once."""
    async with host() as world:
        daemon = prepare(world)
        await serve(world)
        (front,) = world.machine.live("other")
        engine = {"runtime": "ollama", "build": "0.17.4", "weightsFormat": "gguf"}
        assert (await world.service("other"))["status"]["engine"] == engine  # the server's, not the program's "0.1"
        daemon.stop()
        await trio.sleep(3)
        daemon.start("0.18.0")
        await trio.sleep(20)
        assert (await world.service("other"))["status"]["engine"] == engine | {"build": "0.18.0"}
        assert told_builds(world) == {"0.18.0"}
        _, _, words = await world.condition(name="other")
        assert "ollama is 0.18.0 now, and was 0.17.4" in words
        await world.kill_agent()
        daemon.stop()
        daemon.start("0.19.0")
        await trio.sleep(20)
        await world.start_agent()
        builds = []
        for _ in range(60):
            await trio.sleep(0.5)
            builds.append((await world.service("other"))["status"]["engine"]["build"])
        assert world.machine.live("other") == [front]
        assert list(dict.fromkeys(builds)) in (["0.18.0", "0.19.0"], ["0.19.0"])  # never the one that was started
        assert told_builds(world) == {"0.19.0"}


async def test_a_model_that_is_lost_is_made_again(autojump_clock):
    """Its store forgets the model while nothing is loaded."""
    async with host() as world:
        daemon = prepare(world)
        await serve(world)
        (front,) = world.machine.live("other")
        for name in list(daemon.loaded):
            daemon.drop(name)
        daemon.store.clear()
        await trio.sleep(120)
        assert world.machine.live("other") == [front]
        assert await world.ready_addresses("other") == 1
        assert len(daemon.store) == 1


async def test_a_daemon_at_another_port_is_told_and_replaced(autojump_clock):
    """The engine ends with the way out; the next one has a server of its own, and two models are never promised."""
    async with host() as world:
        daemon = prepare(world)
        await serve(world)
        (front,) = world.machine.live("other")
        daemon.port = 11500
        await trio.sleep(60)
        assert "OLLAMA_HOST" in front.script.words[0]
        await world.until(world.ready_addresses, 1, "other", seconds=900)
        assert len(world.machine.ollama.daemons) == 2
        assert world.machine.memory.lowest_bytes >= 0
        await world.delete("other")
        await trio.sleep(60)
        assert len(world.machine.ollama.daemons) == 1
