"""How often memory is decided on while nothing happens."""

from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import pytest
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.eviction_manager import CALM_SECONDS, MEASURE_SECONDS, EvictionManager
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.reservation import Need

GIB = 1 << 30
CALM = Sample(32 * GIB, 16 * GIB, Level.NORMAL)


class Memory:
    """A host whose memory is a field."""

    def __init__(self):
        self.now = CALM
        self.looks = 0

    async def sample(self):
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return self.now

    async def wait_change(self):
        await trio.sleep_forever()

    async def footprint(self, pids):
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(pids, GIB)


@asynccontextmanager
async def watched(*, engine=False):
    """A host's memory, and when something was decided about it; nothing has happened for a minute."""
    memory, decided_at, ledger = Memory(), [], Ledger()
    pressure = EvictionManager(memory, ledger, lambda *_: decided_at.append(trio.current_time()))
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(pressure.run)
        if engine:
            admitted = ledger.admitted(Key("ns", "chat"), Need(GIB), scope=trio.CancelScope(), say=print)
            allocation = await stack.enter_async_context(admitted)
            ledger.started(allocation, 7)
            ledger.loaded(allocation)
        await trio.sleep(60)
        memory.looks = 0
        decided_at.clear()
        yield memory, decided_at
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("engine", [False, True])
async def test_at_rest_memory_is_looked_at_but_seldom_decided_on(engine, autojump_clock):
    """Without changes memory is read every five seconds; decisions follow every thirty and after measurements."""
    async with watched(engine=engine) as (memory, decided_at):
        await trio.sleep(300)
        measured = 300 / MEASURE_SECONDS if engine else 0
        assert memory.looks == pytest.approx(300 / CALM_SECONDS + measured, abs=1)
        assert len(decided_at) == pytest.approx(300 / MEASURE_SECONDS + measured, abs=1)


@pytest.mark.parametrize(
    "changed",
    [
        attrs.evolve(CALM, available_bytes=15 * GIB),
        attrs.evolve(CALM, available_bytes=2 * GIB, level=Level.WARNING),
        attrs.evolve(CALM, total_bytes=16 * GIB),
    ],
)
async def test_what_changes_is_decided_on_at_the_next_look(changed, autojump_clock):
    """Another level, another size, and a thirty-second of the memory gone are decided on within five seconds."""
    async with watched() as (memory, decided_at):
        memory.now = changed
        await trio.sleep(CALM_SECONDS + 0.1)
        assert decided_at
