"""This machine's memory under Linux: MemAvailable, stalls, swapping, and the limits of the agent's control group.

Stalls are how long programs wait for memory; the kernel describes them in Documentation/accounting/psi.rst. A trigger
is a text written to the file: from then on the descriptor has an exceptional condition (POLLPRI), once per window, when
programs have stalled for longer than it says.

What processes hold, each with its part of what it shares (PSS), is measured the less often the larger they are. The
kernel walks all page tables of a process for that: about 30 ms per GiB in pages of 4 KiB, which is two seconds for
an engine with 64 GiB on the CPU. The resident size (RSS) costs nothing, so between two measurements it tells what has
been added since.
"""

import contextlib
import os
import re
import select
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from llmkube.supervisor.host.cgroups import Mount, headroom_in, mapped_files, own_group, own_mounts
from llmkube.supervisor.host.pressure_level import DEFAULTS, Count, Signs, Thresholds, judge, per_second
from llmkube.supervisor.host.processes import footprints
from llmkube.supervisor.host.procfs import (
    PAGE_BYTES,
    PROC,
    ProcessStat,
    parse_counter,
    parse_meminfo,
    read_pss_bytes,
    read_stat,
)
from llmkube.supervisor.host.sample import Level, Sample

log = structlog.get_logger(__name__)

TRIGGERS: Final = (b"some 100000 1000000\0", b"some 200000 2000000\0")
"""Some program has waited for a tenth of the window, in microseconds; the kernel wants the NUL.

The kernel looks ten times per window, so the first wakes us 0.1 s after it got tight. Without CAP_SYS_RESOURCE it
accepts only windows of whole multiples of 2 s, at which it then looks.
"""

_LINE: Final = re.compile(r"(some|full) avg10=(\d+\.\d+) ")


PAUSE_SECONDS_PER_GIB: Final = 1.5
"""Between two measurements of a process: at 30 ms per GiB this keeps one processor busy for 2 % of the time."""

PAUSE_SECONDS_PER_PROCESS: Final = 0.25
"""Between two measurements of each of so many: at 0.2 ms for a small one this keeps one processor busy for 0.1 %."""


@attrs.frozen
class Pressure:
    """How much of the last ten seconds programs have waited for memory, in per cent: some of them, and all at once."""

    some_percent: float = 0.0
    full_percent: float = 0.0


def parse_pressure(text: str) -> Pressure:
    """Return what a memory.pressure file says.

    Raises:
        ValueError: It says something else.
    """
    found = dict(_LINE.findall(text))
    if found.keys() != {"some", "full"}:
        raise ValueError(f"no pressure in {text[:80]!r}")
    return Pressure(float(found["some"]), float(found["full"]))


def read_pressure(paths: Sequence[Path]) -> Pressure:
    """Return what the first of these files says that is there; no pressure where the kernel does not measure it.

    Raises:
        ValueError: It says something else.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            return parse_pressure(path.read_text("ascii"))
    return Pressure()


@contextmanager
def open_triggers(paths: Sequence[Path]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Give a function that returns when programs begin to wait for memory, by any of these files.

    It sleeps for ever when none of them takes a trigger: no such kernel, or no permission.
    """
    with contextlib.ExitStack() as stack:
        armed = [descriptor for path in paths if (descriptor := _arm(path)) is not None]
        for descriptor in armed:
            stack.callback(os.close, descriptor)
        yield stack.enter_context(open_alarm(armed)) if armed else trio.sleep_forever


