"""Deliberate bugs: each must make a timeline fail, or the timeline proves nothing."""

import random

import pytest
import trio
from trio.testing import MockClock

from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor import health, service
from llmkube.supervisor.lifecycle import RestartState
from llmkube.supervisor.reporter import Reporter
from sim.machine import Script
from sim.world import open_world


async def serve_crash_and_edit(world):
    """One service through load, crash, edit and a crash loop, with what must hold at each point."""
    world.machine.default = Script(load_seconds=30)
    await world.apply()
    await trio.sleep(20)
    assert await world.ready_addresses() == 0, "ready before the engine answers"
    await trio.sleep(20)
    assert await world.ready_addresses() == 1, "not ready although the engine answers"
    world.machine.kill("chat")
    await trio.sleep(1)
    assert await world.ready_addresses() == 0, "ready although the engine is dead"
    await trio.sleep(60)
    assert await world.ready_addresses() == 1, "not restarted"
    await world.apply(contextSize=512)
    await trio.sleep(60)
    assert "512" in world.machine.live("chat")[0].argv, "an edit was lost"
    world.machine.default = Script(load_seconds=1, life_seconds=0.5)
    world.machine.kill("chat")
    before = len(world.machine.spawned)
    await trio.sleep(60)
    assert len(world.machine.spawned) - before < 12, "a crash loop without back-off"
    world.machine.default = Script()
    await trio.sleep(100)
    await world.delete()
    await trio.sleep(30)
    assert not world.machine.live(), "an engine outlived its object"


def run():
    """The timeline on a virtual clock."""

    async def main():
        async with open_world() as world:
            await serve_crash_and_edit(world)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def ready_at_once(http, url):
    await trio.lowlevel.checkpoint()


def never_withdrawn(self, *args):
    self.view = service.ServiceView("Restarting")


def deaf_to_exits(original):
    class Deaf:
        def __init__(self, child):
            self.child = child
            self.pid = child.pid

        async def wait(self):
            await trio.sleep_forever()

        async def last_lines(self, count):
            return await self.child.last_lines(count)

    async def serve(child, *args):
        return await original(Deaf(child), *args)

    return serve


MUTANTS = {
    "ready before the engine answers": (health, "wait_ready", ready_at_once),
    "no restart and no withdrawal after an exit": (service, "_serve", deaf_to_exits(service._serve)),
    "the endpoint stays ready after an exit": (Reporter, "_publish_endpoint", None),
    "no back-off": (service, "after_failure", lambda policy, state, failure, rng: (RestartState(1), 0.0)),
    "a new plan looks like the old one": (LaunchPlan, "digest", "constant"),
}


def test_the_timeline_holds_without_a_mutant():
    """The timeline that the mutants must break passes on the real code."""
    run()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    """A program with this bug does not get through the timeline."""
    owner, attribute, replacement = MUTANTS[name]
    if replacement is None:
        original = getattr(owner, attribute)

        def only_when_ready(self):
            if self.view.ready:
                original(self)

        replacement = only_when_ready
    monkeypatch.setattr(owner, attribute, replacement)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        run()


def test_the_same_seed_gives_the_same_run():
    """Two runs with one seed spawn the same engines at the same virtual moments."""

    def spawns():
        record = []

        async def main():
            async with open_world(seed=7) as world:
                world.machine.scripts["bad"] = Script(load_seconds=1, life_seconds=20)
                await world.apply("bad")
                await world.apply("good")
                await trio.sleep(900)
                record.extend((child.name, child.port) for child in world.machine.spawned)
                record.append(world.machine.starts("bad"))

        state = random.getstate()
        trio._core._run._r.seed(7)
        trio.run(main, clock=MockClock(autojump_threshold=0))
        random.setstate(state)
        return record

    assert spawns() == spawns()
