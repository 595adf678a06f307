"""What the kernel says of processes: which one is which, whose they are, when one ends that is not our child.

A pid alone names no process: it is used again. A process is known by its pid and the moment of its start, and it is
ours if it carries our mark in its environment, which exec puts there and which its children inherit, whatever sessions
they make. macOS hides the environment of its own programs, such as the `/bin/sh` of a wrapper script: one of those is
ours if it leads the session of a process that is.

All of this blocks for milliseconds (one look at every process): callers come through a worker thread.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import psutil
import structlog
import trio

from llmkube.base.errors import RESOURCE_ERRNOS
from llmkube.supervisor.host import procfs
from llmkube.supervisor.host.exit_events import REAP_SECONDS, UNKNOWN_EXIT, ExitEvent, Kqueue, wait_exit

log = structlog.get_logger(__name__)

OWNER_VARIABLE = "LLMKUBE_AGENT_STATE"
"""Set in every engine's environment to its agent's state directory."""

COOKIE_VARIABLE = "LLMKUBE_ENGINE"
"""Set in every engine's environment to a text that no other engine has."""


def start_of(pid: int) -> str:
    """Return what tells a process from a later one with the same pid; "" when there is none.

    On Linux the clock ticks between boot and start, with the boot's id: unlike a wall-clock time they do not move when
    the clock is set. On macOS the kernel keeps the time of the start itself; psutil's public `create_time` moves
    it by however much the clock has been set since psutil was imported, and the next agent would not know it again.
    """
    if sys.platform == "linux":
        stat = procfs.read_stat(pid)
        try:
            return f"{procfs.read_boot_id()}:{stat.start_ticks}" if stat is not None else ""
        except OSError:
            return ""
    try:
        return repr(psutil.Process(pid)._proc.create_time(monotonic=True))  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001 - see above
    except (psutil.Error, SystemError):  # SystemError as in `_mark`
        return ""


def is_gone(pid: int) -> bool:
    """Whether there is certainly no process of this number; unlike a look at it, the question takes no descriptor."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return False


def find_marked(variable: str, value: str) -> list[psutil.Process]:
    """Return every process but this one that carries a mark, and who hides it; other users' cannot be read.

    Raises:
        OSError: No descriptor is left for the look.
    """
    return marked_processes(variable).get(value, [])


def cookie_of(process: psutil.Process) -> str:
    """Return the cookie that a process carries, or ""."""
    return _mark(process, COOKIE_VARIABLE)


def session_of(process: psutil.Process) -> int:
    """Return the pid of its session's leader, which is the process that the agent has started; 0 when it has gone."""
    try:
        return os.getsid(process.pid)
    except OSError:
        return 0


def marked_processes(variable: str) -> dict[str, list[psutil.Process]]:
    """Return every process but this one that carries a mark, and who hides it, by what the mark says.

    Raises:
        OSError: No descriptor is left for the look.
    """
    candidates = _candidates(f"{variable}=") if sys.platform == "linux" else _all_processes()
    found: dict[str, list[psutil.Process]] = {}
    for process in candidates:
        if process.pid != os.getpid() and (value := _mark(process, variable)):
            found.setdefault(value, []).append(process)
    return {value: [*family, *_hidden_leaders(family)] for value, family in found.items()}


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one below it, accepts connections on a TCP port.

    Nearly always it is the process itself: those below it are looked for, among all of the host's, only if it is not.
    Who may not be looked at (no descriptor is left, or its program has capabilities) is believed to do so.
    """
    return _listens(pid, port) or any(_listens(below, port) for below in families([pid])[pid])


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Signal exactly this process: psutil compares the start time first, so a recycled pid is left alone."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def send_group(pid: int, started: str, number: signal.Signals) -> None:
    """Signal a process group that we made; one that is gone already is what we wanted.

    While a process is in a group its number is given to no other one. So a process of that number which began at
    another time means that the group is gone, and that its number belongs to another one.

    Args:
        pid: The group's first process, and its number.
        started: `start_of` that process; "" where that could not be seen.
        number: The signal.
    """
    if started and start_of(pid) not in {"", started}:
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        log.debug("process group is gone", pid=pid)


def end_all(orphans: list[psutil.Process], *, grace_seconds: float) -> list[psutil.Process]:
    """End processes in one grace period for all of them: TERM, wait, KILL. Blocks that long at most, twice.

    Returns:
        Those that run even so: stuck in the kernel.
    """
    for process in orphans:
        log.warning("ending a process that an earlier agent left behind", pid=process.pid)
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)  # a stopped one gets TERM only when it goes on
    _, alive = psutil.wait_procs(orphans, timeout=grace_seconds)
    for process in alive:
        send(process, signal.SIGKILL)
    _, alive = psutil.wait_procs(alive, timeout=grace_seconds)
    return list(alive)


@asynccontextmanager
async def open_exit_watch(pid: int, events: Kqueue | None = None) -> AsyncIterator[Callable[[], Awaitable[ExitEvent]]]:
    """Give a function that returns when a process has ended, whichever its parent is; an event, not a poll.

    Open it, then look at `start_of(pid)`: from then on it is that process that is watched, and not a later one. On
    macOS that holds from the first wait on, since kqueue knows processes by their number only.

    Args:
        pid: The process.
        events: Who tells of ends; None is this platform's way.

    Raises:
        ProcessLookupError: There is no such process.
        OSError: No descriptor is left to watch it with.
    """
    if sys.platform == "linux":
        descriptor = os.pidfd_open(pid)
        try:
            lock = trio.Lock()  # Trio lets one task wait on a descriptor; a pidfd stays readable for the next one

            async def wait() -> ExitEvent:
                async with lock:
                    await trio.lowlevel.wait_readable(descriptor)
                return UNKNOWN_EXIT

            yield wait
        finally:
            os.close(descriptor)
    else:
        started = start_of(pid)
        if is_gone(pid):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        lock, end = trio.Lock(), None
        source = Kqueue() if events is None else events

        def has_ended() -> bool:
            return is_gone(pid) or start_of(pid) not in {"", started}

        async def wait() -> ExitEvent:
            nonlocal end
            async with lock:
                if end is None:  # its number may be another one's by now
                    end = await wait_exit(source, pid, has_ended)
            return end

        yield wait


async def wait_child(process: trio.Process, events: Kqueue | None = None) -> tuple[int, ExitEvent]:
    """Return the code of a child that has ended, and what the kernel tells beside it; never blocks the event loop.

    Args:
        process: The child.
        events: Who tells of ends; None is this platform's way.
    """
    if sys.platform == "linux":
        return await process.wait(), UNKNOWN_EXIT  # Trio waits on a pidfd
    # Not Trio's way: a child whose exit has begun is hidden from kqueue, and Trio calls a blocking wait in the loop.
    exit_event = UNKNOWN_EXIT
    if process.poll() is None:
        source = Kqueue() if events is None else events
        exit_event = await wait_exit(source, process.pid, lambda: process.poll() is not None)
    while (code := process.poll()) is None:  # noqa: ASYNC110 - told of before it can be reaped
        await trio.sleep(REAP_SECONDS)
    return code, exit_event


def families(leaders: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the processes below each of these, however deep."""
    below: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)
    return {leader: tuple(_descendants(leader, below)) for leader in leaders}


