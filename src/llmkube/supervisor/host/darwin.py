"""This machine's memory under macOS: the kernel's pressure level, its page counts, and its limit for the GPU.

Written after the kernel's source, and tested on bytes laid out by hand: it has never run on a Mac.
"""

import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import structlog
import trio

from llmkube.supervisor.host.mach import (
    EVFILT_MEMORYSTATUS,
    NOTE_MEMORYSTATUS_PRESSURE_CRITICAL,
    NOTE_MEMORYSTATUS_PRESSURE_NORMAL,
    NOTE_MEMORYSTATUS_PRESSURE_WARN,
    LibSystem,
    Pages,
    decode_footprint,
    decode_integer,
    decode_level,
    decode_statistics,
)
from llmkube.supervisor.host.pressure_level import DEFAULTS, Reading, Signals, Thresholds, assess_pressure, per_second
from llmkube.supervisor.host.processes import footprints
from llmkube.supervisor.host.sample import Level, Sample

log = structlog.get_logger(__name__)

LEVEL_NAME: Final = "kern.memorystatus_vm_pressure_level"
DEVICE_LIMIT_NAME: Final = "iogpu.wired_limit_mb"

CAUTIOUS_SHARE: Final = 0.66
"""What of the memory a GPU takes where Metal does not say: it said 84 % on a Mac of 128 GiB (mach.py), and the least
share of memory that models get by default is 67 %."""

METAL: Final = "Metal's recommendedMaxWorkingSetSize"
GUESS: Final = (
    f"{CAUTIOUS_SHARE:.0%} of the memory, as Metal shows this process no device; an engine's log may say more"
)

WORKING_SET_SECONDS: Final = 5.0
"""How long Metal may take to answer."""


