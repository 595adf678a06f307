"""A process of ours, spawned here or found and adopted: its own session, its output in a file, a bounded end.

The two differ in how an exit is noticed and in who reaps it (an adopted one is reaped by init). Everything after that
is the same code: what an adopted engine gets is what a child gets.
"""

import os
import signal
import subprocess
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
from llmkube.base.waiting import wait_any
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.engine.key_file import write_keys
from llmkube.supervisor.engine.logfile import open_for_append, read_lines, rotate
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
"""Between two looks at processes that have left their session and were asked to end."""

KILL_SECONDS = 10.0
"""How long the kernel may take to end a process after KILL; one in uninterruptible sleep is left, and said so. To give
back 373 GiB of a GPU takes macOS 4 s (oMLX issue 2184)."""

RECORD_SECONDS = 2.0
"""How long it may take to write that down."""

RETRY_SECONDS = 1.0
"""Between two tries to look at a process when this host has no descriptor left for that."""


class SpawnError(ExternalError):
    """The program could not be started at all."""


class DiskFullError(ExternalError):
    """The disk has no room for what an engine needs beside its process: its log, its keys."""

    reason = Reason.NO_SPACE


class AdoptError(ExternalError):
    """The process that was to be adopted is not there any more."""

    reason = Reason.ENGINE_EXITED


@attrs.define(eq=False)
class OwnedProcess:
    """A running engine; `supervisor.ports.Child` for real.

    `wait` returns how it ended; a pidfd or kqueue tells, so that costs nothing while it runs. `worked` is called when
    it was seen to load or to compute just now.
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
    worked: Callable[[], None] = lambda: None

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines that this attempt wrote; lines of earlier ones in the same file are not shown."""
        return await trio.to_thread.run_sync(read_lines, self._log_path, self.log_offset, count, abandon_on_cancel=True)

    async def rename_log(self, path: Path) -> None:
        """Have its log file called otherwise; it goes on writing into it, since it holds it open.

        One that is not there under its old name has been renamed before, by an agent that could not note it any more.
        """
        try:
            await trio.to_thread.run_sync(self._log_path.replace, path)
        except FileNotFoundError:
            self._log_path = path
        except OSError as error:
            log.warning("log not renamed", path=str(self._log_path), error=str(error))
        else:
            self._log_path = path

    async def listens(self, port: int) -> bool:
        """Whether it, or a process below it, accepts connections on this port."""
        return await trio.to_thread.run_sync(processes.listens, self.pid, port, abandon_on_cancel=True)

    async def read_stats(self, host: str, port: int, *, loading: bool) -> EngineStats | None:
        """What the kernel says of it and all below it; one look for all engines of the host.

        A log that is seen to have outgrown its cap is rotated: so hundreds of idle engines cost no look of their own.
        """
        stats = await self.sampler.sample(self._engine_at(host, port), loading=loading)
        if stats is not None and loading:
            self.worked()
        if stats is not None and stats.log_bytes > self._log_cap_bytes:
            await trio.to_thread.run_sync(rotate, self._log_path, self._log_cap_bytes)
        return stats

    def read_stats_nowait(self, host: str, port: int) -> EngineStats | None:
        """The same without waiting; None also when its log has to be rotated."""
        stats = self.sampler.sample_nowait(self._engine_at(host, port))
        return stats if stats is not None and stats.log_bytes <= self._log_cap_bytes else None

    def _engine_at(self, host: str, port: int) -> EngineProcess:
        known = self._engine
        if known is None or (known.host, known.port, known.log_path) != (host, port, self._log_path):
            self._engine = known = EngineProcess(self.pid, host, port, self._log_path)
        return known

    def memory_kills(self) -> int:
        """How often the kernel has killed for want of memory around here since it is watched."""
        return self._oom_killed + oom_kills() - self._kills_before

    def record_exit(self, exit_event: ExitEvent) -> None:
        """Take in what the kernel tells of its end: macOS counts no kills, and names the one that this was."""
        self._oom_killed = int(exit_event.for_memory)


