"""What the agent's own control group may use: Linux, versions 1 and 2, with every group above it.

Engines are children of the agent and so in its group: a container, or a systemd service with `MemoryMax=`, has less
than its machine. The kernel describes the files in Documentation/admin-guide: cgroup-v1/memory.rst and cgroup-v2.rst.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

from llmkube.supervisor.host.procfs import PROC

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
    rooms = [room for folder in group.folders if (room := _headroom_of(folder, group.version, total_bytes)) is not None]
    if not rooms:
        return None
    return Headroom(min(room.limit_bytes for room in rooms), min(room.available_bytes for room in rooms))


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
