"""Sample all engines of a host at once from the kernel's statistics, without a request to any engine.

All services sample on the same tick, so the first call samples all engines and the others use its result: 500 idle
engines cost one wake-up and some ten milliseconds every five seconds.

Likewise, one scan of all processes finds the carriers of a cookie for all concurrent callers: hundreds of engines may
be stopped together, and a scan takes tens of milliseconds then.
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

from llmkube.base.errors import LOCAL_CONNECT_ERRNOS
from llmkube.supervisor.host import processes, procfs
from llmkube.supervisor.host.processes import COOKIE_VARIABLE, families
from llmkube.supervisor.host.procfs import ProcessStat
from llmkube.supervisor.host.tcp_listeners import listening_ports
from llmkube.supervisor.values.liveness import EngineStats

FRESH_SECONDS: Final = 1.0
"""Age up to which a sample is reused."""

FAMILY_ROUNDS: Final = 15
"""Interval, in rounds, at which descendants of engines are looked up: the real engine may be below a wrapper script."""

YOUNG_ROUNDS: Final = 8
"""Rounds after an engine's start in which descendants are looked up every time."""

PORT_ROUNDS: Final = 2
"""Interval, in rounds, at which ports are read: the kernel takes a millisecond to list those of 500 engines."""

FORGOTTEN_SECONDS: Final = 60.0
"""Time after which an engine that no service has requested is not sampled any more."""

CONNECT_SECONDS: Final = 0.2

_LETTERS: Final = {psutil.STATUS_STOPPED: "T", psutil.STATUS_ZOMBIE: "Z"}
"""States of psutil outside Linux. "running" is left out: macOS reports it for every process that has not been stopped
(psutil issues 1754 and 2675), and an R is taken for progress."""


@attrs.define(eq=False)
class CookieScan:
    """Scans for the processes that carry a cookie; one instance per host."""

    _scan: Callable[[], Mapping[str, Sequence[psutil.Process]]] = partial(processes.marked_processes, COOKIE_VARIABLE)
    _found: Mapping[str, Sequence[psutil.Process]] = attrs.field(factory=dict)
    _started_scans: int = 0
    _finished_scans: int = 0
    _lock: trio.Lock = attrs.field(factory=trio.Lock)

    async def marked_processes(self, cookie: str) -> Sequence[psutil.Process]:
        """Return the processes that carry a cookie, from a scan that started after this call.

        Raises:
            OSError: No file descriptor is left for the scan.
        """
        wanted = self._started_scans + 1
        async with self._lock:
            if self._finished_scans < wanted:
                self._started_scans += 1
                # The scan only reads: if a process on a dead disk blocks it, stopping an engine must not block.
                self._found = await trio.to_thread.run_sync(self._scan, abandon_on_cancel=True)
                self._finished_scans = self._started_scans
        return self._found.get(cookie, ())


@attrs.frozen
class EngineProcess:
    """An engine to sample: its process, its address, and its log."""

    pid: int
    host: str
    port: int
    log_path: Path


@attrs.define(eq=False)
class StatsReader:
    """Read the stats of this machine's engines; blocks for some microseconds per engine."""

    _families: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    _ages: dict[int, int] = attrs.field(factory=dict)  # in rounds
    _count: int = 0
    _has_port_table: bool = sys.platform == "linux"
    _stats: tuple[dict[int, EngineStats], dict[int, EngineStats]] = attrs.field(
        factory=lambda: ({}, {})
    )  # without ports, and with

    def __call__(self, engines: Sequence[EngineProcess], loading: frozenset[int]) -> Mapping[int, EngineStats]:
        """Return the stats of the engines that are alive; for those that load, also the bytes read from disk."""
        self._count += 1
        self._ages = {engine.pid: self._ages.get(engine.pid, -1) + 1 for engine in engines}
        # A young engine may be about to start the process that does the work.
        if self._count % FAMILY_ROUNDS == 0 or any(age < YOUNG_ROUNDS for age in self._ages.values()):
            self._families = families([engine.pid for engine in engines])
        reads_ports = self._count % PORT_ROUNDS == 0
        ports = listening_ports({engine.port for engine in engines}) if reads_ports and self._has_port_table else None
        found = {}
        before = self._stats[reads_ports]
        for engine in engines:
            members = (engine.pid, *self._families.get(engine.pid, ()))
            at_port: tuple[bool | None, bool | None] = None, None
            if ports is not None:
                at_port = engine.port in ports, ports.get(engine.port, False)
            elif reads_ports:
                at_port = _accepts(engine.host, engine.port), None
            stats = _stats_of(engine, members, at_port, before.get(engine.pid), loading=engine.pid in loading)
            if stats is not None:
                found[engine.pid] = stats
        before.clear()
        before.update(found)
        return found