@contextmanager
def open_alarm(descriptors: Sequence[int]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Give a function that returns when one of these has an exceptional condition; Linux only.

    Trio waits for reading only: an epoll within Trio's own turns one into the other. Trio's look at the inner one takes
    a trigger's event away, so the wake-up itself is the event.
    """
    if sys.platform != "linux":
        yield trio.sleep_forever
        return
    with select.epoll() as inner:
        for descriptor in descriptors:
            inner.register(descriptor, select.EPOLLPRI)

        async def wait() -> None:
            await trio.lowlevel.wait_readable(inner.fileno())

        yield wait


def _arm(path: Path) -> int | None:
    """Return a descriptor with a trigger, or None."""
    reason: str | None = None
    for trigger in TRIGGERS:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            reason = exc.strerror
            break
        try:
            os.write(descriptor, trigger)
        except OSError as exc:
            reason = exc.strerror
            os.close(descriptor)
        else:
            return descriptor
    log.debug("the kernel sends no events of memory pressure; it is polled", path=str(path), reason=reason)
    return None


@attrs.frozen
class _Measured:
    stat: ProcessStat
    own_bytes: int
    due_seconds: float


@attrs.define(eq=False)
class PssSampler:
    """Measure processes; one that was measured a short while ago is estimated from that measurement."""

    _known: Mapping[int, _Measured] = attrs.field(factory=dict)

    def footprints(self, pids: Sequence[int], now_seconds: float) -> dict[int, int]:
        """Return what each of these holds with all below it; blocks for 15 ms, and 30 ms per GiB that is measured."""
        before, self._known = self._known, (known := dict[int, _Measured]())

        def own_bytes(pid: int) -> int | None:
            stat = read_stat(pid)
            if stat is None:
                return None
            measured = before.get(pid)
            if measured is None or measured.stat.start_ticks != stat.start_ticks or now_seconds >= measured.due_seconds:
                pause_seconds = max(
                    PAUSE_SECONDS_PER_GIB * stat.resident_bytes / (1 << 30), PAUSE_SECONDS_PER_PROCESS * len(before)
                )
                measured = _Measured(stat, read_pss_bytes(pid) or stat.resident_bytes, now_seconds + pause_seconds)
            known[pid] = measured
            return max(0, measured.own_bytes + stat.resident_bytes - measured.stat.resident_bytes)

        return footprints(pids, own_bytes)


@attrs.define(eq=False)
class LinuxMemory:
    """The host as its /proc and its control groups show it.

    Attributes:
        thresholds: When memory is short.
        wait_change: Returns when programs begin to wait for memory, on the machine or in our control group.
        proc: Where /proc is.
    """

    thresholds: Thresholds = DEFAULTS
    wait_change: Callable[[], Awaitable[None]] = trio.sleep_forever
    proc: Path = PROC
    _mounts: tuple[Mount, ...] = attrs.field(init=False)
    _swapped: Count | None = attrs.field(default=None, init=False)
    _pss: PssSampler = attrs.field(factory=PssSampler, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def __attrs_post_init__(self) -> None:
        self._mounts = own_mounts(self.proc)

    async def sample(self) -> Sample:
        """Look once, in some hundred microseconds; the files are made by the kernel, so no thread is needed."""
        await trio.lowlevel.checkpoint()
        try:
            return self.look(trio.current_time())
        except (OSError, ValueError, KeyError) as exc:
            return Sample(0, 0, Level.UNKNOWN, why=f"this host's memory cannot be read: {exc}")

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Measure in a thread."""
        now = trio.current_time()
        return await trio.to_thread.run_sync(self._pss.footprints, pids, now, limiter=self._limiter)

    def look(self, now_seconds: float) -> Sample:
        """Look at once; raises `OSError`, `ValueError` or `KeyError` where /proc is not as it should be."""
        meminfo = parse_meminfo((self.proc / "meminfo").read_text("ascii"))
        total_bytes, available_bytes = meminfo["MemTotal"], host_available(meminfo)
        pressures = [self.proc / "pressure" / "memory"]
        group = own_group(self._mounts, self.proc)
        room = None if group is None else headroom_in(group, total_bytes)
        if group is not None and room is not None:
            total_bytes = room.limit_bytes
            available_bytes = min(available_bytes, room.available_bytes)  # others may have left less than the limit
            if group.pressure_path is not None:
                pressures.insert(0, group.pressure_path)
        pages = parse_counter((self.proc / "vmstat").read_text("ascii"), "pswpout") or 0  # none without swap
        swapped = Count(pages * PAGE_BYTES, now_seconds)
        swap_rate = per_second(self._swapped, swapped)
        self._swapped = swapped
        pressure = read_pressure(pressures)
        signs = Signs(total_bytes, available_bytes, pressure.some_percent, pressure.full_percent, swap_rate)
        level, why = judge(signs, self.thresholds)
        return Sample(total_bytes, available_bytes, level, swap_out_bytes_per_second=swap_rate, why=why)


@contextmanager
def open_linux_memory(thresholds: Thresholds, *, proc: Path = PROC) -> Iterator[LinuxMemory]:
    """Look at this host, and have the kernel wake us when programs begin to wait for memory, where it can."""
    group = own_group(own_mounts(proc), proc)
    paths = [proc / "pressure" / "memory"]
    if group is not None and group.pressure_path is not None:
        paths.append(group.pressure_path)
    with open_triggers(paths) as stalled:
        yield LinuxMemory(thresholds, stalled, proc)


def host_available(meminfo: Mapping[str, int]) -> int:
    """Return what programs could still get without any of them having to read a mapped file again.

    Raises:
        KeyError: An entry is missing; MemAvailable is there since Linux 3.14.
    """
    return max(0, meminfo["MemAvailable"] - mapped_files(meminfo["Mapped"], meminfo["Shmem"]))


def oom_kills() -> int:
    """Return how often the kernel has killed for want of memory in our control group (the engines' too) or on the host.

    It is `oom_kill` in memory.events (version 2) or memory.oom_control (version 1), else in /proc/vmstat; 0 where no
    such file is.
    """
    group = own_group(own_mounts())
    for path in (*([group.kills_path] if group else ()), PROC / "vmstat"):
        try:
            count = parse_counter(path.read_text("ascii"), "oom_kill")
        except (OSError, ValueError):
            continue
        if count is not None:
            return count
    return 0
