"""Keep a Mac awake while an engine works, with one `caffeinate` per engine.

A request in flight does not keep a Mac awake (vllm-mlx issue 604), and an idle engine should not. So a power assertion
is held while an engine loads or computes and for a minute after that, or always with `--keep-awake`. caffeinate holds
it, and exits with the agent (`-w`), even if that is killed. Without an agent nothing observes whether the remaining
engines work, so they do not keep the Mac awake until the next agent adopts them. caffeinate(8) explains `-i` (idle
sleep) and `-s` (sleep on AC power). A Mac on battery sleeps when its lid is closed.
"""

import math
import os
import random
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.waiting import wait_any
from llmkube.supervisor.host.processes import spawn, wait_child

log = structlog.get_logger(__name__)

CAFFEINATE: Final = ("/usr/bin/caffeinate", "-i", "-s", "-w")

HOLD_SECONDS: Final = 60.0
"""Time for which the assertion is held after an engine last worked: a conversation has pauses."""

RETRY: Final = Backoff(base_seconds=1.0, cap_seconds=300.0)
"""Delays before caffeinate is restarted after it exited too early."""

STABLE_SECONDS: Final = 600.0
"""An exit after at least this time is not a repeated failure: the back-off is reset."""

END_SECONDS: Final = 2.0
"""Time that caffeinate may take to exit after TERM."""


async def caffeinate(program: Sequence[str] = CAFFEINATE) -> None:
    """Keep this Mac awake until cancelled, or until this process exits; return early if the program exits by itself.

    Args:
        program: The command, without the pid of this process.

    Raises:
        OSError: The program cannot be started.
    """
    process = await spawn([*program, str(os.getpid())], subprocess.DEVNULL)
    try:
        await wait_child(process)
    finally:
        if process.poll() is None:
            process.terminate()
            with trio.move_on_after(END_SECONDS, shield=True):
                await wait_child(process)


@attrs.define(eq=False)
class PowerAssertion:
    """A power assertion that is held while an engine works, or always.

    Attributes:
        hold: Keeps this Mac awake until cancelled; may return early, or raise OSError.
        always: Whether to hold it all the time.
    """

    hold: Callable[[], Awaitable[None]]
    always: bool = False
    _until: float = -math.inf
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _rng: random.Random = attrs.field(factory=random.Random)

    def record_activity(self) -> None:
        """Record that the engine has just worked."""
        self._until = trio.current_time() + HOLD_SECONDS
        self._changed.set()

    async def run(self) -> None:
        """Hold the assertion whenever it is wanted, forever."""
        failures = 0
        while True:
            await self._wait_wanted()
            started_at, has_exited, why = trio.current_time(), False, "it exited"

            async def hold() -> None:
                nonlocal has_exited, why
                try:
                    await self.hold()
                except OSError as error:
                    why = str(error)
                has_exited = True

            await wait_any(hold, self._wait_unwanted)
            if not has_exited:
                continue
            failures = 1 if trio.current_time() - started_at >= STABLE_SECONDS else failures + 1
            pause = RETRY.delay(failures, self._rng)
            if failures == 1:  # repeated failures are not logged
                log.warning("power assertion lost; this Mac may sleep", program=CAFFEINATE[0], why=why)
            await trio.sleep(pause)

    async def _wait_wanted(self) -> None:
        while not (self.always or trio.current_time() < self._until):
            self._changed = trio.Event()
            await self._changed.wait()

    async def _wait_unwanted(self) -> None:
        if self.always:
            await trio.sleep_forever()
        while trio.current_time() < self._until:  # noqa: ASYNC110 - each request moves the deadline
            await trio.sleep_until(self._until)


@asynccontextmanager
async def keeping_awake(assertion: PowerAssertion) -> AsyncIterator[None]:
    """Hold an assertion whenever it is wanted, for the duration of the block.

    An agent that leaves its engines to the next one releases it, and the next agent takes its own.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(assertion.run)
        yield
        nursery.cancel_scope.cancel(reason="the agent has released the engine")
