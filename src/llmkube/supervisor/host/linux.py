"""This machine's memory under Linux: MemAvailable, stalls, swapping, and the limits of the agent's control group.

Stalls are how long programs wait for memory; the kernel describes them in Documentation/accounting/psi.rst. A trigger
is a text written to the file: from then on the descriptor has an exceptional condition (POLLPRI), once per window, when
programs have stalled for longer than it says.

What processes hold, each with its part of what it shares (PSS), is measured the less often the larger they are. The
kernel walks all page tables of a process for that: about 30 ms per GiB in pages of 4 KiB, which is two seconds for
an engine with 64 GiB on the CPU. The resident size (RSS) costs nothing, so between two measurements it tells what has
been added since.

What the agent's own control group may use: Linux, versions 1 and 2, with every group above it.

Engines are children of the agent and so in its group: a container, or a systemd service with `MemoryMax=`, has less
than its machine. The kernel describes the files in Documentation/admin-guide: cgroup-v1/memory.rst and cgroup-v2.rst.
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
import structlog
import trio

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

log = structlog.get_logger(__name__)

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # proc_pid_mountinfo(5): space, tab, newline and backslash


@attrs.frozen
class Mount:
    """Where a control group tree with the memory controller is mounted, and which of its groups is the top there."""

    version: int
    root: str
    point: Path


@attrs.frozen
class Headroom:
    """A limit on memory, and how much could still be taken below it, in bytes."""

    limit_bytes: int
    available_bytes: int


@attrs.frozen
class Group:
    """The memory control group of this process: `folders` are its own and those above it, nearest first."""

    version: int
    folders: tuple[Path, ...]

    @property
    def pressure_path(self) -> Path | None:
        """Where version 2 tells of the group's own stalls; the top one's are the whole machine's."""
        return self.folders[0] / "memory.pressure" if self.version == 2 and len(self.folders) > 1 else None

    @property
    def kills_path(self) -> Path:
        """The file with the counter `oom_kill`."""
        return self.folders[0] / ("memory.events" if self.version == 2 else "memory.oom_control")


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the trees of /proc/self/mountinfo that may have the memory controller, version 1 first.

    A machine with both has the controller in one of them, and that is version 1 as soon as it is mounted there.
    """
    found = []
    for line in mountinfo.split("\n"):  # not splitlines: a mount point may have any other character in its name
        if not line:
            continue
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            found.append(Mount(2 if kind == "cgroup2" else 1, _unescaped(fields[3]), Path(_unescaped(fields[4]))))
    return tuple(sorted(found, key=lambda mount: mount.version))


def own_mounts(proc: Path = PROC) -> tuple[Mount, ...]:
    """Return the control group trees that this process sees; none when it may not know."""
    try:
        return parse_mounts((proc / "self" / "mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return ()


def own_group(mounts: tuple[Mount, ...], proc: Path = PROC) -> Group | None:
    """Return the memory control group that this process is in now; None when there is none."""
    try:
        return group_of(mounts, (proc / "self" / "cgroup").read_text("utf-8", "replace"))
    except OSError:
        return None


def group_of(mounts: tuple[Mount, ...], cgroup: str) -> Group | None:
    """Return the memory group that /proc/self/cgroup names; None when no tree with it is mounted here.

    A path outside of what is mounted is that of a container whose tree begins at its own group.
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
    """Return the tightest room of a group and those above it; None when no limit is below `total_bytes`.

    The group with the smallest limit need not be the one with the least room: siblings may have used up a larger one.

    Raises:
        OSError: A file that belongs to a limit cannot be read.
        ValueError: It holds something else than numbers.
    """
    headrooms = [
        headroom
        for folder in group.folders
        if (headroom := _headroom_of(folder, group.version, total_bytes)) is not None
    ]
    if not headrooms:
        return None
    return Headroom(
        min(headroom.limit_bytes for headroom in headrooms), min(headroom.available_bytes for headroom in headrooms)
    )


def headroom_below(limit_bytes: int, used_bytes: int, stat: Mapping[str, int], *, version: int) -> Headroom:
    """Return the room below one limit: what is free, and the file pages that no process has mapped."""
    prefix, mapped_name = ("", "file_mapped") if version == 2 else ("total_", "total_mapped_file")
    mapped_bytes = mapped_files(stat[mapped_name], stat[f"{prefix}shmem"])
    droppable = max(0, stat[f"{prefix}active_file"] + stat[f"{prefix}inactive_file"] - mapped_bytes)
    return Headroom(limit_bytes, min(limit_bytes, max(0, limit_bytes - used_bytes + droppable)))


def mapped_files(mapped_bytes: int, shared_bytes: int) -> int:
    """Return how much of the page cache programs have mapped, at least; the kernel counts shared memory as mapped too.

    To the kernel such pages are available. But weights that an engine has mapped are among them, and without them it
    has to read them again for its next token.
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
    """Return a limit in bytes; the top group has none, and no file for it."""
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
class _Measurement:
    stat: ProcessStat
    own_bytes: int
    due_seconds: float


@attrs.define(eq=False)
class PssSampler:
    """Measure processes; one that was measured a short while ago is estimated from that measurement."""

    _known: Mapping[int, _Measurement] = attrs.field(factory=dict)

    def footprints(self, pids: Sequence[int], now_seconds: float) -> dict[int, int]:
        """Return what each of these holds with all below it; blocks for 15 ms, and 30 ms per GiB that is measured."""
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
    _swapped: Reading | None = attrs.field(default=None, init=False)
    _pss: PssSampler = attrs.field(factory=PssSampler, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def __attrs_post_init__(self) -> None:
        self._mounts = own_mounts(self.proc)

    async def sample(self) -> Sample:
        """Look once, in some hundred microseconds; the files are made by the kernel, so no thread is needed."""
        await trio.lowlevel.checkpoint()
        try:
            return self.read_sample(trio.current_time())
        except (OSError, ValueError, KeyError) as exc:
            return Sample(0, 0, Level.UNKNOWN, why=f"this host's memory cannot be read: {exc}")

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Measure in a thread."""
        now = trio.current_time()
        return await trio.to_thread.run_sync(self._pss.footprints, pids, now, limiter=self._limiter)

    def read_sample(self, now_seconds: float) -> Sample:
        """Look at once; raises `OSError`, `ValueError` or `KeyError` where /proc is not as it should be."""
        meminfo = parse_meminfo((self.proc / "meminfo").read_text("ascii"))
        total_bytes, available_bytes = meminfo["MemTotal"], host_available(meminfo)
        pressures = [self.proc / "pressure" / "memory"]
        group = own_group(self._mounts, self.proc)
        headroom = None if group is None else headroom_in(group, total_bytes)
        if group is not None and headroom is not None:
            total_bytes = headroom.limit_bytes
            available_bytes = min(available_bytes, headroom.available_bytes)  # others may have left less than the limit
            if group.pressure_path is not None:
                pressures.insert(0, group.pressure_path)
        pages = parse_counter((self.proc / "vmstat").read_text("ascii"), "pswpout") or 0  # none without swap
        swapped = Reading(pages * PAGE_BYTES, now_seconds)
        swap_rate = per_second(self._swapped, swapped)
        self._swapped = swapped
        pressure = read_pressure(pressures)
        signals = Signals(total_bytes, available_bytes, pressure.some_percent, pressure.full_percent, swap_rate)
        level, why = assess_pressure(signals, self.thresholds)
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
