"""Faults that only a Mac has (docs/reference/promises.md and `mac/`): drawn where the hosts of a timeline are Macs."""

import attrs
import trio

from llmkube.supervisor.engine.child import KILL_SECONDS
from sim.macs import METAL_GIB
from sim.memory import GIB
from sim.stage import NotApplicable, Stage, span
from sim.stage import fault as enter

MAC_FAULTS = {}

FAILED = "ggml_metal_synchronize: error: command buffer 0 failed with status 5"
MEMORY = "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"


def fault(codes, phrase):
    """Return a decorator that adds a function to the table of Mac faults."""
    return enter(codes, phrase, table=MAC_FAULTS)


@fault("M2", "the kernel hides an engine that ends while it frees the GPU's memory")
async def hidden_exit(stage: Stage, rng):
    _, child = stage.engine(rng, ready=True)
    child.mac_exit.seconds = span(rng, 0.5, KILL_SECONDS - 2)
    await trio.sleep(span(rng, 0.1, 30))
    child.end(-9)


@fault("M2", "every engine of a host that ends is hidden for seconds")
async def slow_teardowns(stage, rng):
    host, _ = stage.engine(rng)
    for child in host.machine.live():
        child.mac_exit.seconds = span(rng, 0.5, KILL_SECONDS - 2)
    await trio.sleep(span(rng, 10, 400))
    for child in host.machine.live():
        if not child.mac_exit.begun.is_set():
            child.mac_exit.seconds = 0.0


@fault("M1", "the kernel refuses to report its memory")
async def counts_refused(stage, rng):
    memory = stage.host(rng).machine.memory
    memory.refuses = True
    try:
        await trio.sleep(span(rng, 0.5, 120))
    finally:
        memory.refuses = False


@fault("M1", "macOS is another release after a restart of the agent")
async def upgraded(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep", "stop"))):
        host.machine.memory.release = rng.choice((14, 15, 26, 27))
        await trio.sleep(span(rng, 1, 60))


@fault("M4", "Metal shows the agent no device, as in a daemon")
async def no_device(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep", "stop"))):
        host.machine.memory.darwin.working_set_bytes = None
        await trio.sleep(span(rng, 1, 20))
    await trio.sleep(span(rng, 30, 400))
    host.machine.memory.darwin.working_set_bytes = int(METAL_GIB * GIB)


@fault("M3", "the GPU fails under an engine, which still reports that it is healthy")
async def latched_error(stage, rng):
    _, child = stage.engine(rng, ready=True, computes=True)
    lines = (FAILED, MEMORY) if rng.random() < 0.5 else (FAILED,)
    child.odd, child.script = True, attrs.evolve(child.script, words=(*child.script.words, *lines))
    await trio.lowlevel.checkpoint()


@fault("M7", "the kernel keeps the wired memory of an engine that is killed")
async def wired_for_nobody(stage, rng):
    host, child = stage.engine(rng, ready=True)
    memory = host.machine.memory
    for each in host.machine.live():
        each.odd = True  # any of them may be evicted for lack of memory
    memory.keeps = True
    try:
        child.end(-9)
        await trio.sleep(span(rng, 20, 300))
    finally:
        memory.restart()


@fault("M5 N4", "the lid is closed: the Mac sleeps, and wakes for seconds in between")
async def lid(stage, rng):
    host = stage.host(rng)
    for _ in range(rng.randint(2, 8)):
        with stage.api_faults(host, kind="half-open"):
            host.network.hush()
            host.asleep_seconds += span(rng, 60, 3600)
            await trio.sleep(span(rng, 0.5, 5))
        await trio.sleep(span(rng, 1, 20))  # a dark wake


@fault("L1", "Local Network Privacy keeps the agent from the API server, and the internet is there")
async def local_network_privacy(stage, rng):
    host = stage.host(rng)
    with stage.api_faults(host, no_route=True):
        host.network.sever()
        await trio.sleep(span(rng, 5, 400))


@fault("L2 M4", "a daemon may open 256 files, and has no session for the GPU")
async def daemon_limits(stage, rng):
    host = stage.host_with_agent(rng)
    if host.machine.no_descriptors:
        raise NotApplicable
    async with stage.away(host, "kill"):
        host.machine.memory.darwin.working_set_bytes = None
    with stage.monitor.disturbed(host):
        host.machine.no_descriptors, host.machine.has_proc = True, False  # macOS has no /proc
        try:
            await trio.sleep(span(rng, 0.5, 60))
        finally:
            host.machine.no_descriptors, host.machine.has_proc = False, True
