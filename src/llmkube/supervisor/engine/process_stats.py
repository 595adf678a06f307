"""One look at every engine of a host at once: what the kernel knows without asking the engine.

All services look on the same tick, so the first that comes looks for all of them and the others take what it found: 500
idle engines cost one wake-up and some ten milliseconds every five seconds, and no engine is disturbed.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import psutil
import trio

from llmkube.base.errors import NOT_ASKED
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.linux import PROC, mounts_in, own_group
from llmkube.supervisor.host.processes import COOKIE_VARIABLE, families, read_small, stat_fields
from llmkube.supervisor.host.tcp_listeners import doors
from llmkube.supervisor.nouns.liveness import Look

FRESH_SECONDS: Final = 1.0
"""Who looks within this time after somebody else sees the same."""

FAMILY_SWEEPS: Final = 15
"""In every so many sweeps the processes below engines are looked for: a wrapper script has its real engine there."""

YOUNG_SWEEPS: Final = 8
"""For so many sweeps after its start an engine's family is looked for each time."""

PORT_SWEEPS: Final = 2
"""In every so many sweeps the ports are looked at: the kernel takes a millisecond to list those of 500 engines."""

FORGOTTEN_SECONDS: Final = 60.0
"""An engine that nobody has asked for during this time is not looked at any more."""

CONNECT_SECONDS: Final = 0.2

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_LETTERS: Final = {psutil.STATUS_STOPPED: "T", psutil.STATUS_ZOMBIE: "Z"}
"""What psutil says elsewhere than on Linux. Not "running": macOS says so of every process that has not been stopped
(psutil issues 1754 and 2675), and to `progress` an R is a sign of life."""


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
class Sweep:
    """Look at processes of this machine; blocks for some microseconds each."""

    _families: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    _ages: dict[int, int] = attrs.field(factory=dict)  # in sweeps
    _count: int = 0
    _has_doors: bool = sys.platform == "linux"
    _seen: tuple[dict[int, Look], dict[int, Look]] = attrs.field(factory=lambda: ({}, {}))  # without ports, and with

    def __call__(self, patients: Sequence[Patient], loading: frozenset[int]) -> Mapping[int, Look]:
        """Return what is seen of those that are alive; of those that load also what they have read."""
        self._count += 1
        self._ages = {patient.pid: self._ages.get(patient.pid, -1) + 1 for patient in patients}
        # A young engine may be about to start the process that does the work.
        if self._count % FAMILY_SWEEPS == 0 or any(age < YOUNG_SWEEPS for age in self._ages.values()):
            self._families = families([patient.pid for patient in patients])
        look_at_ports = self._count % PORT_SWEEPS == 0
        ports = doors({patient.port for patient in patients}) if look_at_ports and self._has_doors else None
        looks = {}
        before = self._seen[look_at_ports]
        for patient in patients:
            members = (patient.pid, *self._families.get(patient.pid, ()))
            signs = [sign for pid in members if (sign := sign_of(pid, loading=patient.pid in loading)) is not None]
            if signs:
                listening = waiting = None
                if ports is not None:
                    listening, waiting = patient.port in ports, ports.get(patient.port, False)
                elif look_at_ports:
                    listening = _accepts(patient.host, patient.port)
                looks[patient.pid] = _together(signs, patient.log_path, listening, waiting, before.get(patient.pid))
        before.clear()
        before.update(looks)
        return looks


@attrs.define(eq=False)
class Census:
    """Find the processes that carry a cookie: one look at every process of the host for all who ask at the same time.

    Hundreds of engines end together, and a look takes tens of milliseconds then.
    """

    _scan: Callable[[], Mapping[str, Sequence[psutil.Process]]] = partial(processes.carriers, COOKIE_VARIABLE)
    _found: Mapping[str, Sequence[psutil.Process]] = attrs.field(factory=dict)
    _begun: int = 0
    _done: int = 0
    _coming: trio.Event | None = None

    async def carriers(self, cookie: str) -> Sequence[psutil.Process]:
        """Return what a look finds that begins after this was called; one that runs already may have missed some."""
        wanted = self._begun + 1
        while self._done < wanted:
            if self._coming is not None:
                await self._coming.wait()
                continue
            self._coming, self._begun = trio.Event(), self._begun + 1
            try:
                # It only looks: who waits for a process on a dead disk must not keep an engine's end waiting.
                self._found = await trio.to_thread.run_sync(self._scan, abandon_on_cancel=True)
                self._done = self._begun
            finally:
                self._coming.set()
                self._coming = None
        return self._found.get(cookie, ())


