from types import SimpleNamespace

import pytest
import trio

from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.host_runtime import LogReader
from llmkube.runtimes.process.host_runtimes import log_reader_of
from llmkube.supervisor.service import metal
from llmkube.supervisor.service.metal import MetalMonitor, failure_of, is_without_gpu
from llmkube.supervisor.values.liveness import EngineStats, Limits

# ggml-metal-context.m and llama-server, as in llama.cpp issues 20306 and 22214
FAILED = "ggml_metal_synchronize: error: command buffer 0 failed with status 5"
MEMORY = "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
LLAMA = log_reader_of("llamacpp")
LATCHED = "ggml_metal_graph_compute: error: backend is in error state from a previous command buffer failure"


class Child:
    """An engine whose log the test writes."""

    def __init__(self):
        self.lines = ["main: server is listening"]

    async def last_lines(self, count):
        await trio.lowlevel.checkpoint()
        return tuple(self.lines[-count:])

    async def read(self):
        await trio.lowlevel.checkpoint()
        return EngineStats("S", 1.0, log_bytes=sum(map(len, self.lines)))


class Engine:
    def __init__(self, refused):
        self.refused = refused

    async def token_error(self):
        await trio.lowlevel.checkpoint()
        return self.refused


def look(child, *, mac=True, layers=999, runtime="llamacpp"):
    launch = SimpleNamespace(plan=SimpleNamespace(runtime=runtime, demand=SimpleNamespace(device_layers=layers)))
    return MetalMonitor(child, launch, SimpleNamespace(metal=mac, limits=Limits()))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((FAILED,), "a GPU command failed: ggml_metal_synchronize"),
        ((LATCHED,), "a GPU command failed"),
        ((FAILED, MEMORY), "there was not enough memory for the GPU: error: Insufficient Memory"),
    ],
)
def test_lines_of_a_gpu_that_has_failed(lines, words):
    """Ggml's lines are a failure, and those about missing memory name the settings that need less."""
    failure = failure_of(lines, LLAMA)
    assert failure.reason is Reason.METAL_ERROR
    assert words in failure.message
    assert ("spec.contextSize" in failure.message) is (MEMORY in lines)


@pytest.mark.parametrize("line", ["command buffer 0 done", "error: request failed with status 500", MEMORY])
def test_other_lines_are_no_failure_of_the_gpu(line):
    """A failed request is none, nor is a line about memory without a failed command."""
    assert failure_of((line,), LLAMA) is None


async def test_an_engine_that_cannot_compute_is_not_ready():
    """An engine that reports ready, and answers 500 to a request for one token, becomes ready on no platform."""
    refused = Engine("it answers 500 to a request for one token")
    failure = await look(Child()).first_failure(refused)
    assert "computing a token failed: it answers 500" in failure.message
    assert await look(Child()).first_failure(Engine("")) is None

    for other in (look(Child(), mac=False), look(Child(), layers=0)):
        assert (await other.first_failure(refused)).reason is Reason.COMPUTE_FAILED
        assert await other.first_failure(Engine("")) is None


async def test_a_gpu_that_fails_while_it_serves(autojump_clock):
    """The line is found at the next check of a log that has grown."""
    child = Child()
    async with trio.open_nursery() as nursery:

        async def fail_later():
            await trio.sleep(3600)
            child.lines.append(LATCHED)

        nursery.start_soon(fail_later)
        failure = await look(child).wait_failure(child.read)
    assert failure.reason is Reason.METAL_ERROR


@pytest.mark.soak
async def test_mutant_a_log_that_is_checked_once(autojump_clock, monkeypatch):
    """Without checks of new lines an engine whose GPU has failed serves for ever."""
    monkeypatch.setattr(metal, "log_reader_of", lambda runtime: LogReader())
    child = Child()
    child.lines.append(LATCHED)
    with trio.move_on_after(86400) as day:
        await look(child).wait_failure(child.read)
    assert day.cancelled_caught


def test_an_engine_without_a_buffer_on_metal_is_reported():
    """An engine that should use Metal and computes on the CPU is reported with its load."""
    child, limits = Child(), []
    child.lines = ["load_tensors:   CPU_Mapped model buffer size =  4685.30 MiB"]
    assert "it computes on the CPU" in look(child).load_warning(tuple(child.lines), limits.append)
    assert look(child, layers=0).load_warning(tuple(child.lines), limits.append) == ""
    child.lines.append("load_tensors:  MTL0_Mapped model buffer size =  4685.30 MiB")
    assert look(child).load_warning(tuple(child.lines), limits.append) == ""
    assert limits == []
    child.lines.insert(0, "0.00.030.199 I ggml_metal_device_init: recommendedMaxWorkingSetSize  = 115448.73 MB")
    assert look(child, layers=0).load_warning(tuple(child.lines), limits.append) == ""
    assert limits == []
    look(child).load_warning(tuple(child.lines), limits.append)
    assert limits == [115_448_730_000]
    assert not is_without_gpu((), LLAMA)  # an engine that logs no buffers is not reported


@pytest.mark.ci
async def test_lines_of_llamacpp_are_ignored_in_another_log(autojump_clock):
    """A line of another runtime does not end its engine, and no buffer is missing in its log."""
    child, limits = Child(), []
    child.lines = ["load_tensors:   CPU_Mapped model buffer size =  4685.30 MiB", LATCHED]
    assert look(child, runtime="of-a-newer-agent").load_warning(tuple(child.lines), limits.append) == ""
    with trio.move_on_after(3600) as hour:
        await look(child, runtime="of-a-newer-agent").wait_failure(child.read)
    assert hour.cancelled_caught
