"""This machine's memory on Linux: MemAvailable, stalls, swapping, and the limits of the agent's control group.

A stall is time that programs wait for memory (Documentation/accounting/psi.rst of the kernel). A trigger is a text
written to the file: from then on the descriptor has an exceptional condition (POLLPRI), once per window, when programs
have stalled for longer than the trigger's threshold.

The proportional set size (PSS) of processes is measured the less often the larger they are. The kernel walks all page
tables of a process for it: about 30 ms per GiB in pages of 4 KiB, which is two seconds for an engine with 64 GiB on the
CPU. The resident set size (RSS) costs nothing, so between two measurements its growth is added.

Engines are children of the agent and so belong to its control group, which may limit them to less than the machine has:
in a container, or a systemd service with `MemoryMax=`. Versions 1 and 2 are supported, including all parent groups
(Documentation/admin-guide of the kernel: cgroup-v1/memory.rst and cgroup-v2.rst).
"""

import contextlib
import os
import re
import select
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import attrs
import trio

from llmkube.base.lazy_log import LazyLog
from llmkube.supervisor.host.pressure_level import DEFAULTS, Reading, Signals, Thresholds, assess_pressure, per_second
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

log = LazyLog()

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # proc_pid_mountinfo(5): space, tab, newline and backslash


@attrs.frozen
class Mount:
    """The mount of a control group tree with the memory controller; `root` is the group at the mount point."""

    version: int
    root: str
    point: Path


@attrs.frozen
class Headroom:
    """A limit on memory, and the bytes that are still available below it."""

    limit_bytes: int
    available_bytes: int


@attrs.frozen
class Group:
    """The memory control group of this process: `folders` are its own and those above it, nearest first."""

    version: int
    folders: tuple[Path, ...]

    @property
    def pressure_path(self) -> Path | None:
        """The file with the group's own stalls, in version 2; None for the root group: its stalls are the machine's."""
        return self.folders[0] / "memory.pressure" if self.version == 2 and len(self.folders) > 1 else None

    @property
    def kills_path(self) -> Path:
        """The file with the counter `oom_kill`."""
        return self.folders[0] / ("memory.events" if self.version == 2 else "memory.oom_control")


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the trees of /proc/self/mountinfo that may have the memory controller, version 1 first.

    On a machine with both versions only one has the controller: version 1 if it is mounted there.
    """
    found = []
    for line in mountinfo.split("\n"):  # not splitlines: the name of a mount point may have any other character
        if not line:
            continue
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            found.append(Mount(2 if kind == "cgroup2" else 1, _unescaped(fields[3]), Path(_unescaped(fields[4]))))
    return tuple(sorted(found, key=lambda mount: mount.version))


def own_mounts(proc: Path = PROC) -> tuple[Mount, ...]:
    """Return the control group trees that this process sees; none if it may not read them."""
    try:
        return parse_mounts((proc / "self" / "mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return ()


def own_group(mounts: tuple[Mount, ...], proc: Path = PROC) -> Group | None:
    """Return the current memory control group of this process; None if there is none."""
    try:
        return group_of(mounts, (proc / "self" / "cgroup").read_text("utf-8", "replace"))
    except OSError:
        return None


def group_of(mounts: tuple[Mount, ...], cgroup: str) -> Group | None:
    """Return the memory group that /proc/self/cgroup names; None if no tree with it is mounted here.

    A path outside the mounted tree is that of a container whose tree starts at its own group.
    """
    paths: dict[int, str] = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            paths[1 if controllers else 2] = path
    for mount in mounts:
        if mount.version in paths:
            below = PurePosixPath(paths[mount.version])
            inside = below.relative_to(mount.root) if below.is_relative_to(mount.root) else PurePosixPath()
            if ".." in inside.parts:  # the group has been moved out of our control group namespace
                inside = PurePosixPath()
            folders = [mount.point / each for each in (inside, *inside.parents)]
            return Group(mount.version, tuple(dict.fromkeys(folders)))
    return None


def headroom_in(group: Group, total_bytes: int) -> Headroom | None:
    """Return the least headroom of a group and its parents; None if no limit is below `total_bytes`.

    The group with the smallest limit may not have the least headroom: siblings may have used up a larger limit.

    Raises:
        OSError: A file that belongs to a limit cannot be read.
        ValueError: It contains something other than numbers.
    """
    all_headrooms = (_headroom_of(folder, group.version, total_bytes) for folder in group.folders)
    headrooms = [each for each in all_headrooms if each is not None]
    if not headrooms:
        return None
    return Headroom(min(each.limit_bytes for each in headrooms), min(each.available_bytes for each in headrooms))


def headroom_below(limit_bytes: int, used_bytes: int, stat: Mapping[str, int], *, version: int) -> Headroom:
    """Return the headroom below one limit: free memory, and file pages that no process has mapped."""
    prefix, mapped_name = ("", "file_mapped") if version == 2 else ("total_", "total_mapped_file")
    mapped_bytes = mapped_files(stat[mapped_name], stat[f"{prefix}shmem"])
    droppable = max(0, stat[f"{prefix}active_file"] + stat[f"{prefix}inactive_file"] - mapped_bytes)
    return Headroom(limit_bytes, min(limit_bytes, max(0, limit_bytes - used_bytes + droppable)))


def mapped_files(mapped_bytes: int, shared_bytes: int) -> int:
    """Return a lower bound of the mapped page cache; the kernel counts shared memory as mapped, too.

    For the kernel such pages are available. But they include mapped weights, which an engine would have to read again
    for its next token.
    """
    return max(0, mapped_bytes - shared_bytes)


def _headroom_of(folder: Path, version: int, total_bytes: int) -> Headroom | None:
    limits = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    limit_bytes = min((found for name in limits if (found := _limit(folder / name)) is not None), default=total_bytes)
    if limit_bytes >= total_bytes:
        return None
    used = "memory.current" if version == 2 else "memory.usage_in_bytes"
    stat = dict(_counters((folder / "memory.stat").read_text("ascii")))
    return headroom_below(limit_bytes, int((folder / used).read_text("ascii")), stat, version=version)


def _limit(path: Path) -> int | None:
    """Return a limit in bytes; None if there is none. The root group has no file for it."""
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    return None if text == "max" else int(text)


def _counters(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        yield name, int(value)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


TRIGGERS: Final = (b"some 100000 1000000\0", b"some 200000 2000000\0")
"""Stall of some program for a tenth of the window, both in microseconds; the kernel requires the NUL.

