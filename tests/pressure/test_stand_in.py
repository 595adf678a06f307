"""The last plan that served is started again when it exits, as long as the newest plan cannot start."""

import math

import pytest
import trio

from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.supervisor.service.attempt import EngineJournal
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.runner import Runner
from pressure.hosts import running, serve
from pressure.replacing import ONE, count, engines, large, serving_world, up_to_date
from sim.machine import Machine, Script
from sim.memory import shape_of
from sim.mutation import assert_caught, do_nothing, play

CRASHES = Script(math.inf, 1, words=("error: no such thing",))
OLD, NEW, NEWER = "4096", "2048", "1024"
"""Contexts: each is a separate plan."""


SMALL = "/sim/https:__models.example_small.gguf"


def context(engine):
    """Return the plan of an engine."""
    return engine.argv[engine.argv.index("--ctx-size") + 1]


def model(engine):
    """Return the file that an engine serves."""
    return engine.argv[engine.argv.index("--model") + 1]


async def contexts(world):
    """Return the plans of the engines that answer."""
    await trio.lowlevel.checkpoint()
    return [context(engine) for engine in engines(world) if engine.ready]


def starts(world, plan):
    """Return the number of engine starts of a plan."""
    return [context(engine) for engine in world.machine.spawned if engine.name == "chat"].count(plan)


async def one_that_crashes(world):
    """Apply a plan that does not start; the older engine keeps serving."""
    world.machine.plans[NEW] = CRASHES
    await serve(world, "chat", 10, contextSize=int(NEW))
    await world.until(up_to_date, ("False", "CrashLoopBackOff"), world, seconds=30)
    (old,) = [engine for engine in engines(world) if engine.ready]
    return old


async def small(world):
    """Change the service's Model to a file of 5 GiB."""
    source = "https://models.example/small.gguf"
    world.machine.shapes[source] = shape_of(5)
    await world._apply(Model, "chat", {"source": source, "hardware": {"accelerator": "metal"}})


async def the_newest_crashes():
    """The older plan is back within seconds of a crash, the newest is tried repeatedly, and serves once it starts."""
    async with serving_world(ONE) as world:
        for code in (-11, 1):
            old = await one_that_crashes(world)
            await trio.sleep(400)
            old.end(code)
            await world.until(contexts, [OLD], world, seconds=15)
            await world.until(world.ready_addresses, 1, "chat", seconds=5)
            assert await up_to_date(world) == ("False", "CrashLoopBackOff")
            before = starts(world, NEW)
            await trio.sleep(600)
            assert 8 < starts(world, NEW) - before < 15
            assert await contexts(world) == [OLD]
        del world.machine.plans[NEW]
        await world.until(contexts, [NEW], world, seconds=90)
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=5)
        before = starts(world, OLD)
        world.machine.kill("chat")
        await world.until(contexts, [NEW], world, seconds=30)
        world.machine.plans[NEW] = CRASHES
        world.machine.kill("chat")
        await trio.sleep(300)
        assert starts(world, OLD) == before, "the newest has served meanwhile"
        assert not world.machine.doubles


async def the_newest_is_refused():
    """If the newest spec would wait for memory, the older plan is started again; with free memory the newest starts."""
    async with serving_world({"chat": (20, "normal"), "other": (20, "normal")}) as world:
        (old,) = engines(world)
        world.machine.memory.sizes["chat"] = 20.1
        await large(world, "https://models.example/large.gguf")
        await world.until(up_to_date, ("False", "InsufficientMemory"), world, seconds=30)
        old.end(-11)
        await world.until(world.ready_addresses, 0, "chat", seconds=2)
        await world.until(running, ["chat", "other"], world, seconds=20)
        (again,) = engines(world)
        assert model(again) == model(old), "the same file"
        await world.until(up_to_date, ("False", "InsufficientMemory"), world, seconds=5)
        assert len(world.machine.starts("chat")) == 2
        await world.delete("other")
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=60)
        assert len(world.machine.starts("chat")) == 3


