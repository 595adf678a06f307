"""Which provider is this machine's."""

import functools
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs

from llmkube.supervisor.host.darwin import GUESS, DarwinMemory, open_darwin_memory, working_set_of
from llmkube.supervisor.host.linux import LinuxMemory, PssSampler, open_linux_memory
from llmkube.supervisor.host.mach import LibSystem
from llmkube.supervisor.host.pressure_level import DEFAULTS, Thresholds
from llmkube.supervisor.host.sample import HostMemory, Sample


@asynccontextmanager
async def open_host_memory(thresholds: Thresholds = DEFAULTS) -> AsyncIterator[HostMemory]:
    """Look at this machine's memory; the kernel's wake-ups are given back when the context is left."""
    if sys.platform == "linux":
        with open_linux_memory(thresholds) as memory:
            yield memory
    else:
        async with open_darwin_memory(thresholds) as memory:
            yield memory


def sample_here() -> Sample:
    """Look once at this machine's memory, without a provider: no rates, and no thresholds but the defaults.

    Raises:
        OSError: It cannot be read.
        ValueError: What was read is nothing that can be understood.
        KeyError: Something is missing in it.
    """
    if sys.platform == "linux":
        return LinuxMemory().read_sample(0.0)
    return DarwinMemory(_kernel(), working_set_bytes=_working_set()).read_sample(0.0)


def footprints_here(pids: Sequence[int]) -> dict[int, int]:
    """Return what processes of this machine use with all below them, without a provider; blocks."""
    if sys.platform == "linux":
        return PssSampler().footprints(pids, 0.0)
    return DarwinMemory(_kernel()).footprints(pids)


@attrs.frozen
class GpuLimit:
    """What a Mac's GPU may hold: None where it has no limit, who says so, and whether that is a cautious guess."""

    limit_bytes: int | None
    source: str
    guessed: bool


def gpu_limit_of(kernel: LibSystem, total_bytes: int) -> GpuLimit:
    """Ask a Mac's kernel and Metal, once; blocks as long as Metal takes."""
    limit_bytes, source = DarwinMemory(kernel, working_set_bytes=working_set_of(kernel)).device_limit(total_bytes)
    return GpuLimit(limit_bytes, source, limit_bytes is not None and source == GUESS)


@functools.cache
def _kernel() -> LibSystem:
    """The kernel's door, once per process: each one opened makes a send right to the host port, and keeps it."""
    return LibSystem()


@functools.cache
def _working_set() -> int | None:
    return working_set_of(_kernel())
