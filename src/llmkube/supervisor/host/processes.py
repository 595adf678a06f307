"""Processes of this machine: their identity, our marks on them, and exits of those that are not our children.

A pid alone does not identify a process, since it is reused. A process is identified by its pid and start time, and it
is ours if it carries our mark in its environment, which its descendants inherit in any session. macOS hides the
environment of its own programs, such as the `/bin/sh` of a wrapper script: one of those is ours if it leads the session
of a process that is.

A scan of all processes blocks for milliseconds, so callers use a worker thread.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import psutil
import trio

from llmkube.base.errors import RESOURCE_ERRNOS
from llmkube.base.lazy_log import LazyLog
from llmkube.supervisor.host import procfs
from llmkube.supervisor.host.exit_events import REAP_SECONDS, UNKNOWN_EXIT, ExitEvent, Kqueue, wait_exit

log = LazyLog()

OWNER_VARIABLE = "LLMKUBE_AGENT_STATE"
"""Set in every engine's environment to its agent's state directory."""

COOKIE_VARIABLE = "LLMKUBE_ENGINE"
"""Set to a unique value in each engine's environment."""


def start_of(pid: int) -> str:
    """Return the start of a process, which distinguishes it from a later one with the same pid; "" if there is none.

    On Linux this is the boot id and the clock ticks from boot to start, which do not change when the clock is set. On
    macOS the kernel stores the time of the start. psutil's public `create_time` adds to it any change of the clock
    since psutil was imported, so the next agent would get another value.
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
    """Whether there is certainly no process with this pid; needs no file descriptor."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # otherwise it is another user's
    return False


def find_marked(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes with this value of a mark, as `marked_processes` does.

    Raises:
        OSError: No file descriptor is left for the scan.
    """
    return marked_processes(variable).get(value, [])


def cookie_of(process: psutil.Process) -> str:
    """Return the cookie that a process carries, or ""."""
    return _mark(process, COOKIE_VARIABLE)


def session_of(process: psutil.Process) -> int:
    """Return the pid of its session's leader, which is the process that the agent started; 0 if it is gone."""
    try:
        return os.getsid(process.pid)
    except OSError:
        return 0


def marked_processes(variable: str) -> dict[str, list[psutil.Process]]:
    """Return all processes but this one that carry a mark, and session leaders that hide it, by value of the mark.

    Processes of other users cannot be read.

    Raises:
        OSError: No file descriptor is left for the scan.
    """
    candidates = _candidates(f"{variable}=") if sys.platform == "linux" else _all_processes()
    found: dict[str, list[psutil.Process]] = {}
    for process in candidates:
        if process.pid != os.getpid() and (value := _mark(process, variable)):
            found.setdefault(value, []).append(process)
    return {value: [*family, *_hidden_leaders(family)] for value, family in found.items()}


def listens(pid: int, port: int) -> bool:
    """Whether a process or one of its descendants accepts connections on a TCP port.

    It is nearly always the process itself, so descendants are looked up only otherwise. A process that cannot be
    inspected (no file descriptor is left, or its program has capabilities) is assumed to listen.
    """
    return _listens(pid, port) or any(_listens(below, port) for below in families([pid])[pid])


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Signal exactly this process: psutil compares the start time first, so a recycled pid is not signalled."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def send_group(pid: int, started: str, number: signal.Signals) -> None:
    """Signal a process group that we created; ignore one that is gone.

    The number of a group is not reused while a process is in it. So if the process with that number has another
    start time, the group is gone, and another process has its number.

    Args:
        pid: The group's first process, and its number.
        started: `start_of` that process; "" if it is unknown.
        number: The signal.
    """
    if started and start_of(pid) not in {"", started}:
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        log.debug("process group gone", pid=pid)


def end_all(orphans: list[psutil.Process], *, grace_seconds: float) -> list[psutil.Process]:
    """Stop processes with a common grace period: TERM, wait, KILL, wait. Blocks for at most twice that period.

    Returns:
        Those that survive, stuck in the kernel.
    """
    for process in orphans:
        log.warning("orphan signalled", pid=process.pid)
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)  # a stopped process receives TERM only when it continues
    _, alive = psutil.wait_procs(orphans, timeout=grace_seconds)
    for process in alive:
        send(process, signal.SIGKILL)
    _, alive = psutil.wait_procs(alive, timeout=grace_seconds)
    return list(alive)


