"""An edit replaces the engine: next to the old one where memory holds both, else after it, and never in vain."""

import math

import attrs
import pytest
import trio

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.service import loading
from llmkube.supervisor.service import runner as service
from llmkube.supervisor.service.attempt import Attempt
from llmkube.supervisor.service.engine_status import EngineStatus
from llmkube.supervisor.service.runner import EngineNursery
from pressure.hosts import events, running, serve
from pressure.replacing import ONE, count, engines, large, serving_world, up_to_date, watched
from sim.machine import Script
from sim.mutation import assert_caught, do_nothing, play
from sim.stage import repair_host


async def an_edit_where_both_fit():
    """The old engine answers until the new one does, the endpoint changes once, requests in flight finish first."""
    async with serving_world(ONE) as world:
        (old,) = engines(world)
        old.in_flight = 1
        world.machine.scripts["chat"] = Script(load_seconds=20)
        async with watched(world) as watcher:
            await serve(world, "chat", 10, contextSize=2048)
            await world.until(up_to_date, ("False", "Replacing"), world, seconds=5)
            await world.until(count, 2, world, seconds=10)
            assert (await world.condition("Loaded", "chat"))[:2] == ("True", "Loaded")
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=30)
            await trio.sleep(10)
            assert old.exit is None, "a request is in flight"
            old.in_flight = 0
            await world.until(count, 1, world, seconds=15)
            assert old.exit.code == 0
            await trio.sleep(60)
        assert len(watcher.ports) == 2
        assert len(world.machine.starts("chat")) == 2
        assert not world.machine.doubles
        assert not await events(world, "NotReplaced")


async def an_edit_where_only_one_fits():
    """Where memory does not hold both, the new engine starts when the old one has exited."""
    async with serving_world({"chat": (30, "normal")}) as world:
        (old,) = engines(world)
        await serve(world, "chat", 30, contextSize=2048)
        await world.until(running, [], world, seconds=10)
        await world.until(running, ["chat"], world, seconds=60)
        assert old.exit is not None
        assert len(world.machine.starts("chat")) == 2
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=10)


async def an_edit_that_asks_for_too_much():
    """A plan that would have to wait for memory does not end the running engine; with free memory it replaces it."""
    async with serving_world({"chat": (20, "normal"), "other": (20, "normal")}) as world:
        async with watched(world):
            world.machine.memory.sizes["chat"] = 20.1
            source = "https://models.example/large.gguf"
            await large(world, source)
            await world.until(up_to_date, ("False", "InsufficientMemory"), world, seconds=30)
            message = (await world.condition("UpToDate", "chat"))[2]
            assert "needs 30.1 GiB" in message
            assert "`other`" in message
            assert "keeps serving" in message
            await trio.sleep(600)
            assert len(world.machine.starts("chat")) == 1
        await world.delete("other")
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=60)
        assert len(world.machine.starts("chat")) == 2


async def a_successor_that_crashes():
    """A plan that does not start is reported, the old engine keeps serving, and reverting the edit clears it."""
    async with serving_world(ONE) as world:
        async with watched(world):
            world.machine.scripts["chat"] = Script(math.inf, 1, words=("error: no such thing",))
            await serve(world, "chat", 10, contextSize=2048)
            await world.until(up_to_date, ("False", "CrashLoopBackOff"), world, seconds=30)
            message = (await world.condition("UpToDate", "chat"))[2]
            assert "keeps serving" in message
            assert "error: no such thing" in message
            assert "the engine of the older spec keeps serving" in (await events(world, "NotReplaced"))["chat"]
            await trio.sleep(600)
            assert 10 < len(world.machine.starts("chat")) < 25
            assert await world.phase("chat") == "Ready"
            await serve(world, "chat", 10)
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=90)
            before = len(world.machine.starts("chat"))
            await trio.sleep(600)
            assert len(world.machine.starts("chat")) == before
        assert (await world.service("chat"))["status"]["conditions"]


async def pressure_while_the_successor_loads():
    """Under pressure the successor that does not serve yet is evicted first, and restarts when memory is normal."""
    async with serving_world({"chat": (10, "normal"), "draft": (5, "normal")}) as world:
        async with watched(world):
            world.machine.scripts["chat"] = Script(load_seconds=300)
            await serve(world, "chat", 10, contextSize=2048)
            await world.until(count, 2, world, seconds=10)
            await trio.sleep(100)
            world.machine.memory.other = 42
            await world.until(count, 1, world, seconds=40)
            await trio.sleep(120)
            assert await running(world) == ["chat", "draft"], "what serves has stayed"
            world.machine.scripts["chat"] = Script(load_seconds=5)
            world.machine.memory.other = 8
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=120)
        assert len(world.machine.starts("draft")) == 1


