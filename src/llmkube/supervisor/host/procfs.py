"""Read Linux's /proc, and return each file's content as a value.

Linux generates these files when they are read: one process costs some ten microseconds, so no thread is needed, except
for `read_pss_bytes`. The formats are those of proc(5).
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
    """Statistics of one process from /proc/PID/stat.

    Attributes:
        state: One letter: R is running, S sleeps, D waits in the kernel, T is stopped, Z is a zombie.
        major_faults: The number of pages that it has read from disk.
        cpu_seconds: Processor time in user and kernel mode.
        start_ticks: Its start in clock ticks since boot, which distinguishes it from a later process with its pid.
        resident_bytes: Resident memory, including shared pages.
    """

    state: str
    major_faults: int
    cpu_seconds: float
    start_ticks: int
    resident_bytes: int


def list_pids() -> list[int]:
    """Return the pids of all processes.

    Raises:
        OSError: No file descriptor is left.
    """
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - of thousands, only the names


def read_stat(pid: int) -> ProcessStat | None:
    """Return the statistics of a process; None if it has exited, or no file descriptor is left."""
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
    """Return the pid of a process's parent; None if the process has exited."""
    try:
        return int(_stat_fields(pid)[1])
    except (OSError, IndexError, ValueError):
        return None


def read_disk_bytes(pid: int) -> int:
    """Return the bytes that a process has read from disk; 0 if this user may not read it."""
    try:
        return _entry(_read_small(f"{PROC}/{pid}/io"), b"read_bytes:")
    except (OSError, ValueError):
        return 0


def read_pss_bytes(pid: int) -> int | None:
    """Return the proportional set size (PSS) of a process; None if this user may not read it.

    This needs permission to trace the process: it must belong to the same user, and not have disabled tracing. The
    kernel walks all page tables of the process, which blocks for 30 ms per GiB.
    """
    try:
        return _entry((PROC / str(pid) / "smaps_rollup").read_bytes(), b"Pss:") * 1024
    except (OSError, ValueError):
        return None


def read_environment(pid: int) -> bytes:
    """Return a process's environment, its entries separated by NUL.

    Raises:
        OSError: The process belongs to another user or has exited, or no file descriptor is left.
    """
    return (PROC / str(pid) / "environ").read_bytes()


def read_boot_id() -> str:
    """Return the random id of this boot.

    Raises:
        OSError: No file descriptor is left.
    """
    return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text("ascii").strip()


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the entries of /proc/meminfo in bytes.

    Raises:
        ValueError: It has another format.
    """
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, *unit = value.split()
        sizes[name] = int(number) * (1024 if unit == ["kB"] else 1)
    return sizes


def parse_counter(text: str, name: str) -> int | None:
    """Return a counter from the `name value` lines of /proc/vmstat or a control group's file; None if it is missing.

    Raises:
        ValueError: It is not a number.
    """
    return next((int(line[len(name) + 1 :]) for line in text.splitlines() if line.startswith(f"{name} ")), None)


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third (the state) on.

    proc_pid_stat(5) counts from 1, so field N is at index N - 3. The second field, the program's name, may contain any
    character. Fields after the 24th (the resident size) are not split.
    """
    return _read_small(f"{PROC}/{pid}/stat").rpartition(b")")[2].split(None, 22)


def _read_small(path: str) -> bytes:
    """Read a file of at most one page with three system calls: hundreds of engines are read every few seconds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, PAGE_BYTES)
    finally:
        os.close(descriptor)


def _entry(text: bytes, name: bytes) -> int:
    """Return the number of a line `name number [kB]`; raises `ValueError` if there is none."""
    for line in text.splitlines():
        if line.startswith(name):
            return int(line[len(name) :].removesuffix(b"kB"))
    raise ValueError(f"no {name.decode()} in it")
