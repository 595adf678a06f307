"""An engine process, spawned or adopted: it has its own session, writes to a file, and is stopped in bounded time.

The two differ in how an exit is detected and in who reaps the process (init reaps an adopted one). Everything else is
the same code.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import psutil
import structlog
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.full_disk import full_disk, is_disk_full
from llmkube.base.private_files import make_private_folder
from llmkube.base.waiting import wait_any
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.engine.key_file import write_keys
from llmkube.supervisor.engine.logfile import open_for_append, read_first_lines, read_lines, rotate
from llmkube.supervisor.engine.process_stats import EngineProcess, Sampler
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.exit_events import UNKNOWN_EXIT, ExitEvent
from llmkube.supervisor.host.linux import oom_kills
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.lifecycle import Exit
from llmkube.supervisor.values.liveness import EngineStats
from llmkube.supervisor.values.ports import Command, Grace, Shutdown

log = structlog.get_logger(__name__)

FAMILY_POLL_SECONDS = 0.1
"""Time between two scans for processes that carry the engine's cookie and have been signalled."""

KILL_SECONDS = 10.0
"""Time that the kernel may take to end a process after KILL; one in uninterruptible sleep is then abandoned and
reported. macOS takes 4 s to release 373 GiB of a GPU (oMLX issue 2184)."""

RECORD_SECONDS = 2.0
"""Time that recording such a process may take."""

RETRY_SECONDS = 1.0
"""Time between two attempts to inspect a process when this host has no file descriptor left."""


class SpawnError(ExternalError):
    """The program could not be started."""


class DiskFullError(ExternalError):
    """The disk is full: an engine's log or keys cannot be written."""

    reason = Reason.NO_SPACE


class AdoptError(ExternalError):
    """The process to adopt has exited."""

    reason = Reason.ENGINE_EXITED


