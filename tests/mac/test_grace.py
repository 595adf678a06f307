"""The time that an engine on Metal gets between TERM and KILL, in the real agent on a simulated host."""

import attrs
import pytest
import trio

from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.service import metal
from pressure.hosts import pressed_world
from sim.machine import Script


async def lived_on(*, critical_after=None, on_metal=True):
    """Delete a service whose engine ignores TERM, and return the lifetime of its process after the deletion."""
    async with pressed_world({"chat": (20, "normal"), "embed": (4, "normal")}, metal=on_metal) as world:
        (child,) = world.machine.live("chat")
        child.script = Script(stop_seconds=500)
        await world.delete("chat")
        begun = trio.current_time()
        if critical_after is not None:
            await trio.sleep(critical_after)
            world.machine.memory.speak(Level.CRITICAL)
        with trio.fail_after(60):
            await child.ended.wait()
        return trio.current_time() - begun


@pytest.mark.parametrize(
    ("critical_after", "least", "most"),
    [
        (None, 30, 31),
        (5, 10, 11),  # the elapsed time is included
        (20, 20, 22),  # the short grace has already expired
    ],
)
async def test_the_grace_on_metal(autojump_clock, on_metal, critical_after, least, most):
    """An engine on Metal gets 30 s, as KILL may leak its wired memory; 10 s when memory is critically short."""
    assert least <= await lived_on(critical_after=critical_after) <= most


async def test_the_grace_elsewhere(autojump_clock, on_metal):
    """An engine that is not on Metal always gets 10 s."""
    assert 10 <= await lived_on(on_metal=False) <= 11


@pytest.mark.soak
async def test_mutant_one_grace_for_all(autojump_clock, on_metal, monkeypatch):
    """Without the longer grace an engine on Metal is killed after 10 s."""
    grace_of = metal.grace_of
    monkeypatch.setattr(metal, "grace_of", lambda *args: attrs.evolve(grace_of(*args), seconds=10.0))
    assert await lived_on() < 30