async def the_old_engine_dies_meanwhile():
    """When the serving engine crashes, its successor, which is loading already, takes over at once."""
    async with serving_world(ONE) as world:
        (old,) = engines(world)
        world.machine.scripts["chat"] = Script(load_seconds=30)
        await serve(world, "chat", 10, contextSize=2048)
        await world.until(count, 2, world, seconds=10)
        old.end(-11)
        await world.until(world.ready_addresses, 0, "chat", seconds=2)
        await world.until(world.condition, lambda one: one[1] == "Loading", "Loaded", "chat", seconds=5)
        await world.until(running, ["chat"], world, seconds=40)
        await world.until(world.ready_addresses, 1, "chat", seconds=5)
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=5)
        assert len(world.machine.starts("chat")) == 2


async def the_agent_is_killed_while_the_successor_loads():
    """The next agent adopts the serving engine, stops the half-loaded one, and replaces the engine again."""
    async with serving_world(ONE) as world:
        (old,) = engines(world)
        world.machine.scripts["chat"] = Script(load_seconds=30)
        async with watched(world) as watcher:
            await serve(world, "chat", 10, contextSize=2048)
            await world.until(count, 2, world, seconds=10)
            _, half = engines(world)
            await world.kill_agent()
            await world.start_agent()
            assert half.exit is not None
            assert old.exit is None
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=60)
            assert watcher.ports
        assert len(world.machine.starts("chat")) == 3


async def the_agent_is_killed_after_the_switch():
    """The next agent knows that the successor serves, and stops the old engine."""
    async with serving_world(ONE) as world:
        (old,) = engines(world)
        old.in_flight = 1
        async with watched(world):
            await serve(world, "chat", 10, contextSize=2048)
            await world.until(count, 2, world, seconds=10)
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=60, step_seconds=0.1)
            assert old.exit is None
            await world.kill_agent()
            await world.start_agent()
            assert old.exit is not None
            await trio.sleep(60)
        assert len(world.machine.starts("chat")) == 2


async def test_the_next_agent_renames_a_log_that_was_not_renamed(autojump_clock):
    """An agent killed between the journal entry and the rename of the log leaves a mark for the next one."""
    async with serving_world(ONE) as world:
        await serve(world, "chat", 10, contextSize=2048)
        await world.until(count, 2, world, seconds=10)
        await world.until(count, 1, world, seconds=60)
        key, (engine,) = Key("default", "chat"), engines(world)
        entry = world.machine.entries[key]
        assert not entry.engine.next_log
        assert engine.log.name == "chat.log"
        await world.kill_agent()
        world.machine.entries[key] = attrs.evolve(entry, engine=attrs.evolve(entry.engine, next_log=True))
        engine.log = engine.log.with_name("chat.log.next")
        await world.start_agent()
        await trio.sleep(5)
        assert not world.machine.entries[key].engine.next_log
        assert engine.log.name == "chat.log"
        assert engine.exit is None


@pytest.mark.parametrize("change", ["delete", "suspend", "edit"])
async def test_another_change_while_the_successor_loads(autojump_clock, change):
    """A deletion and a suspension stop both engines; another edit stops the outdated successor."""
    async with serving_world(ONE) as world:
        world.machine.scripts["chat"] = Script(load_seconds=30)
        await serve(world, "chat", 10, contextSize=2048)
        await world.until(count, 2, world, seconds=10)
        await trio.sleep(5)
        if change == "delete":
            await world.delete("chat")
            await world.until(count, 0, world, seconds=30)
        elif change == "suspend":
            await serve(world, "chat", 10, contextSize=2048, suspend=True)
            await world.until(count, 0, world, seconds=30)
            assert await world.ready_addresses("chat") == 0
        else:
            async with watched(world):
                await serve(world, "chat", 10, contextSize=1024)
                await world.until(up_to_date, ("True", "UpToDate"), world, seconds=60)
            await world.until(count, 1, world, seconds=60)
            (last,) = engines(world)
            assert last.argv[last.argv.index("--ctx-size") + 1] == "1024"
        repair_host(world.first)


