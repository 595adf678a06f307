from types import SimpleNamespace

import pytest
import trio

from llmkube.supervisor.memory.learned import LearnedFigures
from llmkube.supervisor.service import measurement as room
from llmkube.supervisor.service.measurement import EngineMeasurement, context_hint
from llmkube.supervisor.values.liveness import EngineStats


class Allocation:
    """A reservation whose measured size the test sets; counts how often the engine has worked."""

    def __init__(self):
        self.held = SimpleNamespace(
            measured=True,
            peak_bytes=0,
            need=SimpleNamespace(estimated_bytes=100),
            key=SimpleNamespace(name="chat", namespace="ns"),
        )
        self.reservation = self.held
        self.works = 0

    def record_activity(self):
        self.works += 1


class Child:
    """A child whose log is read once."""

    def __init__(self):
        self.reads = 0
        self.works = 0

    def record_activity(self):
        self.works += 1

    async def last_lines(self, _count):
        await trio.lowlevel.checkpoint()
        self.reads += 1
        return ()


@pytest.fixture
def measured_engine(monkeypatch):
    """An engine whose figures the test sets, and its learned figures."""
    shown, allocation, child, learned = {"stats": EngineStats("S", 1.0)}, Allocation(), Child(), LearnedFigures()

    async def read():
        await trio.lowlevel.checkpoint()
        return shown["stats"]

    async def key_of(*_):
        await trio.lowlevel.checkpoint()
        return "key"

    monkeypatch.setattr(room, "key_of", key_of)
    ports = SimpleNamespace(learned=learned, engines=None)
    launch = SimpleNamespace(plan=SimpleNamespace(runtime="llamacpp"))
    measuring = EngineMeasurement(child, read, lambda: shown["stats"], launch, allocation, ports)
    return SimpleNamespace(shown=shown, allocation=allocation, child=child, learned=learned, measuring=measuring)


async def test_an_engine_that_computes_has_worked(autojump_clock, measured_engine):
    """Processor time beyond an idle engine's is work; the first sample is inconclusive."""
    await measured_engine.measuring.measure()
    assert measured_engine.allocation.works == 0
    await trio.sleep(10)
    measured_engine.shown["stats"] = EngineStats("S", 1.05)  # 0.5 %: its own housekeeping
    measured_engine.measuring.measure_nowait()
    assert measured_engine.allocation.works == 0
    await trio.sleep(10)
    measured_engine.shown["stats"] = EngineStats("S", 6.0)
    measured_engine.measuring.measure_nowait()
    assert (measured_engine.allocation.works, measured_engine.child.works) == (1, 1)
    assert measured_engine.measuring.worked_at == trio.current_time()


async def test_what_we_have_an_engine_do_is_no_work(autojump_clock, measured_engine):
    """An idle engine whose prompts are saved is unloaded no later."""
    await measured_engine.measuring.measure()
    await trio.sleep(10)
    with measured_engine.measuring.ignoring():
        measured_engine.shown["stats"] = EngineStats("S", 6.0)
        measured_engine.measuring.measure_nowait()
    await trio.sleep(5)
    measured_engine.shown["stats"] = EngineStats("S", 7.0)
    measured_engine.measuring.measure_nowait()
    assert measured_engine.allocation.works == 0


async def test_its_peak_is_learned(autojump_clock, measured_engine):
    """Growth by more than the share is learned by the task; its log is read for the first figure alone."""
    measured_engine.allocation.held.peak_bytes = 1000
    assert measured_engine.measuring.measure_nowait() is None  # growth takes a task to record
    await measured_engine.measuring.measure()
    assert measured_engine.learned.get("key").measured_bytes == 1000
    assert measured_engine.measuring.measure_nowait() is not None
    measured_engine.allocation.held.peak_bytes = 1010
    assert measured_engine.measuring.measure_nowait() is not None
    measured_engine.allocation.held.peak_bytes = 1100
    await measured_engine.measuring.measure()
    assert measured_engine.learned.get("key").measured_bytes == 1100
    assert measured_engine.child.reads == 1


async def test_an_engine_that_has_ended_teaches_nothing(autojump_clock, measured_engine):
    """Without stats nothing is learned."""
    measured_engine.shown["stats"] = None
    assert await measured_engine.measuring.measure() is None
    assert measured_engine.measuring.measure_nowait() is None
    assert measured_engine.allocation.works == 0


def test_without_a_shape_no_context_is_offered():
    """Without free memory, header or demand nothing is reported."""
    launch = SimpleNamespace(shape=None, plan=SimpleNamespace(demand=None))
    assert context_hint(launch, None) == ""
    assert context_hint(launch, 1 << 30) == ""