@attrs.frozen
class Termination:
    """How an engine is ended.

    Attributes:
        cookie: Its mark: every process that carries it is ended, too, whatever session it has made.
        grace: Between TERM and KILL.
        shutdown: Whether it is ended at all.
        on_survivor: Told the pid and the start of a process that runs even after KILL; blocks, and may raise OSError.
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
    """Run a process; leaving the context ends it and everything that it has started, in bounded time.

    The output goes straight to an append-only file and not through a pipe: a pipe without a reader stalls the engine,
    and a pipe ends with the agent. The child leads a session of its own, so that neither the terminal's Ctrl-C nor
    launchd's sweep of our process group reaches it; ending it is our business alone.

    Args:
        command: What to run.
        termination: How it is ended.
        log_cap_bytes: At which size its log is rotated.
        sampler: Reads what the kernel says of it.
        check: Called first, in the thread that opens the log; what it raises is raised here.

    Raises:
        SpawnError: There is no such program, it may not be run, or its log or its keys cannot be written.
        DiskFullError: They cannot, because the disk is full.
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
        process = await trio.lowlevel.open_process(
            command.argv,
            env=dict(command.env),
            cwd=command.work_dir,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise SpawnError(f"cannot start {command.argv[0]}: {error.strerror or error}") from error
    finally:
        os.close(output)

    async def wait() -> Exit:
        code, exit_event = await processes.wait_child(process)
        child.record_exit(exit_event)
        return Exit(code, for_signature=exit_event.for_signature)

    started = processes.start_of(process.pid)
    child = OwnedProcess(process.pid, started, offset, command.log_path, wait, log_cap_bytes, sampler or Sampler())
    async with _owned(child, termination):
        yield child


def _prepare(command: Command, check: Callable[[], None]) -> tuple[int, int]:
    """Write what it needs, and return the size of the log and its descriptor; blocks."""
    check()
    command.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    """Take over a process that an earlier agent has started; from here on it is treated as our own.

    Who cannot be looked at, because this host has no descriptor left, is waited for: it has not ended, and a second one
    is not to be started beside it.

    Raises:
        AdoptError: It has ended.
    """
    async with AsyncExitStack() as stack:
        wait_exit: Callable[[], Awaitable[ExitEvent]] = partial(_poll_exit, record)

        async def wait() -> Exit:
            exit_event = await wait_exit()
            child.record_exit(exit_event)
            return Exit(exit_event.code, for_signature=exit_event.for_signature)

        child = OwnedProcess(
            record.pid, record.started, record.log_offset, log_path, wait, log_cap_bytes, sampler or Sampler()
        )
        try:
            wait_exit = await _open_watch(record, stack)
        except trio.Cancelled:  # it has to go before it could be looked at, and no other scope owns it
            if not termination.shutdown.keep:
                await _end(child, termination)  # noqa: ASYNC102, ASYNC120 (it shields itself, with a deadline)
            raise
        async with _owned(child, termination):
            yield child


async def _poll_exit(record: EngineRecord) -> ExitEvent:
    while not processes.is_gone(record.pid) and processes.start_of(record.pid) in {"", record.started}:  # noqa: ASYNC110
        await trio.sleep(RETRY_SECONDS)
    return UNKNOWN_EXIT


async def _open_watch(record: EngineRecord, stack: AsyncExitStack) -> Callable[[], Awaitable[ExitEvent]]:
    """Return what tells of its end, as soon as this host has a descriptor for it."""
    notified = False
    while True:
        try:
            wait_exit = await stack.enter_async_context(processes.open_exit_watch(record.pid))
            break
        except ProcessLookupError as error:
            raise AdoptError(f"process {record.pid} has ended") from error
        except OSError as error:
            if not notified:
                log.warning("cannot watch the engine; will be repeated", pid=record.pid, error=str(error))
            notified = True
        await trio.sleep(RETRY_SECONDS)
    while (started := processes.start_of(record.pid)) != record.started:
        if started or processes.is_gone(record.pid):
            raise AdoptError(f"process {record.pid} has ended")
        await trio.sleep(RETRY_SECONDS)
    return wait_exit


@asynccontextmanager
async def _owned(child: OwnedProcess, termination: Termination) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if not termination.shutdown.keep:
            await _end(child, termination)  # noqa: ASYNC102 - it shields itself, with a deadline


async def _end(child: OwnedProcess, termination: Termination) -> None:
    """TERM, grace, KILL, reaped: the process, its group, and all others that carry its cookie; bounded.

    Those who have made a session of their own are found by the cookie once the leader is gone, and get what is left of
    the grace: a helper that survives may hold the model's memory.
    """
    signal_group = partial(processes.send_group, child.pid, child.started)
    gentle = False

    async def end_gently() -> None:
        nonlocal gentle
        signal_group(signal.SIGTERM)
        signal_group(signal.SIGCONT)  # a stopped one gets TERM only when it goes on
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
        log.error("the engine is stuck in the kernel and does not end", pid=child.pid)
    if bound.cancelled_caught and termination.on_survivor is not None:
        with trio.move_on_after(RECORD_SECONDS, shield=True):
            try:  # on a dead disk the note is lost, and not the stop
                await trio.to_thread.run_sync(termination.on_survivor, child.pid, child.started, abandon_on_cancel=True)
            except OSError as error:
                log.warning("stuck process not noted for the next agent", pid=child.pid, error=str(error))


async def _end_family(child: OwnedProcess, cookie: str, number: signal.Signals) -> None:
    """Signal all processes that carry the cookie, each once, and return when none does any more."""
    notified: set[psutil.Process] = set()
    while True:
        try:
            family = set(await child.sampler.cookies.marked_processes(cookie))
        except OSError:  # no descriptor is left: who cannot be seen has not ended
            await trio.sleep(FAMILY_POLL_SECONDS)
            continue
        if not family:
            return
        for process in family - notified:
            processes.send(process, number)
        notified |= family
        await trio.sleep(FAMILY_POLL_SECONDS)
