"""A GPU that fails under an engine whose health check still passes, in the real agent on a simulated host."""

import attrs
import pytest
import trio

from llmkube.supervisor.service import metal
from sim.machine import Script
from sim.world import agent_settings, open_world

FAILED = "ggml_metal_synchronize: error: command buffer 0 failed with status 5"


pytestmark = pytest.mark.usefixtures("on_metal")


async def on_a_mac(timeline):
    """Run a timeline on a host with Metal."""
    async with open_world(settings=agent_settings(metal=True)) as world:
        await timeline(world)


async def failing(world):
    """An engine whose log reports a failed GPU is replaced within a minute, and the reason is reported."""
    await world.apply()
    await world.until(world.ready_addresses, 1)
    (child,) = world.machine.live("chat")
    world.machine.default = Script()
    child.script = attrs.evolve(child.script, words=("loading", FAILED))
    with trio.fail_after(60):
        await child.ended.wait()
    await world.until(world.ready_addresses, 1, seconds=60)
    assert len(world.machine.spawned) == 2


async def never_ready(world):
    """An engine that passes its health check and answers 500 to a completion is not published, and is reported."""
    world.machine.default = Script(computes=False)
    await world.apply()

    async def loaded_condition():
        return await world.condition("Loaded", "chat")

    await world.until(loaded_condition, lambda one: one and "computing a token failed" in one[2], seconds=120)
    assert await world.ready_addresses() == 0


@pytest.mark.parametrize("timeline", [failing, never_ready])
async def test_a_gpu_that_fails_is_noticed(autojump_clock, timeline):
    """On Metal one token precedes `Loaded`, and a failed engine does not stay Ready although `/health` returns 200."""
    await on_a_mac(timeline)


@pytest.mark.soak
async def test_mutant_loaded_without_a_token(autojump_clock, monkeypatch):
    """Without the token such an engine is Ready."""
    monkeypatch.setattr(metal, "failure_of", lambda lines, words, refused="", real=metal.failure_of: real(lines, words))
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        await on_a_mac(never_ready)


@pytest.mark.soak
async def test_mutant_an_engine_that_is_not_known_to_be_on_metal(autojump_clock, monkeypatch):
    """Without the check of its log the engine keeps serving, and answers 500 forever."""
    monkeypatch.setattr(metal, "uses_metal", lambda launch, settings: False)
    with pytest.RaisesGroup(trio.TooSlowError, flatten_subgroups=True):
        await on_a_mac(failing)
