"""One look at every engine of a host in one thread call: what the kernel knows without asking the engine.

All services look on the same tick, so the first that comes looks for all of them and the others take what it found: 500
idle engines cost one wake-up and some milliseconds every four seconds, and no engine is disturbed.
"""

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import psutil
import trio

from llmkube.supervisor.progress import Look

FRESH_SECONDS: Final = 1.0
"""Who looks within this time after somebody else sees the same."""

FAMILY_SWEEPS: Final = 15
"""How often the processes below engines are looked for: a wrapper script has its real engine there."""

CONNECT_SECONDS: Final = 0.2

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_LISTENING: Final = re.compile(rb":([0-9A-F]{4}) [0-9A-F]+:0000 0A ")  # /proc/net/tcp, state 0A
_LETTERS: Final = {psutil.STATUS_STOPPED: "T", psutil.STATUS_RUNNING: "R", psutil.STATUS_ZOMBIE: "Z"}


@attrs.frozen
class Patient:
    """An engine to look at: a process, where it listens, and the file that it writes to."""

    pid: int
    host: str
    port: int
    log_path: Path


@attrs.frozen
class Sign:
    """What the kernel says of one process."""

    state: str
    cpu_seconds: float
    faults: int
    resident_bytes: int
    read_bytes: int


@attrs.define(eq=False)
class Rounds:
    """Look at engines, all at once; one per host."""

    _sweep: "Callable[[Sequence[Patient]], Mapping[int, Look]]" = attrs.field(factory=lambda: Sweep())
    _patients: dict[int, Patient] = attrs.field(factory=dict)
    _seen: Mapping[int, Look] = attrs.field(factory=dict)
    _seen_at: float = float("-inf")
    _turn: trio.Lock = attrs.field(factory=trio.Lock)

    @contextmanager
    def attended(self, patient: Patient) -> Iterator[None]:
        """Look at this engine, too, for as long as the body runs."""
        self._patients[patient.pid] = patient
        try:
            yield
        finally:
            del self._patients[patient.pid]

    async def look(self, pid: int) -> Look | None:
        """Return what is seen of an attended engine now; None when its process has ended."""
        asked_at = trio.current_time()
        async with self._turn:
            if asked_at - self._seen_at >= FRESH_SECONDS or pid not in self._seen:
                self._seen_at = trio.current_time()
                self._seen = await trio.to_thread.run_sync(self._sweep, tuple(self._patients.values()))
            return self._seen.get(pid)


@attrs.define(eq=False)
class Sweep:
    """Look at processes of this machine; blocks for some microseconds each."""

    _families: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    _ages: dict[int, int] = attrs.field(factory=dict)  # in sweeps

    def __call__(self, patients: Sequence[Patient]) -> Mapping[int, Look]:
        """Return what is seen of those that are alive."""
        self._ages = {patient.pid: self._ages.get(patient.pid, -1) + 1 for patient in patients}
        # A young engine may be about to start the process that does the work.
        if any(age < FAMILY_SWEEPS or age % FAMILY_SWEEPS == 0 for age in self._ages.values()):
            self._families = families([patient.pid for patient in patients])
        ports = _listening_ports()
        looks = {}
        for patient in patients:
            members = (patient.pid, *self._families.get(patient.pid, ()))
            signs = [sign for pid in members if (sign := sign_of(pid)) is not None]
            if signs:
                heard = _accepts(patient.host, patient.port) if ports is None else patient.port in ports
                looks[patient.pid] = _together(signs, patient.log_path, listening=heard)
        return looks


def sign_of(pid: int) -> Sign | None:
    """Return what the kernel says of a process; None when there is none, or it is another user's."""
    if sys.platform != "linux":
        return _sign_by_psutil(pid)
    try:
        # proc_pid_stat(5), counted after the program's name, which may contain anything
        stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return Sign(
            state=stat[0].decode("ascii"),
            cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
            faults=int(stat[9]),
            resident_bytes=int(stat[21]) * _PAGE,
            read_bytes=_read_bytes(pid),
        )
    except (OSError, IndexError, ValueError):
        return None


def families(leaders: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the processes below each of these, however deep."""
    below: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)
    return {leader: tuple(_descendants(leader, below)) for leader in leaders}


def _descendants(pid: int, below: Mapping[int, list[int]]) -> Iterator[int]:
    for child in below.get(pid, ()):
        yield child
        yield from _descendants(child, below)


def _parents() -> dict[int, int]:
    if sys.platform != "linux":
        return {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - of thousands, and only the names
        if name.isdigit():
            try:
                parents[int(name)] = int(_read(f"/proc/{name}/stat").rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    return parents


def _together(signs: Sequence[Sign], log_path: Path, *, listening: bool) -> Look:
    states = [sign.state for sign in signs]
    try:
        log_bytes = log_path.stat().st_size
    except OSError:
        log_bytes = 0
    return Look(
        state=next((letter for letter in ("T", "t", "R") if letter in states), states[0]),
        cpu_seconds=sum(sign.cpu_seconds for sign in signs),
        log_bytes=log_bytes,
        faults=sum(sign.faults for sign in signs),
        resident_bytes=sum(sign.resident_bytes for sign in signs),
        read_bytes=sum(sign.read_bytes for sign in signs),
        listening=listening,
    )


def _read_bytes(pid: int) -> int:
    """What a process has read from disk, in bytes; 0 where it may not be known."""
    try:
        for line in _read(f"/proc/{pid}/io").splitlines():
            if line.startswith(b"read_bytes:"):
                return int(line[11:])
    except (OSError, ValueError):
        pass
    return 0


def _sign_by_psutil(pid: int) -> Sign | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            letter = _LETTERS.get(process.status(), "S")
            return Sign(letter, times.user + times.system, getattr(memory, "pageins", 0), memory.rss, 0)
    except psutil.Error:
        return None


def _listening_ports() -> frozenset[int] | None:
    """Every TCP port that somebody listens on, from one table for the whole host; None where there is no such table."""
    if sys.platform != "linux":
        return None
    ports: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            ports.update(int(port, 16) for port in _LISTENING.findall(_read(table)))
        except OSError:  # no IPv6 here
            continue
    return frozenset(ports)


def _accepts(host: str, port: int) -> bool:
    """Whether somebody accepts connections; a backlog that is full for the moment counts as somebody."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _read(path: str) -> bytes:
    """Read a small file of /proc: without buffering, three system calls."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)
