"""Read what Linux tells in /proc, and give each file's content as a value.

Linux makes these files from memory when they are read: one process costs some ten microseconds, so no thread is needed.
The exception is `read_pss_bytes`. The formats are those of proc(5).
"""

import os
from pathlib import Path
from typing import Final

import attrs

PROC: Final = Path("/proc")

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class ProcessStat:
    """What /proc/PID/stat says of one process.

    Attributes:
        state: One letter: R is running, S sleeps, D waits in the kernel, T is stopped, Z is a zombie.
        major_faults: How often it has waited for a page from disk.
        cpu_seconds: Processor time in user and kernel mode.
        start_ticks: When it started, in clock ticks since boot: what tells it from a later process with its pid.
        resident_bytes: What it holds in memory, pages that it shares included.
    """

    state: str
    major_faults: int
    cpu_seconds: float
    start_ticks: int
    resident_bytes: int


def list_pids() -> list[int]:
    """Return the pid of every process.

    Raises:
        OSError: No descriptor is left.
    """
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - of thousands, only the names


def read_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel counts of a process; None when it has ended, or no descriptor is left to look."""
    try:
        fields = _stat_fields(pid)
        return ProcessStat(
            state=fields[0].decode("ascii"),
            major_faults=int(fields[9]),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
            start_ticks=int(fields[19]),
            resident_bytes=int(fields[21]) * PAGE_BYTES,
        )
    except (OSError, IndexError, ValueError):
        return None


def read_parent(pid: int) -> int | None:
    """Return the pid of a process's parent; None when the process has ended."""
    try:
        return int(_stat_fields(pid)[1])
    except (OSError, IndexError, ValueError):
        return None


def read_disk_bytes(pid: int) -> int:
    """Return how many bytes a process has read from disk; 0 where this user may not know it."""
    try:
        return _entry(_read_small(f"{PROC}/{pid}/io"), b"read_bytes:")
    except (OSError, ValueError):
        return 0


def read_pss_bytes(pid: int) -> int | None:
    """Return a process's memory with its part of what it shares; None where this user may not know it.

    It takes the right to trace the process: the same user, and a program that has not forbidden it. The kernel walks
    all page tables of the process for it, which blocks for 30 ms per GiB.
    """
    try:
        return _entry((PROC / str(pid) / "smaps_rollup").read_bytes(), b"Pss:") * 1024
    except (OSError, ValueError):
        return None


def read_environment(pid: int) -> bytes:
    """Return a process's environment, its entries divided by NUL.

    Raises:
        OSError: The process is another user's, it has ended, or no descriptor is left.
    """
    return (PROC / str(pid) / "environ").read_bytes()


def read_boot_id() -> str:
    """Return the random number that the kernel has drawn at this boot.

    Raises:
        OSError: No descriptor is left.
    """
    return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text("ascii").strip()


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the entries of /proc/meminfo in bytes.

    Raises:
        ValueError: It has another form.
    """
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, *unit = value.split()
        sizes[name] = int(number) * (1024 if unit == ["kB"] else 1)
    return sizes


def parse_counter(text: str, name: str) -> int | None:
    """Return a counter of /proc/vmstat or of a control group's file, one `name value` on a line; None if it is missing.

    Raises:
        ValueError: It is no number.
    """
    return next((int(line[len(name) + 1 :]) for line in text.splitlines() if line.startswith(f"{name} ")), None)


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third (the state) on.

    proc_pid_stat(5) counts from 1, so field N is at N - 3 here. The second field, the program's name, may contain
    anything. Fields beyond the 24th (the resident size) are left in one piece.
    """
    return _read_small(f"{PROC}/{pid}/stat").rpartition(b")")[2].split(None, 22)


def _read_small(path: str) -> bytes:
    """Read a file that comes in one piece by three system calls: hundreds of engines are read every few seconds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, PAGE_BYTES)
    finally:
        os.close(descriptor)


def _entry(text: bytes, name: bytes) -> int:
    """The number of a line `name number [kB]`; raises `ValueError` where there is none."""
    for line in text.splitlines():
        if line.startswith(name):
            return int(line[len(name) :].removesuffix(b"kB"))
    raise ValueError(f"no {name.decode()} in it")