async def the_newest_is_invalid():
    """The stand-in of a spec without a plan is reported as not the newest, even if it had to be started."""
    async with serving_world(ONE) as world:
        await serve(world, "chat", 10, extraArgs=["--port", "1"])
        await world.until(up_to_date, ("False", "Invalid"), world, seconds=10)
        world.machine.kill("chat")
        await world.until(contexts, [OLD], world, seconds=20)
        await trio.sleep(10)
        assert await up_to_date(world) == ("False", "Invalid")
        await serve(world, "chat", 10, extraArgs=[])
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=10)
        assert len(world.machine.starts("chat")) == 2


async def another_edit_meanwhile():
    """While the older plan loads again, a newer edit is tried at once; if it fails as well, the older plan returns."""
    async with serving_world(ONE) as world:
        old = await one_that_crashes(world)
        world.machine.plans[OLD] = Script(load_seconds=200)
        old.end(-11)
        await trio.sleep(30)
        world.machine.plans[NEWER] = CRASHES
        del world.machine.plans[OLD]  # the loading engine keeps its slow plan
        await serve(world, "chat", 10, contextSize=int(NEWER))
        await trio.sleep(5)
        assert starts(world, NEWER)
        await world.until(contexts, [OLD], world, seconds=30)
        del world.machine.plans[NEWER]
        await world.until(contexts, [NEWER], world, seconds=90)


async def a_suspension():
    """A suspended service is stopped and the older plan forgotten: afterwards only the newest is tried."""
    async with serving_world(ONE) as world:
        old = await one_that_crashes(world)
        old.end(-11)
        await world.until(contexts, [OLD], world, seconds=15)
        await serve(world, "chat", 10, contextSize=int(NEW), suspend=True)
        await world.until(count, 0, world, seconds=30)
        before = starts(world, OLD)
        await trio.sleep(60)
        assert not engines(world)
        await serve(world, "chat", 10, contextSize=int(NEW))
        await trio.sleep(300)
        assert starts(world, OLD) == before


async def test_a_deletion_stops_the_stand_in(autojump_clock):
    """A service that is deleted while the older plan loads again has no engine left, and none starts."""
    async with serving_world(ONE) as world:
        old = await one_that_crashes(world)
        world.machine.plans[OLD] = Script(load_seconds=200)
        old.end(-11)
        await trio.sleep(30)
        await world.delete("chat")
        await world.until(count, 0, world, seconds=30)
        before = len(world.machine.spawned)
        await trio.sleep(300)
        assert len(world.machine.spawned) == before
        assert Key("default", "chat") not in world.machine.entries


async def both_die_while_no_agent_runs():
    """The next agent tries the newest first, and starts the older plan again when that fails."""
    async with serving_world(ONE) as world:
        old = await one_that_crashes(world)
        await trio.sleep(100)
        await world.kill_agent()
        old.end(-9)
        await world.start_agent()
        await world.until(contexts, [OLD], world, seconds=20)
        await world.until(up_to_date, ("False", "CrashLoopBackOff"), world, seconds=5)
        del world.machine.plans[NEW]
        await world.until(contexts, [NEW], world, seconds=90)


async def the_agent_is_killed_while_the_newest_is_tried_alone():
    """An agent that finds only the newest engine knows the older plan from the journal."""
    async with serving_world(ONE) as world:
        old = await one_that_crashes(world)
        world.machine.plans[OLD] = CRASHES
        old.end(-11)
        await trio.sleep(100)
        world.machine.plans[NEW] = Script(load_seconds=300, life_seconds=30)
        await world.until(lambda: plans(world), [NEW], seconds=120, step_seconds=0.1)
        await world.kill_agent()
        del world.machine.plans[OLD]
        await world.start_agent()
        await world.until(contexts, [OLD], world, seconds=90)


async def plans(world):
    """Return the plans of the running engines."""
    await trio.lowlevel.checkpoint()
    return [context(engine) for engine in engines(world)]


async def its_file_is_gone():
    """The older plan is not started again without its file."""
    async with serving_world(ONE) as world:
        (old,) = engines(world)
        world.machine.plans[SMALL] = CRASHES
        await small(world)
        await world.until(up_to_date, ("False", "CrashLoopBackOff"), world, seconds=30)
        world.machine.files.discard("https://models.example/chat.gguf")
        before = [each for each in world.machine.spawned if model(each) == model(old)]
        old.end(-11)
        await trio.sleep(300)
        assert [each for each in world.machine.spawned if model(each) == model(old)] == before
        world.machine.plans.clear()
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=90)


