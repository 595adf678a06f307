"""A Mac that keeps the wired memory of a killed engine: it is reported, and not reserved again."""

import pytest
import trio

from llmkube.supervisor.memory.book import UnreturnedMemory
from pressure.hosts import events, pressed_world, serve, why
from sim.machine import Script
from sim.memory import GIB


async def killed(world):
    """Have an engine of 30 GiB on a Mac of 64 GiB ignore TERM, so that it is killed."""
    world.machine.memory.reports_wired = world.machine.memory.keeps = True
    await trio.sleep(10)
    (child,) = world.machine.live("draft")
    child.script = Script(stop_seconds=500)
    await world.delete("draft")
    await child.ended.wait()
    await trio.sleep(15)


async def check_reports(world):
    """Kill the engine, and check the texts that users read."""
    await killed(world)
    seen = world.agent.memory()
    assert seen.unreturned_bytes == pytest.approx(30 * GIB, rel=0.1)
    assert seen.free_bytes < 30 * GIB
    message = (await events(world, "MemoryNotReturned"))["chat"]
    assert "of wired memory of engines that have exited; restart this Mac" in message
    await serve(world, "large", 30)
    await trio.sleep(20)
    assert not world.machine.live("large")
    assert "restart this Mac" in (await why(world, "large"))[1]
    world.machine.memory.restart()
    await world.until(world.ready_addresses, 1, "large", seconds=60)
    assert world.agent.memory().unreturned_bytes == 0


USUAL = {"chat": (8, "normal"), "draft": (30, "normal")}


async def test_memory_that_a_mac_keeps_is_reported_and_not_reserved_again(autojump_clock, on_metal):
    """The metric, the Event and the refusal of the next service name it; a restart of the Mac clears it."""
    async with pressed_world(USUAL, other=4.0, metal=True) as world:
        await check_reports(world)


async def test_an_engine_that_exits_by_itself_is_not_suspected(autojump_clock, on_metal):
    """Returned memory is free, on the same Mac."""
    async with pressed_world(USUAL, other=4.0, metal=True) as world:
        world.machine.memory.reports_wired = True
        await trio.sleep(10)
        await world.delete("draft")
        await trio.sleep(30)
        assert world.agent.memory().unreturned_bytes == 0
        assert await events(world, "MemoryNotReturned") == {}


@pytest.mark.soak
async def test_mutant_kept_memory_is_not_suspected(autojump_clock, on_metal, monkeypatch):
    """Without the sum of wired memory nothing is reported."""
    monkeypatch.setattr(UnreturnedMemory, "record_unreleased", lambda self, size_bytes: None)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with pressed_world(USUAL, other=4.0, metal=True) as world:
            await check_reports(world)