@attrs.define(eq=False)
class Rounds:
    """Look at engines, all at once; one per host.

    Linux makes the files in /proc from memory, so that a look takes some ten microseconds per engine and no thread:
    changing over to one and back would wake the agent twice more. Elsewhere a port has to be tried.
    """

    _sweep: Callable[[Sequence[Patient], frozenset[int]], Mapping[int, Look]] = attrs.field(factory=Sweep)
    _patients: dict[int, tuple[Patient, bool, float]] = attrs.field(factory=dict)  # how, and when last asked for
    _seen: Mapping[int, Look] = attrs.field(factory=dict)
    _seen_at: float = float("-inf")
    _coming: trio.Event | None = None
    _in_thread: bool = sys.platform != "linux"
    _census: Census = attrs.field(factory=Census)

    async def family(self, cookie: str) -> Sequence[psutil.Process]:
        """Return every process that carries an engine's cookie now."""
        return await self._census.carriers(cookie)

    async def look(self, patient: Patient, *, loading: bool) -> Look | None:
        """Return what is seen of an engine now; None when its process has ended, or nobody has looked yet."""
        now = self._note(patient, loading=loading)
        await trio.lowlevel.checkpoint_if_cancelled()  # all callers come from a tick: nobody need be let through here
        while now - self._seen_at >= FRESH_SECONDS:
            if self._coming is not None:
                await self._coming.wait()
                continue
            self._coming = trio.Event()
            try:
                await self._look_at_all(now)
            finally:
                self._coming.set()
                self._coming = None
        return self._seen.get(patient.pid)

    def glance(self, patient: Patient) -> Look | None:
        """Return the same without waiting; None also where that takes a thread."""
        if self._in_thread:
            return None
        now = self._note(patient, loading=False)
        if now - self._seen_at >= FRESH_SECONDS:
            self._take_in(self._sweep(*self._wanted(now)))
        return self._seen.get(patient.pid)

    def _note(self, patient: Patient, *, loading: bool) -> float:
        """Note that somebody asks for an engine now; return when that is."""
        now = trio.current_time()
        if patient.pid not in self._patients:
            self._seen_at = float("-inf")
        self._patients[patient.pid] = (patient, loading, now)
        return now

    async def _look_at_all(self, now: float) -> None:
        patients, loading = self._wanted(now)
        if self._in_thread:
            self._take_in(await trio.to_thread.run_sync(self._sweep, patients, loading))
        else:
            self._take_in(self._sweep(patients, loading))

    def _wanted(self, now: float) -> tuple[list[Patient], frozenset[int]]:
        """Those whom somebody asks for, and which of them load; the others are forgotten."""
        wanted = [each for each in self._patients.values() if now - each[2] < FORGOTTEN_SECONDS]
        self._patients = {each[0].pid: each for each in wanted}
        return [each[0] for each in wanted], frozenset(each[0].pid for each in wanted if each[1])

    def _take_in(self, seen: Mapping[int, Look]) -> None:
        self._seen, self._seen_at = seen, trio.current_time()


def sign_of(pid: int, *, loading: bool = False) -> Sign | None:
    """Return what the kernel says of a process; None when there is none, or it is another user's.

    What it has read, one more file to open, only of one that loads; else 0.
    """
    if sys.platform != "linux":
        return _sign_by_psutil(pid)
    try:
        stat = stat_fields(pid)
        return Sign(
            state=stat[0].decode("ascii"),
            cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
            faults=int(stat[9]),
            resident_bytes=int(stat[21]) * _PAGE,
            read_bytes=_read_bytes(pid) if loading else 0,
        )
    except (OSError, IndexError, ValueError):
        return None


def memory_kills() -> int:
    """Return how often the kernel has killed for want of memory in our control group (the engines' too) or on the host.

    Linux only, 0 elsewhere: `oom_kill` in memory.events (version 2), in memory.oom_control (version 1), else that of
    /proc/vmstat.
    """
    group = own_group(mounts_in(PROC))
    for path in (*([group.kills_path] if group else ()), Path("/proc/vmstat")):
        try:
            return next(int(line[9:]) for line in path.read_text("ascii").splitlines() if line.startswith("oom_kill "))
        except (OSError, ValueError, StopIteration):
            continue
    return 0


def _together(
    signs: Sequence[Sign], log_path: Path, listening: bool | None, waiting: bool | None, before: Look | None
) -> Look:
    """What the members of a family show; the look before once more if it showed the same, as nearly all do."""
    try:
        log_bytes = os.stat(log_path).st_size  # noqa: PTH116 - of hundreds, at two thirds of what Path.stat costs
    except OSError:
        log_bytes = 0
    sign = signs[0] if len(signs) == 1 else _sum(signs)
    if (
        before is not None
        and before.cpu_seconds == sign.cpu_seconds
        and before.state == sign.state
        and before.log_bytes == log_bytes
        and before.faults == sign.faults
        and before.resident_bytes == sign.resident_bytes
        and before.read_bytes == sign.read_bytes
        and before.listening is listening
        and before.waiting is waiting
    ):
        return before
    return Look(
        sign.state,
        sign.cpu_seconds,
        log_bytes,
        sign.faults,
        sign.resident_bytes,
        sign.read_bytes,
        listening,
        waiting,
    )


def _sum(signs: Sequence[Sign]) -> Sign:
    states = [sign.state for sign in signs]
    return Sign(
        state=next((letter for letter in ("T", "t", "R") if letter in states), states[0]),
        cpu_seconds=sum(sign.cpu_seconds for sign in signs),
        faults=sum(sign.faults for sign in signs),
        resident_bytes=sum(sign.resident_bytes for sign in signs),
        read_bytes=sum(sign.read_bytes for sign in signs),
    )


def _read_bytes(pid: int) -> int:
    """What a process has read from disk, in bytes; 0 where it may not be known."""
    try:
        for line in read_small(f"/proc/{pid}/io").splitlines():
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


def _accepts(host: str, port: int) -> bool | None:
    """Whether somebody accepts connections; a backlog that is full for the moment counts as somebody.

    None: this host has no descriptor left for the question, or no port to connect from.
    """
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except TimeoutError:
        return True
    except OSError as error:
        return None if error.errno in NOT_ASKED else False
    return True
