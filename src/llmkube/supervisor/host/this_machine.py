"""Selection of the memory provider for this machine's platform."""

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
    """Open this machine's memory; leaving the context cancels the kernel's events."""
    if sys.platform == "linux":
        with open_linux_memory(thresholds) as memory:
            yield memory
    else:
        async with open_darwin_memory(thresholds) as memory:
            yield memory


def sample_here() -> Sample:
    """Take one sample of this machine's memory, without rates, and with the default thresholds.

    Raises:
        OSError: It cannot be read.
        ValueError: It has an unknown format.
        KeyError: An entry is missing.
    """
    if sys.platform == "linux":
        return LinuxMemory().read_sample(0.0)
    return DarwinMemory(_kernel(), working_set_bytes=_working_set()).read_sample(0.0)


def footprints_here(pids: Sequence[int]) -> dict[int, int]:
    """Return the memory of processes of this machine and their descendants; blocks."""
    if sys.platform == "linux":
        return PssSampler().footprints(pids, 0.0)
    return DarwinMemory(_kernel()).footprints(pids)


@attrs.frozen
class GpuLimit:
    """The memory limit of a Mac's GPU, None if unknown; its source, and whether it is a cautious guess."""

    limit_bytes: int | None
    source: str
    guessed: bool


def gpu_limit_of(kernel: LibSystem, total_bytes: int) -> GpuLimit:
    """Query a Mac's kernel and Metal, once; blocks as long as Metal takes."""
    limit_bytes, source = DarwinMemory(kernel, working_set_bytes=working_set_of(kernel)).device_limit(total_bytes)
    return GpuLimit(limit_bytes, source, limit_bytes is not None and source == GUESS)


@functools.cache
def _kernel() -> LibSystem:
    """Return the only instance of this process: each one creates a send right to the host port, and keeps it."""
    return LibSystem()


@functools.cache
def _working_set() -> int | None:
    return working_set_of(_kernel())
