"""An agent is stopped by SIGSTOP and continued, while engines, API server and clock continue."""

import pytest
import trio

from sim.freezing import frozen
from sim.machine import Script
from sim.world import agent_settings, open_world

SETTINGS = {"lease_renew_seconds": 5.0, "reassert_seconds": 3600.0}


async def test_a_frozen_program_takes_no_step_and_then_all_of_them(autojump_clock):
    """A frozen program and its tasks do not run; others do; afterwards nothing is lost."""
    steps, others = [], []

    async def tick(into):
        while True:
            await trio.sleep(1)
            into.append(trio.current_time())

    async def program(task_status):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, steps)
            task_status.started(trio.lowlevel.current_task())

    async with trio.open_nursery() as nursery:
        root = await nursery.start(program)
        nursery.start_soon(tick, others)
        await trio.sleep(10.5)
        assert len(steps) == 10
        with frozen(root):
            await trio.sleep(10)
            assert len(steps) == 10
            assert len(others) == 20
        await trio.sleep(1.5)
        assert len(steps) == 12
        assert steps[10] == pytest.approx(20.5)
        nursery.cancel_scope.cancel()


@pytest.mark.ci
@pytest.mark.parametrize("seconds", [5, 45, 600])
async def test_an_agent_that_was_frozen_continues(autojump_clock, seconds):
    """Its engines are unchanged, and other programs' reactions to its silence are corrected within seconds."""
    async with open_world(settings=agent_settings(**SETTINGS)) as world:
        await world.serve("chat", "embed")
        world.machine.live("chat")[0].in_flight = 3
        before = world.machine.live()
        await trio.sleep(60)
        with frozen(world.first.program):
            await trio.sleep(seconds)
            if seconds > 60:
                assert await world.ready_addresses("chat") == 0, "a silent host has no ready endpoint"
        for name in ("chat", "embed"):
            await world.until(world.ready_addresses, 1, name, seconds=10)
        await trio.sleep(300)
        assert world.machine.live() == before
        assert len(world.machine.spawned) == 2


async def test_an_engine_that_died_meanwhile_is_replaced_at_once(autojump_clock):
    """An engine that exited while its agent was frozen is replaced within seconds."""
    async with open_world(settings=agent_settings(**SETTINGS)) as world:
        await world.serve()
        with frozen(world.first.program):
            await trio.sleep(5)
            world.machine.kill("chat")
            await trio.sleep(300)
        await world.until(world.ready_addresses, 0, seconds=1, step_seconds=0.1)
        await world.until(world.ready_addresses, 1, seconds=20)
        assert len(world.machine.spawned) == 2


async def test_a_slow_load_continues_while_its_agent_is_frozen(autojump_clock):
    """An engine that has loaded meanwhile is not taken for a stalled one."""
    async with open_world(settings=agent_settings(**SETTINGS)) as world:
        world.machine.default = Script(load_seconds=400)
        await world.apply("chat")
        await trio.sleep(100)
        with frozen(world.first.program):
            await trio.sleep(200)
        await trio.sleep(60)
        with frozen(world.first.program):
            await trio.sleep(200)
        await world.until(world.ready_addresses, 1, seconds=20)
        assert len(world.machine.spawned) == 1


async def test_a_host_that_was_frozen_yields_to_the_one_that_took_over(autojump_clock):
    """Another host serves soon; when the first one continues, one engine is left, and it is published."""
    async with open_world(settings=agent_settings(**SETTINGS)) as world:
        await world.serve()
        other = await world.add_host("other")
        await trio.sleep(30)
        assert world.machine.live("chat")
        with frozen(world.first.program):
            await world.until(lambda: ready(other), 1, seconds=90)
            await trio.sleep(60)
            assert await world.ready_addresses() == 1
        await trio.sleep(20)
        assert await ready(world.first) + await ready(other) == 1
        assert await world.ready_addresses() == 1
        assert len(other.machine.spawned) == 1


async def ready(host):
    """Return the number of engines of a host that answer."""
    await trio.lowlevel.checkpoint()
    return sum(child.ready for child in host.machine.live())
