"""An engine that macOS kills for its code signature, in the real agent on a simulated host: the status has the fix."""

import pytest

from llmkube.supervisor.host import exit_events
from llmkube.supervisor.host.exit_events import NOTE_EXIT, NOTE_EXIT_CSERROR, NOTE_EXIT_DETAIL, NOTE_EXITSTATUS
from llmkube.supervisor.service import engine_status
from sim.machine import Script
from sim.world import open_world

EVENT = NOTE_EXIT | NOTE_EXITSTATUS | NOTE_EXIT_DETAIL | NOTE_EXIT_CSERROR, 9


async def loaded_message(world):
    """Have the engine killed for its signature, and return the message of `Loaded`."""
    ended = exit_events.decode_exit(*EVENT)
    world.machine.default = Script(1e9, 2.0, ended.code, unsigned=ended.for_signature)
    await world.apply()

    async def condition():
        return await world.condition("Loaded", "chat")

    return (await world.until(condition, lambda one: one is not None and "the engine exited" in one[2], seconds=60))[2]


async def test_the_condition_names_the_fix(autojump_clock):
    """`Loaded` names the signature and the command that fixes it."""
    async with open_world() as world:
        said = await loaded_message(world)
        assert "killed by SIGKILL: macOS killed it because the code signature" in said
        assert "codesign --force --sign - FILE" in said


@pytest.mark.soak
async def test_mutant_the_kernels_reason_is_lost(autojump_clock, monkeypatch):
    """Without the reason the condition names only SIGKILL by another program."""
    classify = engine_status.classify
    monkeypatch.setattr(
        engine_status, "classify", lambda *args, **known: classify(*args, **known | {"for_signature": False})
    )
    async with open_world() as world:
        assert "codesign" not in await loaded_message(world)