@attrs.define(eq=False)
class DarwinMemory:
    """A Mac, as its kernel tells of it.

    The kernel's level says how much of the programs' memory is compressed, not how much is left: wired memory, which is
    where models are, counts in neither of its sides. So the level is the worse of the kernel's and of what could still
    be wired.

    Attributes:
        kernel: Whom to ask.
        thresholds: When too little is left to be wired.
        wait_change: Returns when the kernel tells of a change of level; it tells the largest programs first and the
            others when that has not helped, so look at intervals as well.
        working_set_bytes: What the GPU takes while its limit is not set; None when not known.
    """

    kernel: LibSystem
    thresholds: Thresholds = DEFAULTS
    wait_change: Callable[[], Awaitable[None]] = trio.sleep_forever
    working_set_bytes: int | None = None
    _swapped: Reading | None = attrs.field(default=None, init=False)
    _compressed: Reading | None = attrs.field(default=None, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def sample(self) -> Sample:
        """Look once: four system calls."""
        await trio.lowlevel.checkpoint()
        try:
            return self.read_sample(trio.current_time())
        except (OSError, ValueError) as exc:
            return Sample(0, 0, Level.UNKNOWN, why=f"this host's memory cannot be read: {exc}")

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Ask for the physical footprint of each process; in a thread, since finding families takes milliseconds."""
        return await trio.to_thread.run_sync(self.footprints, pids, limiter=self._limiter)

    def footprints(self, pids: Sequence[int]) -> dict[int, int]:
        """Ask at once."""
        return footprints(pids, self._footprint_of)

    def _footprint_of(self, pid: int) -> int | None:
        try:
            return decode_footprint(self.kernel.usage(pid))
        except (OSError, ValueError):
            return None

    def read_sample(self, now_seconds: float) -> Sample:
        """Look at once; raises `OSError` or `ValueError` where the kernel does not answer as it should."""
        pages = decode_statistics(self.kernel.statistics())
        page_bytes = self.kernel.page_bytes()
        total_bytes = decode_integer(self.kernel.sysctl("hw.memsize"))
        swapped, compressed = (
            Reading(count * page_bytes, now_seconds) for count in (pages.swapped_out, pages.compressed)
        )
        swap_rate, compress_rate = per_second(self._swapped, swapped), per_second(self._compressed, compressed)
        self._swapped, self._compressed = swapped, compressed
        # What is left to be wired, and not what is available: macOS fills its memory, and is well with it.
        unwired = Signals(total_bytes, max(0, total_bytes - pages.wired * page_bytes), 0.0, 0.0, swap_rate)
        level, why = worse(decode_level(self.kernel.sysctl(LEVEL_NAME)), *assess_pressure(unwired, self.thresholds))
        limit_bytes, source = self.device_limit(total_bytes)
        return Sample(
            total_bytes,
            available(pages, page_bytes, total_bytes),
            level,
            swap_out_bytes_per_second=swap_rate,
            compress_bytes_per_second=compress_rate,
            device_limit_bytes=limit_bytes,
            device_limit_guessed=source == GUESS,
            wired_bytes=pages.wired * page_bytes,
            why=why,
        )

    def device_limit(self, total_bytes: int) -> tuple[int | None, str]:
        """Return what the GPU may hold, in bytes, and who says so; None where there is no limit to be known."""
        try:
            limit_mib = decode_integer(self.kernel.sysctl(DEVICE_LIMIT_NAME))
        except (OSError, ValueError):  # an Intel Mac, or a system before the name
            return self.working_set_bytes, METAL
        if limit_mib:  # 0: the system's own limit
            return limit_mib * (1 << 20), f"sysctl {DEVICE_LIMIT_NAME}"
        if self.working_set_bytes is not None:
            return self.working_set_bytes, METAL
        # There is a GPU, as it has a limit.
        return int(CAUTIOUS_SHARE * total_bytes), GUESS


def working_set_of(kernel: LibSystem) -> int | None:
    """Return what the GPU takes while its limit is not set, in bytes; None when not known. Blocks."""
    try:
        return kernel.working_set() or None
    except (OSError, AttributeError):  # no Metal, or another one than is known here
        return None


def _log_limit(memory: DarwinMemory) -> None:
    """Log what the GPU may hold, and who says so: of a limit that is a guess its owner has to know."""
    try:
        total_bytes = decode_integer(memory.kernel.sysctl("hw.memsize"))
    except (OSError, ValueError):
        return  # each sample says so
    limit_bytes, source = memory.device_limit(total_bytes)
    if limit_bytes is not None:
        log.info("GPU memory limit", bytes=limit_bytes, source=source, change=f"sudo sysctl {DEVICE_LIMIT_NAME}=N")


def available(pages: Pages, page_bytes: int, total_bytes: int) -> int:
    """Return what is left beside the programs' own pages, wired ones and the compressor: "memory used", turned round.

    Free pages, files and purgeable pages are what that leaves, so that speculative pages (part of the free ones) and
    purgeable ones (part of the programs') are not counted twice. Inactive pages of programs do not count as available:
    they would have to be compressed first.
    """
    used = pages.internal - pages.purgeable + pages.wired + pages.compressor
    return total_bytes - used * page_bytes


def worse(kernels: Level, ours: Level, why: str) -> tuple[Level, str]:
    """Return the worse of two levels and what makes it; UNKNOWN if the kernel's cannot be known."""
    if kernels is Level.UNKNOWN:
        return kernels, "the kernel reports an unknown pressure level"
    if kernels >= ours and kernels is not Level.NORMAL:
        return kernels, f"the kernel calls memory pressure {kernels.name.lower()}"
    return ours, why


@asynccontextmanager
async def open_darwin_memory(thresholds: Thresholds) -> AsyncIterator[DarwinMemory]:
    """Look at this Mac, and get an event from its kernel when the pressure level changes."""
    kernel = LibSystem()
    limit = None
    with trio.move_on_after(WORKING_SET_SECONDS):  # it only asks: a driver that hangs is left behind
        limit = await trio.to_thread.run_sync(working_set_of, kernel, abandon_on_cancel=True)
    memory = DarwinMemory(kernel, thresholds, working_set_bytes=limit)
    _log_limit(memory)
    if sys.platform != "darwin":
        yield memory
        return
    queue = trio.lowlevel.current_kqueue()
    levels = NOTE_MEMORYSTATUS_PRESSURE_NORMAL | NOTE_MEMORYSTATUS_PRESSURE_WARN | NOTE_MEMORYSTATUS_PRESSURE_CRITICAL

    def change(flags: int) -> None:
        queue.control([select.kevent(0, EVFILT_MEMORYSTATUS, flags, levels)], 0)

    with trio.lowlevel.monitor_kevent(0, EVFILT_MEMORYSTATUS) as events:
        try:
            change(select.KQ_EV_ADD | select.KQ_EV_CLEAR)
        except OSError:  # the level is then read at each sample only
            yield memory
            return

        async def wait_event() -> None:
            await events.get_batch()

        try:
            memory.wait_change = wait_event
            yield memory
        finally:
            change(select.KQ_EV_DELETE)
