"""This machine's memory on macOS: the kernel's pressure level, its page counts, and its limit for the GPU.

It was written from the kernel's source and tested on hand-made bytes; it has never run on a Mac.
"""

import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from llmkube.base.lazy_log import LazyLog
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

log = LazyLog()

LEVEL_NAME: Final = "kern.memorystatus_vm_pressure_level"
DEVICE_LIMIT_NAME: Final = "iogpu.wired_limit_mb"

CAUTIOUS_SHARE: Final = 0.66
"""Assumed share of memory that the GPU may use if Metal reports no limit. Metal reported 84 % on a Mac with 128 GiB
(mach.py), and by default models may use at least 67 % of memory."""

METAL: Final = "Metal's recommendedMaxWorkingSetSize"
GUESS: Final = f"{CAUTIOUS_SHARE:.0%} of memory, as Metal shows this process no device; an engine's log may report more"

WORKING_SET_SECONDS: Final = 5.0
"""Time that Metal may take to answer."""


@attrs.define(eq=False)
class DarwinMemory:
    """Memory of a Mac.

    The kernel's level depends on the share of compressed memory, not on free memory. It ignores wired memory, which is
    where models are. So the level is the worse of two: the kernel's, and one for the memory that can still be wired.

    Attributes:
        thresholds: Thresholds for the memory that can still be wired.
        wait_change: Returns when the kernel reports a change of level. It notifies the largest programs first, and
            others only if that did not help, so sample at intervals as well.
        working_set_bytes: Metal's recommended limit for the GPU, used unless a sysctl sets one; None if unknown.
    """

    kernel: LibSystem
    thresholds: Thresholds = DEFAULTS
    wait_change: Callable[[], Awaitable[None]] = trio.sleep_forever
    working_set_bytes: int | None = None
    _swapped: Reading | None = attrs.field(default=None, init=False)
    _compressed: Reading | None = attrs.field(default=None, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def sample(self) -> Sample:
        """Take a sample, with a few system calls."""
        await trio.lowlevel.checkpoint()
        try:
            return self.read_sample(trio.current_time())
        except (OSError, ValueError) as exc:
            return Sample(0, 0, Level.UNKNOWN, why=f"this machine's memory cannot be read: {exc}")

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return the physical footprint of each process tree; uses a thread, since it takes milliseconds."""
        return await trio.to_thread.run_sync(self.footprints, pids, limiter=self._limiter)

    def footprints(self, pids: Sequence[int]) -> dict[int, int]:
        """Return the physical footprint of each process tree; blocks."""
        return footprints(pids, self._footprint_of)

    def _footprint_of(self, pid: int) -> int | None:
        try:
            return decode_footprint(self.kernel.usage(pid))
        except (OSError, ValueError):
            return None

    def read_sample(self, now_seconds: float) -> Sample:
        """Take a sample; raises `OSError` or `ValueError` if the kernel's answer is not as expected."""
        pages = decode_statistics(self.kernel.statistics())
        page_bytes = self.kernel.page_bytes()
        total_bytes = decode_integer(self.kernel.sysctl("hw.memsize"))
        swapped, compressed = (
            Reading(count * page_bytes, now_seconds) for count in (pages.swapped_out, pages.compressed)
        )
        swap_rate, compress_rate = per_second(self._swapped, swapped), per_second(self._compressed, compressed)
        self._swapped, self._compressed = swapped, compressed
        # Memory that can be wired, not available memory: a Mac with full memory is healthy.
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
        """Return the GPU's memory limit in bytes, and its source; None if unknown."""
        try:
            limit_mib = decode_integer(self.kernel.sysctl(DEVICE_LIMIT_NAME))
        except (OSError, ValueError):  # an Intel Mac, or a system older than this name
            return self.working_set_bytes, METAL
        if limit_mib:  # 0: the system's own limit
            return limit_mib * (1 << 20), f"sysctl {DEVICE_LIMIT_NAME}"
        if self.working_set_bytes is not None:
            return self.working_set_bytes, METAL
        # The sysctl exists, so there is a GPU.
        return int(CAUTIOUS_SHARE * total_bytes), GUESS


def working_set_of(kernel: LibSystem) -> int | None:
    """Return the limit of the GPU while none is set, in bytes; None if unknown. Blocks."""
    try:
        return kernel.working_set() or None
    except (OSError, AttributeError):  # no Metal, or an unknown version
        return None


def _log_limit(memory: DarwinMemory) -> None:
    """Log the limit of the GPU and its source, so that the user knows whether it is a guess."""
    try:
        total_bytes = decode_integer(memory.kernel.sysctl("hw.memsize"))
    except (OSError, ValueError):
        return  # each sample reports this
    limit_bytes, source = memory.device_limit(total_bytes)
    if limit_bytes is not None:
        log.info("GPU memory limit read", bytes=limit_bytes, source=source, change=f"sudo sysctl {DEVICE_LIMIT_NAME}=N")


def available(pages: Pages, page_bytes: int, total_bytes: int) -> int:
    """Return the available bytes: all memory except pages of programs, wired pages and the compressor.

    That is the complement of Activity Monitor's "memory used": free pages, file pages and purgeable pages. Computed
    this way, speculative pages (part of the free ones) and purgeable ones (part of the programs') are counted once.
    Inactive pages of programs are not available: they would have to be compressed first.
    """
    used = pages.internal - pages.purgeable + pages.wired + pages.compressor
    return total_bytes - used * page_bytes


def worse(kernels: Level, ours: Level, why: str) -> tuple[Level, str]:
    """Return the worse of two levels and its reason; UNKNOWN if the kernel's is unknown."""
    if kernels is Level.UNKNOWN:
        return kernels, "the kernel reports an unknown pressure level"
    if kernels >= ours and kernels is not Level.NORMAL:
        return kernels, f"the kernel reports memory pressure: {kernels.name.lower()}"
    return ours, why


@asynccontextmanager
async def open_darwin_memory(thresholds: Thresholds) -> AsyncIterator[DarwinMemory]:
    """Open this Mac's memory, with an event of its kernel when the pressure level changes."""
    kernel = LibSystem()
    limit = None
    with trio.move_on_after(WORKING_SET_SECONDS):  # a driver that hangs is abandoned: the call only reads
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
        except OSError:  # without events, the level is read with each sample only
            yield memory
            return

        async def wait_event() -> None:
            await events.get_batch()

        try:
            memory.wait_change = wait_event
            yield memory
        finally:
            change(select.KQ_EV_DELETE)