@attrs.define(eq=False)
class OwnedProcess:
    """A running engine; the real implementation of `supervisor.values.ports.Child`.

    `wait` returns its exit; it waits on a pidfd or kqueue, and so costs nothing while the engine runs.
    `record_activity` is called when a sample shows that the engine loads or computes.
    """

    pid: int
    started: str
    log_offset: int
    _log_path: Path
    wait: Callable[[], Awaitable[Exit]]
    _log_cap_bytes: int
    sampler: Sampler
    _kills_before: int = attrs.field(factory=oom_kills)
    _engine: EngineProcess | None = None
    _oom_killed: int = 0
    record_activity: Callable[[], None] = lambda: None

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the last lines that this attempt wrote, without those of earlier attempts in the same file."""
        return await trio.to_thread.run_sync(read_lines, self._log_path, self.log_offset, count, abandon_on_cancel=True)

    async def first_lines(self) -> tuple[str, ...]:
        """Return the first lines that this attempt wrote: those of its load."""
        return await trio.to_thread.run_sync(read_first_lines, self._log_path, self.log_offset, abandon_on_cancel=True)

    async def rename_log(self, path: Path) -> None:
        """Rename its log file; the engine continues to write to it, since it holds it open."""
        try:
            await trio.to_thread.run_sync(self._log_path.replace, path)
        except FileNotFoundError:  # renamed before, by an agent that could not record it any more
            self._log_path = path
        except OSError as error:
            log.warning("log not renamed", path=str(self._log_path), error=str(error))
        else:
            self._log_path = path

    async def listens(self, port: int) -> bool:
        """Whether it, or one of its descendants, accepts connections on this port."""
        return await trio.to_thread.run_sync(processes.listens, self.pid, port, abandon_on_cancel=True)

    async def read_stats(self, host: str, port: int, *, loading: bool) -> EngineStats | None:
        """Return the kernel's statistics for it and its descendants; one sample serves all engines of the host.

        This also rotates a log that has outgrown its cap, so that hundreds of idle engines need no separate check.
        """
        stats = await self.sampler.sample(self._engine_at(host, port), loading=loading)
        if stats is not None and loading:
            self.record_activity()
        if stats is not None and stats.log_bytes > self._log_cap_bytes:
            await trio.to_thread.run_sync(rotate, self._log_path, self._log_cap_bytes)
        return stats

    def read_stats_nowait(self, host: str, port: int) -> EngineStats | None:
        """Return the same without waiting; None also if its log must be rotated."""
        stats = self.sampler.sample_nowait(self._engine_at(host, port))
        return stats if stats is not None and stats.log_bytes <= self._log_cap_bytes else None

    def _engine_at(self, host: str, port: int) -> EngineProcess:
        known = self._engine
        if known is None or (known.host, known.port, known.log_path) != (host, port, self._log_path):
            self._engine = known = EngineProcess(self.pid, host, port, self._log_path)
        return known

    def memory_kills(self) -> int:
        """Return how many processes the kernel has killed for lack of memory since this engine is watched."""
        return self._oom_killed + oom_kills() - self._kills_before

    def record_exit(self, exit_event: ExitEvent, code: int | None) -> Exit:
        """Return its exit, and record whether the kernel killed it for lack of memory.

        On Linux a counter has the latter; macOS has no counter, but reports it at the exit.
        """
        self._oom_killed = int(exit_event.for_memory)
        return Exit(code, for_signature=exit_event.for_signature)


@attrs.frozen
class Termination:
    """The rules for stopping an engine.

    Attributes:
        cookie: Its mark: every process that carries it is stopped, too, even in another session.
        grace: The time between TERM and KILL.
        shutdown: Whether it is stopped at all.
        on_survivor: Called with the pid and start of a process that survives KILL; blocks, and may raise OSError.
    """

    cookie: str
    grace: Grace
    shutdown: Shutdown
    on_survivor: Callable[[int, str], None] | None = None


@asynccontextmanager
async def open_child(
    command: Command,
    termination: Termination,
    *,
    log_cap_bytes: int,
    sampler: Sampler | None = None,
    check: Callable[[], None] = lambda: None,
) -> AsyncIterator[OwnedProcess]:
    """Run a process; leaving the context stops it and everything that it has started, in bounded time.

    The output goes directly to an append-only file, not through a pipe: a pipe without a reader stalls the engine, and
    does not survive the agent. The child leads its own session, so that neither Ctrl-C in the terminal nor launchd's
    sweep of our process group reaches it; only this context stops it.

    Args:
        command: The process to start.
        termination: The rules for stopping it.
        log_cap_bytes: The size above which its log is rotated.
        sampler: Reads its statistics.
        check: Called first, in the thread that opens the log; its exceptions are raised here.

    Raises:
        SpawnError: The program does not exist or may not be run, or its log or keys cannot be written.
        DiskFullError: Its log or keys cannot be written because the disk is full.
    """
    try:
        offset, output = await trio.to_thread.run_sync(_prepare, command, check)
    except OSError as error:
        at = error.filename or command.log_path
        if is_disk_full(error):
            why = full_disk(command.log_path.parent)
            raise DiskFullError(f"cannot write {at}, which the engine needs: {why}") from error
        raise SpawnError(f"cannot write {at}, which the engine needs: {error.strerror or error}") from error
    try:
        process = await processes.spawn(command.argv, output, env=command.env, cwd=command.work_dir)
    except OSError as error:
        raise SpawnError(f"cannot start {command.argv[0]}: {error.strerror or error}") from error
    finally:
        os.close(output)

    async def wait() -> Exit:
        code, exit_event = await processes.wait_child(process)
        return child.record_exit(exit_event, code)

    started = processes.start_of(process.pid)
    child = OwnedProcess(process.pid, started, offset, command.log_path, wait, log_cap_bytes, sampler or Sampler())
    del command  # its environment takes kilobytes, and there may be hundreds of engines
    try:
        yield child
    finally:
        await _end(child, termination)  # noqa: ASYNC102 - it shields itself, with a deadline


def _prepare(command: Command, check: Callable[[], None]) -> tuple[int, int]:
    """Write the engine's files, and return the size of its log and a descriptor for it; blocks."""
    check()
    make_private_folder(command.work_dir)
    if command.keys_path is not None:
        write_keys(command.keys_path, command.api_keys)
    return open_for_append(command.log_path)


