"""A host that lacks a resource, or is suspended, stops no engine; an engine that survives KILL gets no successor."""

from contextlib import asynccontextmanager

import pytest
import trio

from llmkube.k8s.wire.reasons import Reason
from sim.machine import Trap
from sim.memory import SimMemory, shape_of
from sim.stage import at
from sim.world import ADDRESS, agent_settings, open_world

pytestmark = pytest.mark.ci

QUICK = agent_settings(lease_renew_seconds=5.0)


@asynccontextmanager
async def seen_world():
    """Run a world whose host watches its network and its memory as well."""
    async with open_world(settings=QUICK, reach=at(ADDRESS), memory=SimMemory) as world:
        world.machine.shapes["builtin://demo"] = shape_of(0.1)
        yield world


def supervisor_tasks():
    """Return the number of tasks that run the supervisor's code."""
    tasks = [trio.lowlevel.current_root_task()]
    for task in tasks:
        tasks.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return sum(task.name.startswith("llmkube.supervisor") for task in tasks)


@pytest.mark.parametrize("has_proc", [True, False])
async def test_an_agent_without_descriptors_condemns_no_engine(autojump_clock, has_proc):
    """For ten minutes nothing can be opened: serving engines stay, and dead ones are started afterwards.

    Engines, their memory and the host's network cannot be inspected meanwhile. On macOS engines can be inspected, but
    not probed.
    """
    async with seen_world() as world:
        world.machine.has_proc = has_proc
        await world.serve("chat", "embed")
        world.machine.no_descriptors = True
        world.machine.kill("embed")
        await trio.sleep(600)
        assert len(world.machine.spawned) == 2
        assert await world.ready_addresses("chat") == 1
        assert await world.ready_addresses("embed") == 0
        world.machine.no_descriptors = False
        await world.until(world.ready_addresses, 1, "embed", seconds=90)
        assert len(world.machine.starts("chat")) == 1


@pytest.mark.parametrize("end", ["edit", "delete"])
async def test_an_engine_that_ends_without_descriptors_leaves_nothing(autojump_clock, end):
    """A service edited or deleted while nothing can be opened has one engine afterwards, or none."""
    async with seen_world() as world:
        await world.serve()
        world.machine.no_descriptors = True
        await (world.apply(contextSize=512) if end == "edit" else world.delete())
        await trio.sleep(300)
        world.machine.no_descriptors = False
        await trio.sleep(120)
        assert ["512" in child.argv for child in world.machine.live()] == ([True] if end == "edit" else [])


async def test_an_agent_that_begins_without_descriptors_adopts_when_it_can(autojump_clock):
    """An engine that the next agent cannot inspect is neither stopped nor doubled, and is supervised afterwards."""
    async with open_world(settings=QUICK, reach=at(ADDRESS)) as world:
        await world.serve()
        await world.kill_agent()
        world.machine.no_descriptors = True
        world.first.settings = agent_settings(lease_renew_seconds=5.0, advertise_address=None)
        await world.start_agent()
        await trio.sleep(60)
        world.machine.no_descriptors = False
        await trio.sleep(60)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1
        assert (await world.condition())[:2] == ("True", Reason.LOADED)


@pytest.mark.parametrize(
    ("lack", "why"), [("disk_full", Reason.JOURNAL_NOT_WRITTEN), ("no_address", Reason.ADDRESS_MISSING)]
)
async def test_a_lack_of_resources_is_reported(autojump_clock, lack, why):
    """The reason why no engine can be started is distinct from a missing program."""
    async with open_world(settings=QUICK) as world:
        setattr(world.machine, lack, True)
        await world.apply()
        await world.until(world.condition, lambda seen: seen and seen[1] == why, seconds=60)
        assert not world.machine.spawned


async def test_an_engine_that_dies_while_the_journal_is_written_is_started_again(autojump_clock):
    """An edit that restarts nothing is recorded on a slow disk; an engine that dies meanwhile is restarted."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        trap = world.machine.traps["record"] = Trap()
        await world.apply(priority="high")
        with trio.fail_after(60):
            await trap.hit.wait()
        world.machine.kill("chat")
        await trio.sleep(5)
        del world.machine.traps["record"]
        trap.released.set()
        await world.until(world.ready_addresses, 1, seconds=60)
        assert len(world.machine.spawned) == 2


async def test_a_service_without_work_is_four_tasks(autojump_clock):
    """Service and planner, runner, incarnation and the watch of its exit: every other task ends with its purpose."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        await trio.sleep(60)
        before = supervisor_tasks()
        await world.apply("embed")
        await world.until(world.ready_addresses, 1, "embed")
        await trio.sleep(60)
        assert supervisor_tasks() - before == 4


async def test_an_engine_that_no_signal_ends_gets_no_second_one(autojump_clock):
    """While an engine is stuck in the kernel its service reports it and waits; afterwards the next one starts."""
    async with open_world(settings=QUICK) as world:
        child = await world.serve()
        child.stuck = True
        await world.apply(contextSize=512)
        await world.until(reason, Reason.ENGINE_STUCK, world, seconds=90)
        await trio.sleep(300)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 0
        child.unstick()
        await world.until(world.ready_addresses, 1, seconds=90)
        assert len(world.machine.spawned) == 2


async def test_a_world_that_was_suspended_loses_nothing(autojump_clock):
    """After ten minutes in which no program could run, every engine serves, and the hosts keep their claims."""
    async with open_world(settings=QUICK) as world:
        await world.add_host("mini")
        await world.serve("chat", "embed")
        claims = await world.claims("chat"), await world.claims("embed")
        for pause in (1.0, 2.5, 4.9):
            await trio.sleep(pause)
            autojump_clock.jump(600)
            await trio.sleep(60)
        assert len(world.machine.spawned) + len(world.hosts["mini"].machine.spawned) == 2
        assert (await world.claims("chat"), await world.claims("embed")) == claims
        assert await world.ready_addresses("chat") == await world.ready_addresses("embed") == 1


async def reason(world):
    """Return the reason of the service's condition `Loaded`."""
    return (await world.condition())[1]