The kernel checks ten times per window, so the first trigger wakes us within 0.1 s. Without CAP_SYS_RESOURCE it accepts
only windows of whole multiples of 2 s, and checks once per window.
"""

_LINE: Final = re.compile(r"(some|full) avg10=(\d+\.\d+) ")

PAUSE_SECONDS_PER_GIB: Final = 1.5
"""Time between two measurements of a process, per GiB: at 30 ms per GiB they use 2 % of one core."""

PAUSE_SECONDS_PER_PROCESS: Final = 0.25
"""Minimum time between two measurements of a process, per process: at 0.2 ms for a small one they use 0.1 % of one
core."""


@attrs.frozen
class Pressure:
    """Stalls in per cent of the last ten seconds: of some program, and of all at once."""

    some_percent: float = 0.0
    full_percent: float = 0.0


def parse_pressure(text: str) -> Pressure:
    """Parse a memory.pressure file.

    Raises:
        ValueError: It has another format.
    """
    found = dict(_LINE.findall(text))
    if found.keys() != {"some", "full"}:
        raise ValueError(f"no pressure in {text[:80]!r}")
    return Pressure(float(found["some"]), float(found["full"]))


def read_pressure(paths: Sequence[Path]) -> Pressure:
    """Return the pressure from the first of these files that exists; 0 if the kernel does not measure it.

    Raises:
        ValueError: The file has another format.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            return parse_pressure(path.read_text("ascii"))
    return Pressure()


