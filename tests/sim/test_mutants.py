"""Deliberate bugs: each must make a timeline fail, or the timeline proves nothing."""

import random

import pytest
import trio
from trio.testing import MockClock

from llmkube.k8s.reflector import Cache
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor import health, service
from llmkube.supervisor.agent import AgentView, _Agent
from llmkube.supervisor.lifecycle import RestartState
from llmkube.supervisor.reporter import Reporter
from llmkube.supervisor.service import Runner
from sim import test_adoption as adoption
from sim.machine import Machine, Script
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


async def run(_):
    """The first timeline, in the form of the other ones."""
    async with open_world() as world:
        await serve_crash_and_edit(world)


def play(timeline):
    """Run a timeline on a virtual clock."""
    trio.run(timeline, None, clock=MockClock(autojump_threshold=0))


async def ready_at_once(http, url):
    await trio.lowlevel.checkpoint()


def deaf_to_exits(original):
    class Deaf:
        def __init__(self, child):
            self.child = child

        def __getattr__(self, name):
            return getattr(self.child, name)

        async def wait(self):
            await trio.sleep_forever()

    async def serve(self, child, *args):
        return await original(self, Deaf(child), *args)

    return serve


def when_ready_only(original):
    def publish(self):
        if self.view.ready:
            original(self)

    return publish


def greeted_as_new(original):
    def greet(self, *, adopting):
        original(self, adopting=False)

    return greet


async def nothing(*_):
    await trio.lowlevel.checkpoint()


MUTANTS = {
    "ready before the engine answers": (run, health, "wait_ready", ready_at_once),
    "no restart and no withdrawal after an exit": (run, Runner, "_serve", deaf_to_exits(Runner._serve)),
    "the endpoint stays ready after an exit": (
        run,
        Reporter,
        "_publish_endpoint",
        when_ready_only(Reporter._publish_endpoint),
    ),
    "no back-off": (run, service, "after_failure", lambda policy, state, failure, rng: (RestartState(1), 0.0)),
    "a new plan looks like the old one": (run, LaunchPlan, "digest", "constant"),
    "the journal is not written": (adoption.test_a_killed_agent_costs_nothing, Machine, "write", nothing),
    "the journal is never cleared": (
        adoption.test_a_suspended_service_does_not_come_back_with_a_new_agent,
        Machine,
        "remove",
        nothing,
    ),
    "an adopted engine is announced as not ready first": (
        adoption.test_a_killed_agent_costs_nothing,
        Reporter,
        "greet",
        greeted_as_new(Reporter.greet),
    ),
    "an adopted engine of another plan stays": (
        adoption.test_an_edit_while_no_agent_runs_replaces_the_engine_once,
        LaunchPlan,
        "digest",
        "constant",
    ),
    "an adopted engine is not asked before it is called ready": (
        adoption.test_an_engine_that_was_still_loading_is_adopted_without_being_called_ready,
        health,
        "wait_ready",
        ready_at_once,
    ),
    "the first empty list is believed": (
        adoption.test_an_empty_list_right_after_the_start_ends_nothing,
        Cache,
        "is_doubtful",
        lambda self, listing: False,
    ),
    "without an API server nothing is started": (
        adoption.test_an_agent_without_an_api_server_serves_what_was_asked_last,
        _Agent,
        "_go_on_alone",
        nothing,
    ),
    "a stop does not wait for requests": (
        adoption.test_requests_in_flight_end_before_the_engine_does,
        health,
        "wait_idle",
        nothing,
    ),
    "a peaceful parting takes the endpoint along": (
        adoption.test_an_agent_that_parts_in_peace_leaves_everything_as_it_is,
        AgentView,
        "keep_engines",
        lambda self: None,
    ),
}
"""A bug, and the timeline that it must not get through: which attribute it sits in, and what stands there instead."""


def test_the_timeline_holds_without_a_mutant():
    """The timeline that the mutants must break passes on the real code; the others are tests of their own."""
    play(run)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    """A program with this bug does not get through the timeline."""
    timeline, owner, attribute, replacement = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, replacement)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: ASYNC401 - what is in the group is looked at below
        play(timeline)
    # What else is in the group is connections that break off while the world comes down.
    assert caught.value.subgroup(AssertionError), caught.value


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
