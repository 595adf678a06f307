"""A GPU that this process cannot query: the engine's log corrects the budget, in the real agent."""

import attrs
import pytest
import trio

from llmkube.supervisor.memory.book import Book
from pressure.hosts import pressed_world
from sim.memory import GIB, SimMemory

TOLD = "ggml_metal_device_init: recommendedMaxWorkingSetSize  = 53687.09 MB"
GUESSED = int(0.66 * 64 * GIB)


async def limit(world, line):
    """Have an engine write a line as it loads, and return the device limit in the agent's ledger."""
    (child,) = world.machine.live("chat")
    world.machine.default = attrs.evolve(world.machine.default, words=("loading", line))
    assert world.agent.memory().budget.device_limit_bytes == GUESSED
    child.end(-9)
    await world.until(world.ready_addresses, 0, "chat", seconds=30)
    await world.until(world.ready_addresses, 1, "chat", seconds=60)

    async def seen():
        await trio.lowlevel.checkpoint()
        return world.agent.memory().budget.device_limit_bytes

    return await world.until(seen, lambda limit: limit != GUESSED, seconds=30)


@pytest.fixture
def guessing(monkeypatch, on_metal):
    """Simulate a Mac of 64 GiB whose Metal shows this process no device."""
    sample = SimMemory.sample

    async def guessed(memory):
        return attrs.evolve(await sample(memory), device_limit_bytes=GUESSED, device_limit_guessed=True)

    monkeypatch.setattr(SimMemory, "sample", guessed)


async def test_an_engines_log_corrects_a_guess(autojump_clock, guessing):
    """The limit is 50 GiB and not two thirds of the memory: ggml writes it in millions of bytes."""
    async with pressed_world({"chat": (8, "normal")}, metal=True) as world:
        assert await limit(world, TOLD) == 53_687_090_000


@pytest.mark.soak
async def test_mutant_the_log_is_not_read(autojump_clock, guessing, monkeypatch):
    """Without the line the guess is kept."""
    monkeypatch.setattr(Book, "set_device_limit", lambda self, limit_bytes: None)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with pressed_world({"chat": (8, "normal")}, metal=True) as world:
            await limit(world, TOLD)
