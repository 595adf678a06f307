"""What one look at a host's memory says, whatever the platform. Pure.

Providers make samples; `memory.eviction_manager` decides how long an unreadable host is still believed; no other module
looks.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import attrs


class Level(enum.IntEnum):
    """How short of memory a host is; the higher, the shorter.

    `UNKNOWN` is below `NORMAL` only as a number: under it nothing is admitted and nothing is evicted.
    """

    UNKNOWN = 0
    NORMAL = 1
    WARNING = 2
    CRITICAL = 3


@attrs.frozen
class Sample:
    """A host's memory at one moment.

    With `level` UNKNOWN the figures mean nothing. `total_bytes` is what this host's programs may use in all: the
    machine's memory, or the limit of the agent's control group where that is smaller. `available_bytes` is what they
    could still take without taking it from each other.
    """

    total_bytes: int
    available_bytes: int
    level: Level
    swap_out_bytes_per_second: float = 0.0
    compress_bytes_per_second: float = 0.0
    """What the kernel squeezes into its compressor, before compression; macOS only, 0.0 elsewhere."""
    device_limit_bytes: int | None = None
    """The most that the GPU may hold, where that is set; None is the platform's default, or no such thing."""
    device_limit_guessed: bool = False
    """Whether that is a cautious share of the memory, as the GPU could not be asked."""
    wired_bytes: int | None = None
    """What the kernel and the GPU hold and cannot be paged out; None where that is not told (only macOS does)."""
    why: str = ""
    """What makes the level other than NORMAL, for people."""


UNREADABLE = Sample(0, 0, Level.UNKNOWN)
"""A look that saw nothing."""


class HostMemory(Protocol):
    """Look at a host's memory, and get an event from its kernel when that becomes short."""

    async def sample(self) -> Sample:
        """Look once; never raises: what cannot be read, or cannot be true, has level UNKNOWN. Takes microseconds."""
        ...

    @property
    def wait_change(self) -> Callable[[], Awaitable[None]]:
        """Returns when the kernel says that pressure has changed, and sleep for ever where it never says so.

        One task at a time. What the kernel says while no task waits may be lost: look at intervals as well.
        """
        ...

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return the bytes that each of these processes really uses, with all that it has started.

        What several processes share is counted once, in parts. Processes that have ended are not in the answer.
        """
        ...
