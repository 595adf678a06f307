"""A process that we own, from spawn to reap: its own session, its output in a file, an end that is always bounded."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import structlog
import trio

from llmkube.base.errors import WorldError
from llmkube.base.tick import wait_tick
from llmkube.supervisor.lifecycle import Exit
from llmkube.supervisor.logfile import open_for_append, read_lines, rotate
from llmkube.supervisor.ports import Command

log = structlog.get_logger(__name__)

ROTATE_SECONDS = 10.0
KILL_SECONDS = 5.0
"""How long the kernel may take to end a process after KILL; one in uninterruptible sleep is left, and said so."""


class SpawnError(WorldError):
    """The program could not be started at all."""


@attrs.define(eq=False)
class OwnedChild:
    """A running child; `supervisor.ports.Child` for real."""

    _process: trio.Process
    _command: Command
    _log_offset: int

    @property
    def pid(self) -> int:
        """Its process id, which is also its session and process group."""
        return self._process.pid

    async def wait(self) -> Exit:
        """Return how it ended; Trio waits on a pidfd or kqueue, so this costs nothing while it runs."""
        return Exit(await self._process.wait())

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines that this incarnation wrote; lines of earlier ones in the same file are not shown."""
        return await trio.to_thread.run_sync(read_lines, self._command.log_path, self._log_offset, count)


@asynccontextmanager
async def open_child(command: Command, *, grace_seconds: float, log_cap_bytes: int) -> AsyncIterator[OwnedChild]:
    """Run a process; leaving the context ends it and everything in its process group, in bounded time.

    The output goes straight to an append-only file and not through a pipe: a pipe that nobody reads stalls the engine,
    and a pipe dies with the agent. The child leads a session of its own, so that neither the terminal's Ctrl-C nor
    launchd's sweep of our process group reaches it; ending it is our business alone.

    Raises:
        SpawnError: There is no such program, or it may not be run.
    """
    offset, output = await trio.to_thread.run_sync(open_for_append, command.log_path)
    try:
        command.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_log_small, command.log_path, log_cap_bytes)
            yield OwnedChild(process, command, offset)
            nursery.cancel_scope.cancel(reason="the child is no longer needed")
    finally:
        await _end(process, grace_seconds)  # noqa: ASYNC102 - it shields itself, with a deadline


async def _keep_log_small(path: Path, cap_bytes: int) -> None:
    while True:
        await wait_tick(ROTATE_SECONDS)
        await trio.to_thread.run_sync(rotate, path, cap_bytes)


async def _end(process: trio.Process, grace_seconds: float) -> None:
    """TERM the group, give it its grace, KILL what is left, reap; never longer than grace plus `KILL_SECONDS`."""
    with trio.move_on_after(grace_seconds + KILL_SECONDS, shield=True) as bound:
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            with trio.move_on_after(grace_seconds):
                await process.wait()
        # Even after the leader's own exit: a helper that it started may still hold the model's memory.
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()
    if bound.cancelled_caught:
        log.error("process does not die", pid=process.pid)


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a process group that we made; one that is gone already is what we wanted."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        log.debug("process group is gone", pid=pid)
