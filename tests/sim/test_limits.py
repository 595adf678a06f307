"""A host that lacks something, or stands still, costs no engine; one that no signal ends gets no second one."""

import trio

from llmkube.supervisor.lifecycle import Reason
from sim.world import agent_settings, open_world

QUICK = agent_settings(lease_renew_seconds=5.0)


def supervisor_tasks():
    """How many tasks run the supervisor's code."""
    tasks = [trio.lowlevel.current_root_task()]
    for task in tasks:
        tasks.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return sum(task.name.startswith("llmkube.supervisor") for task in tasks)


async def test_an_agent_without_descriptors_condemns_no_engine(autojump_clock):
    """For ten minutes nothing can be opened: what serves stays, and what has died is started when that is over."""
    async with open_world(settings=QUICK) as world:
        for name in ("chat", "embed"):
            await world.apply(name)
            await world.until(world.ready_addresses, 1, name)
        world.machine.no_descriptors = True
        world.machine.kill("embed")
        await trio.sleep(600)
        assert len(world.machine.spawned) == 2
        assert await world.ready_addresses("chat") == 1
        assert await world.ready_addresses("embed") == 0
        world.machine.no_descriptors = False
        await world.until(world.ready_addresses, 1, "embed", seconds=90)
        assert len(world.machine.starts("chat")) == 1


async def test_a_service_at_rest_is_five_tasks(autojump_clock):
    """Itself, planner, runner, incarnation and the watch for its exit: every other task ends with what it was for."""
    async with open_world(settings=QUICK) as world:
        await world.apply("chat")
        await world.until(world.ready_addresses, 1, "chat")
        await trio.sleep(60)
        before = supervisor_tasks()
        await world.apply("embed")
        await world.until(world.ready_addresses, 1, "embed")
        await trio.sleep(60)
        assert supervisor_tasks() - before == 5


async def test_an_engine_that_no_signal_ends_gets_no_second_one(autojump_clock):
    """While an engine is stuck in the kernel its service says so and waits; when it is gone, the next one starts."""
    async with open_world(settings=QUICK) as world:
        await world.apply()
        await world.until(world.ready_addresses, 1)
        (child,) = world.machine.live("chat")
        child.stuck = True
        await world.apply(contextSize=512)
        await world.until(reason, Reason.ENGINE_STUCK, world, seconds=90)
        await trio.sleep(300)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 0
        child.unstick()
        await world.until(world.ready_addresses, 1, seconds=90)
        assert len(world.machine.spawned) == 2


async def test_a_world_that_has_stood_still_loses_nothing(autojump_clock):
    """After ten minutes in which nobody could do anything, every engine serves, and the hosts keep what they claim."""
    async with open_world(settings=QUICK) as world:
        await world.add_host("mini")
        for name in ("chat", "embed"):
            await world.apply(name)
            await world.until(world.ready_addresses, 1, name)
        claims = await world.claims("chat"), await world.claims("embed")
        for pause in (1.0, 2.5, 4.9):
            await trio.sleep(pause)
            autojump_clock.jump(600)
            await trio.sleep(60)
        assert len(world.machine.spawned) + len(world.hosts["mini"].machine.spawned) == 2
        assert (await world.claims("chat"), await world.claims("embed")) == claims
        assert await world.ready_addresses("chat") == await world.ready_addresses("embed") == 1


async def reason(world):
    """Why the service is not loaded."""
    return (await world.condition())[1]