@contextmanager
def open_triggers(paths: Sequence[Path]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Yield a function that waits until any of these pressure files reports a stall.

    It sleeps forever if no file accepts a trigger: the kernel does not support it, or permission is missing.
    """
    with contextlib.ExitStack() as stack:
        armed = [descriptor for path in paths if (descriptor := _arm(path)) is not None]
        for descriptor in armed:
            stack.callback(os.close, descriptor)
        yield stack.enter_context(open_alarm(armed)) if armed else trio.sleep_forever


@contextmanager
def open_alarm(descriptors: Sequence[int]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Yield a function that waits until one of these has an exceptional condition; Linux only.

    Trio cannot wait for an exceptional condition, so it waits until an inner epoll becomes readable. Polling the inner
    one consumes the trigger's event, so the wake-up itself is the event.
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
    """Return a descriptor with a trigger; None if no trigger is accepted."""
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
    log.debug("memory pressure trigger refused; polling", path=str(path), reason=reason)
    return None


@attrs.frozen
class _Measurement:
    stat: ProcessStat
    own_bytes: int
    due_seconds: float


@attrs.define(eq=False)
class PssSampler:
    """Measure processes; one that was measured recently is estimated from that measurement."""

    _known: Mapping[int, _Measurement] = attrs.field(factory=dict)

    def footprints(self, pids: Sequence[int], now_seconds: float) -> dict[int, int]:
        """Return the memory of each process tree; blocks for 15 ms, plus 30 ms for each GiB that is measured."""
        before, self._known = self._known, (known := dict[int, _Measurement]())

        def own_bytes(pid: int) -> int | None:
            stat = read_stat(pid)
            if stat is None:
                return None
            measured = before.get(pid)
            if measured is None or measured.stat.start_ticks != stat.start_ticks or now_seconds >= measured.due_seconds:
                pause_seconds = max(
                    PAUSE_SECONDS_PER_GIB * stat.resident_bytes / (1 << 30), PAUSE_SECONDS_PER_PROCESS * len(before)
                )
                measured = _Measurement(stat, read_pss_bytes(pid) or stat.resident_bytes, now_seconds + pause_seconds)
            known[pid] = measured
            return max(0, measured.own_bytes + stat.resident_bytes - measured.stat.resident_bytes)

        return footprints(pids, own_bytes)


@attrs.define(eq=False)
class LinuxMemory:
    """Memory of a Linux host, from /proc and its control groups.

    Attributes:
        wait_change: Returns when programs stall, on the machine or in our control group.
        proc: The path of /proc.
    """

    thresholds: Thresholds = DEFAULTS
    wait_change: Callable[[], Awaitable[None]] = trio.sleep_forever
    proc: Path = PROC
    _mounts: tuple[Mount, ...] = attrs.field(init=False)
    _swapped: Reading | None = attrs.field(default=None, init=False)
    _pss: PssSampler = attrs.field(factory=PssSampler, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def __attrs_post_init__(self) -> None:
        self._mounts = own_mounts(self.proc)

    async def sample(self) -> Sample:
        """Take a sample in some hundred microseconds; the kernel generates the files, so no thread is needed."""
        await trio.lowlevel.checkpoint()
        try:
            return self.read_sample(trio.current_time())
        except (OSError, ValueError, KeyError) as exc:
            return Sample(0, 0, Level.UNKNOWN, why=f"this machine's memory cannot be read: {exc}")

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return the memory of each process tree, measured in a thread."""
        now = trio.current_time()
        return await trio.to_thread.run_sync(self._pss.footprints, pids, now, limiter=self._limiter)

    def read_sample(self, now_seconds: float) -> Sample:
        """Take a sample; raises `OSError`, `ValueError` or `KeyError` if /proc is not as expected."""
        meminfo = parse_meminfo((self.proc / "meminfo").read_text("ascii"))
        total_bytes, available_bytes = meminfo["MemTotal"], host_available(meminfo)
        pressures = [self.proc / "pressure" / "memory"]
        group = own_group(self._mounts, self.proc)
        headroom = None if group is None else headroom_in(group, total_bytes)
        if group is not None and headroom is not None:
            total_bytes = headroom.limit_bytes
            available_bytes = min(available_bytes, headroom.available_bytes)  # the machine may have less than the group
            if group.pressure_path is not None:
                pressures.insert(0, group.pressure_path)
        pages = parse_counter((self.proc / "vmstat").read_text("ascii"), "pswpout") or 0  # it is missing without swap
        swapped = Reading(pages * PAGE_BYTES, now_seconds)
        swap_rate = per_second(self._swapped, swapped)
        self._swapped = swapped
        pressure = read_pressure(pressures)
        signals = Signals(total_bytes, available_bytes, pressure.some_percent, pressure.full_percent, swap_rate)
        level, why = assess_pressure(signals, self.thresholds)
        return Sample(total_bytes, available_bytes, level, swap_out_bytes_per_second=swap_rate, why=why)


@contextmanager
def open_linux_memory(thresholds: Thresholds, *, proc: Path = PROC) -> Iterator[LinuxMemory]:
    """Open this host's memory, with wake-ups of the kernel when programs stall, where it supports that."""
    group = own_group(own_mounts(proc), proc)
    paths = [proc / "pressure" / "memory"]
    if group is not None and group.pressure_path is not None:
        paths.append(group.pressure_path)
    with open_triggers(paths) as stalled:
        yield LinuxMemory(thresholds, stalled, proc)


def host_available(meminfo: Mapping[str, int]) -> int:
    """Return the bytes that programs could still allocate without evicting mapped file pages.

    Raises:
        KeyError: An entry is missing; MemAvailable exists since Linux 3.14.
    """
    return max(0, meminfo["MemAvailable"] - mapped_files(meminfo["Mapped"], meminfo["Shmem"]))


def oom_kills() -> int:
    """Return the number of OOM kills in our control group, which includes the engines, or on the host.

    This is `oom_kill` in memory.events (version 2) or memory.oom_control (version 1), else in /proc/vmstat; 0 if there
    is no such file.
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