@asynccontextmanager
async def open_exit_watch(pid: int, events: Kqueue | None = None) -> AsyncIterator[Callable[[], Awaitable[ExitEvent]]]:
    """Yield a function that waits until a process has exited, whether or not it is a child; it does not poll.

    Check `start_of(pid)` after opening it: from then on that process is watched, not a later one with its pid. On macOS
    this applies from the first wait on, since kqueue identifies processes by pid only.

    Args:
        pid: The process.
        events: The source of exit events on macOS; None for its kqueue.

    Raises:
        ProcessLookupError: There is no such process.
        OSError: No file descriptor is left to watch it.
    """
    if sys.platform == "linux":
        descriptor = os.pidfd_open(pid)
        try:
            lock = trio.Lock()  # Trio allows one task to wait on a descriptor; a pidfd stays readable for the next one

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
                if end is None:  # once it has exited, its pid may belong to another process
                    end = await wait_exit(source, pid, has_ended)
            return end

        yield wait


async def spawn(
    argv: Sequence[str], output: int, *, env: Mapping[str, str] | None = None, cwd: Path | str | None = None
) -> trio.Process:
    """Start a process in a session of its own, without input; `output` gets its output and its errors.

    Raises:
        OSError: It cannot be started.
    """
    return await trio.lowlevel.open_process(
        argv, env=env, cwd=cwd, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
    )


async def wait_child(process: trio.Process, events: Kqueue | None = None) -> tuple[int, ExitEvent]:
    """Wait for a child; return its exit code and details from the kernel. Never blocks the event loop.

    Args:
        process: The child.
        events: The source of exit events on macOS; None for its kqueue.
    """
    if sys.platform == "linux":
        return await process.wait(), UNKNOWN_EXIT  # Trio waits on a pidfd
    # Not `process.wait`: a child whose exit has begun is hidden from kqueue, and Trio then blocks the event loop.
    exit_event = UNKNOWN_EXIT
    if process.poll() is None:
        source = Kqueue() if events is None else events
        exit_event = await wait_exit(source, process.pid, lambda: process.poll() is not None)
    while (code := process.poll()) is None:  # noqa: ASYNC110 - it is reported before it can be reaped
        await trio.sleep(REAP_SECONDS)
    return code, exit_event


def families(leaders: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return all descendants of each of these processes."""
    below: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)
    return {leader: tuple(_descendants(leader, below)) for leader in leaders}


def _candidates(entry: str) -> Iterator[psutil.Process]:
    """Yield the processes whose environment may contain an entry, with a fraction of psutil's system calls.

    Each system call may cost a worker thread its turn while the event loop is busy.

    Raises:
        OSError: No file descriptor is left, so a process with the entry may have been missed.
    """
    wanted = os.fsencode(entry)
    for pid in procfs.list_pids():
        try:
            if wanted in procfs.read_environment(pid):
                yield psutil.Process(pid)
        except psutil.Error:
            continue
        except OSError as error:  # it belongs to another user, or has exited
            if error.errno in RESOURCE_ERRNOS:
                raise


def _mark(process: psutil.Process, variable: str) -> str:
    try:
        return str(process.environ().get(variable, ""))
    except (psutil.Error, OSError, SystemError):  # of another user, or gone; SystemError: psutil issue 2854 on macOS
        return ""


def _hidden_leaders(family: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    """Yield leaders of the family's sessions whose environment macOS hides; never the shell of a terminal."""
    if sys.platform == "linux":
        return  # Linux shows the environment of all processes of our user
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
    except OSError:  # no file descriptor is left; the caller tries again later
        return {}
    return {pid: parent for pid in pids if (parent := procfs.read_parent(pid)) is not None}


def _all_processes() -> Iterator[psutil.Process]:
    """Yield all processes, skipping those that exit meanwhile; `psutil.process_iter` would stop at the first error."""
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
    """Return the memory of each of these processes and its descendants; blocks.

    Those without memory are left out: an exiting process has none before its exit is known.

    Args:
        pids: The leaders.
        own_bytes: Returns the memory of a single process; None if it has exited or may not be read.
    """
    below = families(pids)
    used = {pid: [own_bytes(member) for member in (pid, *below[pid])] for pid in pids}
    return {pid: sum(filter(None, sizes)) for pid, sizes in used.items() if any(sizes)}


def interface_addresses() -> list[str]:
    """Return the current IP addresses of all interfaces.

    Raises:
        OSError: No file descriptor is left for the query.
    """
    interfaces, families = psutil.net_if_addrs().values(), {socket.AF_INET, socket.AF_INET6}
    return [entry.address for entries in interfaces for entry in entries if entry.family in families]
