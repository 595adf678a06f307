"""An engine that macOS kills for its code signature, in the real agent on a simulated host: the status says the fix."""

import pytest

from llmkube.supervisor.host import exit_events
from llmkube.supervisor.host.exit_events import NOTE_EXIT, NOTE_EXIT_CSERROR, NOTE_EXIT_DETAIL, NOTE_EXITSTATUS
from llmkube.supervisor.service import engine_status
from sim.machine import Script
from sim.world import open_world

EVENT = NOTE_EXIT | NOTE_EXITSTATUS | NOTE_EXIT_DETAIL | NOTE_EXIT_CSERROR, 9


async def told(world):
    """Have the engine killed so, and return what `Loaded` says of it."""
    ended = exit_events.decode_exit(*EVENT)
    world.machine.default = Script(1e9, 2.0, ended.code, unsigned=ended.for_signature)
    await world.apply()

    async def word():
        return await world.condition("Loaded", "chat")

    return (await world.until(word, lambda said: said is not None and "the engine exited" in said[2], seconds=60))[2]


async def test_the_condition_says_how_to_sign_it(autojump_clock):
    """`Loaded` names the signature and the command that mends it."""
    async with open_world() as world:
        said = await told(world)
        assert "killed by SIGKILL: macOS killed it because the code signature" in said
        assert "codesign --force --sign - FILE" in said


@pytest.mark.soak
async def test_mutant_the_kernels_reason_is_lost(autojump_clock, monkeypatch):
    """Without it the condition says that some program has sent SIGKILL."""
    classify = engine_status.classify
    monkeypatch.setattr(
        engine_status, "classify", lambda *args, **known: classify(*args, **known | {"for_signature": False})
    )
    async with open_world() as world:
        assert "codesign" not in await told(world)
