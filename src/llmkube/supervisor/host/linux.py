"""This machine's memory under Linux: MemAvailable, stalls, swapping, and the limits of the agent's control group."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from llmkube.supervisor.host.cgroups import Mount, headroom_in, mapped_files, own_group, own_mounts
from llmkube.supervisor.host.pressure_level import DEFAULTS, Signs, Thresholds, judge
from llmkube.supervisor.host.procfs import PAGE_BYTES, PROC, parse_counter, parse_meminfo
from llmkube.supervisor.host.psi import open_triggers, read_pressure
from llmkube.supervisor.host.pss import PssSampler
from llmkube.supervisor.host.rates import Count, per_second
from llmkube.supervisor.host.sample import Level, Sample


@attrs.define(eq=False)
class LinuxMemory:
    """The host as its /proc and its control groups show it.

    Attributes:
        thresholds: When memory is short.
        stalled: Returns when programs begin to wait for memory.
        proc: Where /proc is.
    """

    thresholds: Thresholds = DEFAULTS
    stalled: Callable[[], Awaitable[None]] = trio.sleep_forever
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

    async def wait_change(self) -> None:
        """Return when programs begin to wait for memory, on the machine or in our control group."""
        await self.stalled()

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
