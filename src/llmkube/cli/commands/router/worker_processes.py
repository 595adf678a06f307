"""The worker processes of a router: started, started again with a back-off, and ended with their parent.

All accept from one socket that they inherit. With a socket each (SO_REUSEPORT), macOS gives all connections to one of
them, and on Linux those that a dead or stopped process has not accepted are lost; here the next one takes them, and
one that is busy takes fewer.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import UserError
from llmkube.cli.commands.router import worker
from llmkube.programs.config.router_config import RouterConfig
from llmkube.programs.program import Stop
from llmkube.router.proxy.router import LIMITS
from llmkube.router.workers.link import Link
from llmkube.router.workers.parent import Parent

AGAIN: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)
STEADY_SECONDS: Final = 60.0
"""After so long, a worker that ends counts as the first that does."""

GRACE_SECONDS: Final = LIMITS.drain_seconds + 10.0
"""For all workers to end in order: their requests in flight, and then their last lines."""

_REAP_SECONDS: Final = 5.0

log = structlog.get_logger()


@attrs.define(eq=False)
class WorkerProcesses:
    """Those of one router.

    Attributes:
        parent: What they share.
        filename: What they run by.
        settings: Of the program.
        listeners: Where they accept; this process never does.
    """

    parent: Parent
    filename: str
    settings: RouterConfig
    listeners: Sequence[trio.SocketListener]
    _rng: random.Random = attrs.field(factory=random.Random)
    _stopping: trio.Event = attrs.field(factory=trio.Event)
    _running: dict[str, trio.Process] = attrs.field(factory=dict)
    _started: set[str] = attrs.field(factory=set)

    async def run(self, stop: Stop, on_start: Callable[[], None]) -> None:
        """Run them until a stop, and return when all have ended.

        Args:
            stop: Ends them: each as a router alone ends.
            on_start: Called once all answer.

        Raises:
            UserError: One ends before it has answered at all.
        """
        worker_set = self.parent.worker_set
        with tempfile.TemporaryFile() as audit_lock:
            async with trio.open_nursery() as nursery:
                for name in worker_set.names:
                    worker_set.started[name] = trio.Event()
                    nursery.start_soon(self._keep, name, audit_lock.fileno())
                with stop.here():
                    for started in worker_set.started.values():
                        await started.wait()
                    on_start()
                    await trio.sleep_forever()
                self._stopping.set()
                nursery.cancel_scope.deadline = trio.current_time() + GRACE_SECONDS
                for process in self._running.values():
                    process.terminate()
                for listener in self.listeners:  # or clients would wait at a port where no process accepts any more
                    await listener.aclose()

    async def _keep(self, name: str, audit_lock: int) -> None:
        """Run one worker again and again, until a stop."""
        failures, started = 0, self.parent.worker_set.started[name]
        while not self._stopping.is_set():
            began_at = trio.current_time()
            code: int | str | None
            try:
                code = await self._run_one(name, audit_lock)
            except OSError as exc:  # no process, or no descriptor, to be had now
                code = f"an error at its start ({exc})"
            if self._stopping.is_set():
                return
            if not started.is_set():
                words = f"worker {name} ended with {code} before it has answered; what it said stands above"
                raise UserError(words, field="--workers")
            failures = 1 if trio.current_time() - began_at >= STEADY_SECONDS else failures + 1
            pause = AGAIN.delay(failures, self._rng)
            log.error("a worker has ended, another takes its place", worker=name, code=code, seconds=round(pause, 1))
            with trio.move_on_after(pause):
                await self._stopping.wait()

    async def _run_one(self, name: str, audit_lock: int) -> int | None:
        """Run a worker to its end; return how it ended."""
        with contextlib.ExitStack() as held:
            ours, theirs = socket.socketpair()
            held.callback(ours.close)
            with contextlib.ExitStack() as given_away:
                given_away.callback(theirs.close)
                life, held_open = os.pipe()  # its other end is this process's alone, and ends with it
                held.callback(os.close, held_open)
                given_away.callback(os.close, life)
                given = [theirs.fileno(), life, audit_lock, *(each.socket.fileno() for each in self.listeners)]
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-m", worker.__name__, *map(str, given)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=given,
                    process_group=0,  # a terminal's signals are for the parent, which passes on what they mean
                )
            self._running[name] = process
            try:
                if self._stopping.is_set():
                    process.terminate()
                link = Link(ours)
                link.send_nowait("hello", **worker.hello(name, self.filename, self.settings))
                await self.parent.worker_set.serve(name, link, self.parent.backends())
                with trio.move_on_after(_REAP_SECONDS):
                    await process.wait()
            finally:
                del self._running[name]
                await _reap(process)  # noqa: ASYNC102 (it shields itself, with a deadline)
        return process.returncode


async def _reap(process: trio.Process) -> None:
    """Kill a process that has not ended by itself."""
    if process.returncode is None:
        process.kill()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _REAP_SECONDS):
        await process.wait()