async def both_crash():
    """When neither plan starts, both are retried with back-off; the first one that is fixed serves."""
    async with serving_world(ONE) as world:
        old = await one_that_crashes(world)
        world.machine.plans[OLD] = CRASHES
        old.end(-11)
        await trio.sleep(300)
        before = starts(world, OLD), starts(world, NEW)
        await trio.sleep(600)
        assert 5 < starts(world, OLD) - before[0] < 20
        assert 5 < starts(world, NEW) - before[1] < 20
        del world.machine.plans[NEW]
        await world.until(contexts, [NEW], world, seconds=150)


async def what_served_waits_for_memory():
    """While there is no memory for the older plan, a newest plan that needs less is still tried."""
    async with serving_world({"chat": (20, "normal")}) as world:
        (old,) = engines(world)
        world.machine.plans[SMALL] = CRASHES
        await small(world)
        await world.until(up_to_date, ("False", "CrashLoopBackOff"), world, seconds=30)
        world.machine.memory.sizes["chat"] = 5.1
        world.machine.memory.other = 45
        old.end(-11)
        await trio.sleep(120)
        assert not await contexts(world)
        world.machine.plans.clear()
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=120)


TIMELINES = (
    the_newest_crashes,
    the_newest_is_refused,
    the_newest_is_invalid,
    another_edit_meanwhile,
    a_suspension,
    both_die_while_no_agent_runs,
    the_agent_is_killed_while_the_newest_is_tried_alone,
    its_file_is_gone,
    both_crash,
    what_served_waits_for_memory,
)


@pytest.mark.ci
@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda one: one.__name__)
def test_stand_in(timeline):
    play(timeline)


# -- deliberate bugs ------------------------------------------------------------------------------------------------


async def newest_only(runner, goal):
    await trio.lowlevel.checkpoint()
    return goal


async def kept_only(runner, goal):
    await trio.lowlevel.checkpoint()
    if runner.fallback is not None:
        runner._due_at = math.inf
    return runner.fallback or goal


async def admitted_anyway(runner, goal):
    await trio.lowlevel.checkpoint()
    return False


async def never(*_):
    await trio.sleep_forever()


async def there(*_):
    await trio.lowlevel.checkpoint()
    return True


async def noted_alone(journal, record, original=EngineJournal.save):
    fallback, journal.fallback = journal.fallback, None
    await original(journal, record)
    journal.fallback = fallback


async def remembered(runner, goal, original=Runner._stop_all):
    fallback = runner.fallback
    await original(runner, goal)
    runner.fallback = fallback


def given_up(runner, failure):
    runner._due_at = math.inf
    return 0.0


def forgotten(facts, reason, message):
    return facts.with_outdated(reason, message)


MUTANTS = {
    "what served is given up": (Runner, "_choose_launch", newest_only, the_newest_crashes),
    "the newest is given up": (Runner, "_postpone", given_up, the_newest_crashes),
    "the newest waits for memory in the place of what served": (
        Runner,
        "_is_refused",
        admitted_anyway,
        the_newest_is_refused,
    ),
    "what stands in is called the newest": (Facts, "with_unplanned", forgotten, the_newest_is_invalid),
    "a newer edit waits for what stands in": (Runner, "_end_when_superseded", never, another_edit_meanwhile),
    "a suspension is no end": (Runner, "_stop_all", remembered, a_suspension),
    "the journal does not know that it served": (EngineJournal, "set_served", do_nothing, both_die_while_no_agent_runs),
    "the journal forgets it for the newest": (
        EngineJournal,
        "save",
        noted_alone,
        the_agent_is_killed_while_the_newest_is_tried_alone,
    ),
    "nobody looks for its file": (Machine, "keeps", there, its_file_is_gone),
    "the newest waits for a better one": (Runner, "_choose_launch", kept_only, both_crash),
    "its wait for memory has no end": (Runner, "_end_wait_when_due", never, what_served_waits_for_memory),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_deliberate_bug_in_a_stand_in_is_caught(name, monkeypatch):
    """A program with this bug fails its timeline."""
    assert_caught(monkeypatch, MUTANTS[name])