def _candidates(entry: str) -> Iterator[psutil.Process]:
    """Yield the processes whose environment may hold an entry, with a fraction of the system calls that psutil makes.

    Each of them may cost a worker thread its turn while the event loop is busy.

    Raises:
        OSError: No descriptor is left, and a process that could not be read may have it.
    """
    wanted = os.fsencode(entry)
    for pid in procfs.list_pids():
        try:
            if wanted in procfs.read_environment(pid):
                yield psutil.Process(pid)
        except psutil.Error:
            continue
        except OSError as error:  # another user's, or gone since
            if error.errno in RESOURCE_ERRNOS:
                raise


def _mark(process: psutil.Process, variable: str) -> str:
    try:
        mark: str = process.environ().get(variable, "")
    except (psutil.Error, OSError):  # another user's, or gone since
        return ""
    except SystemError:  # reaped while psutil 7.2 read it on macOS (psutil issue 2854)
        return ""
    return mark


def _hidden_leaders(family: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    """Yield those that lead a session of these and whose environment macOS hides; never the shell of a terminal."""
    if sys.platform == "linux":
        return  # hides none of our own user's
    for pid in {session_of(each) for each in family} - {0, os.getsid(0), *(each.pid for each in family)}:
        try:
            leader = psutil.Process(pid)
            hidden = not leader.environ()
        except psutil.AccessDenied:
            hidden = True
        except (psutil.Error, OSError, SystemError):  # SystemError as in `_mark`
            continue
        with contextlib.suppress(psutil.Error, OSError, SystemError):
            if hidden and leader.uids().real == os.getuid() and leader.terminal() is None:
                yield leader


def _listens(pid: int, port: int) -> bool:
    try:
        links = psutil.Process(pid).net_connections("tcp")
        return any(link.status == psutil.CONN_LISTEN and link.laddr.port == port for link in links)
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OSError):
        return True


def _descendants(pid: int, below: Mapping[int, list[int]]) -> Iterator[int]:
    for child in below.get(pid, ()):
        yield child
        yield from _descendants(child, below)


def _parents() -> dict[int, int]:
    if sys.platform != "linux":
        return dict(_parents_by_psutil())
    try:
        pids = procfs.list_pids()
    except OSError:  # no descriptor is left on this host; the caller looks again later
        return {}
    return {pid: parent for pid in pids if (parent := procfs.read_parent(pid)) is not None}


def _all_processes() -> Iterator[psutil.Process]:
    """Yield every process that is there when its turn comes; `psutil.process_iter` would end at the first error."""
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
        except (psutil.Error, SystemError):  # SystemError as in `_mark`
            continue
        yield process


def _parents_by_psutil() -> Iterator[tuple[int, int]]:
    for process in _all_processes():
        try:
            parent = process.ppid()
        except (psutil.Error, SystemError):  # SystemError as in `_mark`
            continue
        yield process.pid, parent


def footprints(pids: Sequence[int], own_bytes: Callable[[int], int | None]) -> dict[int, int]:
    """Return what each of these processes uses together with all below it; blocks.

    Those that hold nothing are left out: a process that is about to end holds nothing before its end is known.

    Args:
        pids: The leaders.
        own_bytes: What a single process uses; None when it has ended, or may not be looked at.
    """
    below = families(pids)
    used = {pid: [own_bytes(member) for member in (pid, *below[pid])] for pid in pids}
    return {pid: sum(filter(None, sizes)) for pid, sizes in used.items() if any(sizes)}


def interface_addresses() -> list[str]:
    """Return every IP address of every interface, as it is now.

    Raises:
        OSError: It cannot be asked: no descriptor is left for the question.
    """
    interfaces, families = psutil.net_if_addrs().values(), {socket.AF_INET, socket.AF_INET6}
    return [entry.address for entries in interfaces for entry in entries if entry.family in families]