@attrs.define(eq=False)
class Sampler:
    """Sample engines, all at once; one instance per host.

    Linux takes some ten microseconds per engine, so no thread is used: switching to one and back would wake the agent
    twice more. Other systems need a thread to connect to the port.
    """

    _read: Callable[[Sequence[EngineProcess], frozenset[int]], Mapping[int, EngineStats]] = attrs.field(
        factory=StatsReader
    )
    _engines: dict[int, tuple[EngineProcess, bool, float]] = attrs.field(factory=dict)  # loading; time of last request
    _stats: Mapping[int, EngineStats] = attrs.field(factory=dict)
    _sampled_at: float = float("-inf")
    _lock: trio.Lock = attrs.field(factory=trio.Lock)
    _in_thread: bool = sys.platform != "linux"
    cookies: CookieScan = attrs.field(factory=CookieScan)

    async def sample(self, engine: EngineProcess, *, loading: bool) -> EngineStats | None:
        """Return the stats of an engine now; None if its process has exited."""
        now = self._register(engine, loading=loading)
        await trio.lowlevel.checkpoint_if_cancelled()  # all callers come from a tick: no need to yield to others
        if not self._in_thread:
            self._refresh(now)
        elif self._is_old(now):
            async with self._lock:
                if self._is_old(now):
                    self._store(await trio.to_thread.run_sync(self._read, *self._wanted(now)))
        return self._stats.get(engine.pid)

    def sample_nowait(self, engine: EngineProcess) -> EngineStats | None:
        """Return the same as `sample` without waiting; None also if that needs a thread."""
        if self._in_thread:
            return None
        self._refresh(self._register(engine, loading=False))
        return self._stats.get(engine.pid)

    def _register(self, engine: EngineProcess, *, loading: bool) -> float:
        """Record a request for an engine, and return the time."""
        now = trio.current_time()
        if engine.pid not in self._engines:
            self._sampled_at = float("-inf")
        self._engines[engine.pid] = (engine, loading, now)
        return now

    def _is_old(self, now: float) -> bool:
        return now - self._sampled_at >= FRESH_SECONDS

    def _refresh(self, now: float) -> None:
        if self._is_old(now):
            self._store(self._read(*self._wanted(now)))

    def _wanted(self, now: float) -> tuple[list[EngineProcess], frozenset[int]]:
        """Return the recently requested engines, and which of them are loading; forget the others."""
        wanted = [each for each in self._engines.values() if now - each[2] < FORGOTTEN_SECONDS]
        self._engines = {each[0].pid: each for each in wanted}
        return [each[0] for each in wanted], frozenset(each[0].pid for each in wanted if each[1])

    def _store(self, stats: Mapping[int, EngineStats]) -> None:
        self._stats, self._sampled_at = stats, trio.current_time()


def read_stat(pid: int) -> ProcessStat | None:
    """Return the kernel's statistics for a process; None if there is none, or it belongs to another user."""
    return procfs.read_stat(pid) if sys.platform == "linux" else _read_by_psutil(pid)


def _stats_of(
    engine: EngineProcess,
    members: Sequence[int],
    ports: tuple[bool | None, bool | None],
    before: EngineStats | None,
    *,
    loading: bool,
) -> EngineStats | None:
    """Return the stats of a family, `before` itself if they are equal; None if the engine has exited."""
    stats = [stat for pid in members if (stat := read_stat(pid)) is not None]
    if not stats:
        return None
    stat = stats[0] if len(stats) == 1 else _sum(stats)
    try:
        log_bytes = os.stat(engine.log_path).st_size  # noqa: PTH116 - faster than Path.stat by a third, for hundreds
    except OSError:
        log_bytes = 0
    disk_bytes = sum(procfs.read_disk_bytes(pid) for pid in members) if loading else 0
    listening, waiting = ports
    now = EngineStats(
        stat.state,
        stat.cpu_seconds,
        log_bytes=log_bytes,
        faults=stat.major_faults,
        resident_bytes=stat.resident_bytes,
        read_bytes=disk_bytes,
        listening=listening,
        waiting=waiting,
    )
    return before if now == before else now


def _sum(stats: Sequence[ProcessStat]) -> ProcessStat:
    states = [stat.state for stat in stats]
    return ProcessStat(
        state=next((letter for letter in ("T", "t", "R") if letter in states), states[0]),
        major_faults=sum(stat.major_faults for stat in stats),
        cpu_seconds=sum(stat.cpu_seconds for stat in stats),
        start_ticks=stats[0].start_ticks,
        resident_bytes=sum(stat.resident_bytes for stat in stats),
    )


def _read_by_psutil(pid: int) -> ProcessStat | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            letter = _LETTERS.get(process.status(), "S")
            cpu_seconds = times.user + times.system
            return ProcessStat(letter, getattr(memory, "pageins", 0), cpu_seconds, 0, memory.rss)
    except (psutil.Error, SystemError):  # SystemError: reaped while psutil 7.2 read it on macOS (psutil issue 2854)
        return None


def _accepts(host: str, port: int) -> bool | None:
    """Whether a listener accepts connections, or has a full backlog for the moment.

    None: this host has no file descriptor or local port left to connect with.
    """
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except TimeoutError:
        return True
    except OSError as error:
        return None if error.errno in LOCAL_CONNECT_ERRNOS else False
    return True