async def test_edits_in_a_row_are_replaced_one_after_the_other(autojump_clock):
    """However fast edits follow each other, there are never more than two engines, and the last edit wins."""
    async with serving_world(ONE) as world:
        most = 0
        async with watched(world):
            for context in (512, 1024, 1536, 2048, 2560):
                await serve(world, "chat", 10, contextSize=context)
                for _ in range(20):
                    most = max(most, len(engines(world)))
                    await trio.sleep(0.35)
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=120)
        await world.until(count, 1, world, seconds=60)
        (last,) = engines(world)
        assert last.argv[last.argv.index("--ctx-size") + 1] == "2560"
        assert most == 2


@pytest.mark.parametrize("memory", [8.0, 40.0])
async def test_an_engine_that_crashed_once_is_replaced_like_any_other(autojump_clock, memory):
    """A failure of the serving engine does not delay its replacement, whether or not memory holds both."""
    async with serving_world(ONE) as world:
        world.machine.kill("chat")
        await world.until(running, ["chat"], world, seconds=60)
        world.machine.memory.other = memory
        await trio.sleep(60)
        await serve(world, "chat", 10, contextSize=2048)
        await world.until(count, 2 if memory < 10 else 0, world, seconds=10)
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=60)
        await world.until(count, 1, world, seconds=30)


async def test_a_refused_edit_is_reported_as_not_in_force(autojump_clock):
    """The engine keeps serving and is reported as not up to date; reverting the edit makes it up to date."""
    async with serving_world(ONE) as world:
        async with watched(world):
            await serve(world, "chat", 10, extraArgs=["--port", "1"])
            await world.until(up_to_date, ("False", "Invalid"), world, seconds=10)
            await serve(world, "chat", 10)
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=10)
        assert len(world.machine.starts("chat")) == 1
        found = await world.client.get(InferenceService, Key("default", "chat"))
        (condition,) = [one for one in found.status.conditions if one.type == "UpToDate"]
        assert condition.observed_generation == found.metadata.generation


async def the_journal_cannot_be_written():
    """A loaded successor is not stopped because the disk is full: it takes over when there is space."""
    async with serving_world(ONE) as world:
        async with watched(world):
            world.machine.scripts["chat"] = Script(load_seconds=10)
            await serve(world, "chat", 10, contextSize=2048)
            await world.until(count, 2, world, seconds=10)
            world.machine.disk_full = True
            await trio.sleep(60)
            assert len(engines(world)) == 2
            assert await up_to_date(world) == ("False", "Replacing")
            world.machine.disk_full = False
            await world.until(up_to_date, ("True", "UpToDate"), world, seconds=5)
        assert len(world.machine.starts("chat")) == 2


TIMELINES = (
    the_journal_cannot_be_written,
    an_edit_where_both_fit,
    an_edit_where_only_one_fits,
    an_edit_that_asks_for_too_much,
    a_successor_that_crashes,
    pressure_while_the_successor_loads,
    the_old_engine_dies_meanwhile,
    the_agent_is_killed_while_the_successor_loads,
    the_agent_is_killed_after_the_switch,
)


@pytest.mark.ci
@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda one: one.__name__)
def test_replacement(timeline):
    play(timeline)


async def unnoted(engine, running, allocation):
    await trio.lowlevel.checkpoint()
    engine.context.ledger.take_over(allocation)
    engine.status.lead()


async def mute(current, successor):
    await trio.sleep_forever()


def stay(engines, old):
    pass


def always_beside(book, key, need, now):
    return service.Strategy.ROLLING_UPDATE


def always_instead(book, key, need, now):
    return service.Strategy.RECREATE


MUTANTS = {
    "the old engine is always ended first": (Book, "replacement", always_instead, an_edit_where_both_fit),
    "what serves is given up for what cannot start": (
        Book,
        "replacement",
        always_instead,
        an_edit_that_asks_for_too_much,
    ),
    "both are loaded though only one fits": (Book, "replacement", always_beside, an_edit_where_only_one_fits),
    "a successor reports before it serves": (EngineStatus, "leads", True, an_edit_where_both_fit),
    "the journal does not know who serves": (Attempt, "_take_over", unnoted, the_agent_is_killed_after_the_switch),
    "a successor that is alone reports nothing": (service, "_lead_after_exit", mute, the_old_engine_dies_meanwhile),
    "the old engine stays": (EngineNursery, "retire", stay, an_edit_where_both_fit),
    "a successor is called ready before it answers": (
        loading.health,
        "wait_ready",
        do_nothing,
        an_edit_where_both_fit,
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_deliberate_bug_in_a_replacement_is_caught(name, monkeypatch):
    """A program with this bug fails its timeline."""
    assert_caught(monkeypatch, MUTANTS[name])