@asynccontextmanager
async def adopt_child(
    record: EngineRecord,
    log_path: Path,
    termination: Termination,
    *,
    log_cap_bytes: int,
    sampler: Sampler | None = None,
) -> AsyncIterator[OwnedProcess]:
    """Take over a process that an earlier agent started; from then on it is treated as our own.

    If it cannot be inspected, because this host has no file descriptor left, this waits: the process has not exited,
    and a second one must not be started.

    Raises:
        AdoptError: It has exited.
    """
    async with AsyncExitStack() as stack:
        wait_exit: Callable[[], Awaitable[ExitEvent]] = partial(_poll_exit, record)

        async def wait() -> Exit:
            exit_event = await wait_exit()
            return child.record_exit(exit_event, exit_event.code)

        child = OwnedProcess(
            record.pid, record.started, record.log_offset, log_path, wait, log_cap_bytes, sampler or Sampler()
        )
        try:
            wait_exit = await _open_watch(record, stack)
        except trio.Cancelled:  # it must stop before it could be inspected, and no other scope owns it
            await _end(child, termination)  # noqa: ASYNC102, ASYNC120 (it shields itself, with a deadline)
            raise
        try:
            yield child
        finally:
            await _end(child, termination)  # noqa: ASYNC102 - it shields itself, with a deadline


async def _poll_exit(record: EngineRecord) -> ExitEvent:
    while not processes.is_gone(record.pid) and processes.start_of(record.pid) in {"", record.started}:  # noqa: ASYNC110
        await trio.sleep(RETRY_SECONDS)
    return UNKNOWN_EXIT


async def _open_watch(record: EngineRecord, stack: AsyncExitStack) -> Callable[[], Awaitable[ExitEvent]]:
    """Return a function that waits for its exit, as soon as this host has a file descriptor for it."""
    reported = False
    while True:
        try:
            wait_exit = await stack.enter_async_context(processes.open_exit_watch(record.pid))
            break
        except ProcessLookupError as error:
            raise AdoptError(f"process {record.pid} has exited") from error
        except OSError as error:
            if not reported:
                log.warning("engine exit watch failed; retrying", pid=record.pid, error=str(error))
            reported = True
        await trio.sleep(RETRY_SECONDS)
    while (started := processes.start_of(record.pid)) != record.started:
        if started or processes.is_gone(record.pid):
            raise AdoptError(f"process {record.pid} has exited")
        await trio.sleep(RETRY_SECONDS)
    return wait_exit


async def _end(child: OwnedProcess, termination: Termination) -> None:
    """Stop the process, its group, and all others that carry its cookie: TERM, grace, KILL; in bounded time.

    A shutdown that keeps engines keeps them all.
    Processes in other sessions are found by the cookie once the leader is gone, and get the rest of the grace: a helper
    that survives may hold the model's memory.
    """
    if termination.shutdown.keep:
        return
    signal_group = partial(processes.send_group, child.pid, child.started)
    gentle = False

    async def end_gently() -> None:
        nonlocal gentle
        signal_group(signal.SIGTERM)
        signal_group(signal.SIGCONT)  # a stopped process receives TERM only when it continues
        await child.wait()
        signal_group(signal.SIGKILL)
        await _end_family(child, termination.cookie, signal.SIGTERM)
        gentle = True

    with trio.move_on_after(termination.grace.seconds + KILL_SECONDS, shield=True) as bound:
        await wait_any(end_gently, termination.grace.wait_expired)
        if not gentle:
            signal_group(signal.SIGKILL)
            await _end_family(child, termination.cookie, signal.SIGKILL)
            await child.wait()
    if bound.cancelled_caught:
        log.error("engine stuck in the kernel; abandoned", pid=child.pid)
    if bound.cancelled_caught and termination.on_survivor is not None:
        with trio.move_on_after(RECORD_SECONDS, shield=True):
            try:  # on a dead disk the record is lost, but the stop continues
                await trio.to_thread.run_sync(termination.on_survivor, child.pid, child.started, abandon_on_cancel=True)
            except OSError as error:
                log.warning("stuck engine not recorded", pid=child.pid, error=str(error))


async def _end_family(child: OwnedProcess, cookie: str, number: signal.Signals) -> None:
    """Signal all processes that carry the cookie, each once, and return when none is left."""
    signalled: set[psutil.Process] = set()
    while True:
        try:
            family = set(await child.sampler.cookies.marked_processes(cookie))
        except OSError:  # no file descriptor is left: processes that cannot be listed may still run
            await trio.sleep(FAMILY_POLL_SECONDS)
            continue
        if not family:
            return
        for process in family - signalled:
            processes.send(process, number)
        signalled |= family
        await trio.sleep(FAMILY_POLL_SECONDS)
