"""Samples of a host's memory, the same for all platforms. Pure.

Providers take samples; only `memory.eviction_manager` reads them regularly, and decides how long the last good one is
used.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import attrs


class Level(enum.IntEnum):
    """The level of memory pressure.

    `UNKNOWN` is below `NORMAL` only as a number: at this level nothing is admitted and nothing is evicted.
    """

    UNKNOWN = 0
    NORMAL = 1
    WARNING = 2
    CRITICAL = 3


@attrs.frozen
class Sample:
    """A host's memory at one moment.

    With `level` UNKNOWN the figures are meaningless. `total_bytes` is the machine's memory, or the limit of the agent's
    control group if that is smaller. `available_bytes` is the part that programs could still allocate without taking it
    from each other.
    """

    total_bytes: int
    available_bytes: int
    level: Level
    swap_out_bytes_per_second: float = 0.0
    compress_bytes_per_second: float = 0.0
    """Rate at which the kernel compresses memory, in bytes before compression; macOS only, 0.0 elsewhere."""
    device_limit_bytes: int | None = None
    """The limit for GPU memory; None if it is unknown or there is none."""
    device_limit_guessed: bool = False
    """Whether that is a cautious share of memory, because the GPU could not be queried."""
    wired_bytes: int | None = None
    """Memory of the kernel and the GPU that cannot be paged out; None where it is not reported (only macOS does)."""
    why: str = ""
    """The reason for a level other than NORMAL, for people."""
    devices: Mapping[str, int] = {}
    """Free bytes of the devices with memory of their own, by name, where the system reports them."""


UNREADABLE = Sample(0, 0, Level.UNKNOWN)
"""A sample without figures."""


class HostMemory(Protocol):
    """Samples of a host's memory, and events from its kernel when memory gets short."""

    async def sample(self) -> Sample:
        """Take a sample within microseconds; never raises: an unreadable or impossible one has level UNKNOWN."""

    @property
    def wait_change(self) -> Callable[[], Awaitable[None]]:
        """A function that waits until the kernel reports a change of pressure, forever where it sends no events.

        Only one task may wait. Events while no task waits may be lost, so sample at intervals as well.
        """

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return the memory of each of these processes and its descendants.

        Shared memory is divided among the processes that share it. Processes that have exited are left out.
        """
