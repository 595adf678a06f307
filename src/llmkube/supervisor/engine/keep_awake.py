"""A Mac that does not fall asleep while an engine works: `caffeinate`, one for each engine.

A request in flight keeps no Mac awake (vllm-mlx issue 604), and an idle engine is no reason to: the assertion is held
while an engine loads or computes and a minute longer, or for all of its life where `--keep-awake` says so. It belongs
to caffeinate, which ends with the agent (`-w`), also with one that is killed: the engines that it leaves keep no Mac
awake, as no agent sees whether they work, until the next agent adopts them and takes an assertion of its own.
caffeinate(8) explains `-i` (idle sleep) and `-s` (sleep on AC power). A Mac on battery sleeps when its lid is closed.
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
from llmkube.supervisor.host.processes import wait_child

log = structlog.get_logger(__name__)

CAFFEINATE: Final = ("/usr/bin/caffeinate", "-i", "-s", "-w")

HOLD_SECONDS: Final = 60.0
"""After an engine was last seen to work: a conversation has pauses."""

AGAIN: Final = Backoff(base_seconds=1.0, cap_seconds=300.0)
"""Before caffeinate is started again that has ended too early."""

STABLE_SECONDS: Final = 600.0
"""One that has lived for so long was no failure: the pauses begin anew."""

END_SECONDS: Final = 2.0
"""How long caffeinate may take to end; it waits for nothing."""


async def caffeinate(program: Sequence[str] = CAFFEINATE) -> None:
    """Keep this Mac awake until cancelled, or this process has ended; return early when the program ends by itself.

    Args:
        program: The command, without the pid of this process.

    Raises:
        OSError: The program cannot be started.
    """
    process = await trio.lowlevel.open_process(
        [*program, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await wait_child(process)
    finally:
        if process.poll() is None:
            process.terminate()
            with trio.move_on_after(END_SECONDS, shield=True):
                await wait_child(process)


@attrs.define(eq=False)
class PowerAssertion:
    """Held while an engine works, or always.

    Attributes:
        hold: Keeps this Mac awake until cancelled; it may end too early, or raise OSError.
        always: Whether it is held all the time.
    """

    hold: Callable[[], Awaitable[None]]
    always: bool = False
    _until: float = -math.inf
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _rng: random.Random = attrs.field(factory=random.Random)

    def worked(self) -> None:
        """The engine was seen to work just now."""
        self._until = trio.current_time() + HOLD_SECONDS
        self._changed.set()

    async def run(self) -> None:
        """Never return: hold it when it is to be held."""
        failures = 0
        while True:
            await self._wait_wanted()
            started_at, has_ended, why = trio.current_time(), False, "it has ended"

            async def hold() -> None:
                nonlocal has_ended, why
                try:
                    await self.hold()
                except OSError as error:
                    why = str(error)
                has_ended = True

            await wait_any(hold, self._wait_unwanted)
            if not has_ended:
                continue
            failures = 1 if trio.current_time() - started_at >= STABLE_SECONDS else failures + 1
            pause = AGAIN.delay(failures, self._rng)
            if failures == 1:  # again and again the same is no news
                log.warning("this Mac may fall asleep while an engine works", program=CAFFEINATE[0], why=why)
            await trio.sleep(pause)

    async def _wait_wanted(self) -> None:
        while not (self.always or trio.current_time() < self._until):
            self._changed = trio.Event()
            await self._changed.wait()

    async def _wait_unwanted(self) -> None:
        if self.always:
            await trio.sleep_forever()
        while trio.current_time() < self._until:  # noqa: ASYNC110 - it moves on with each request
            await trio.sleep_until(self._until)


@asynccontextmanager
async def keeping_awake(assertion: PowerAssertion) -> AsyncIterator[None]:
    """Have an assertion held when it is to be, for as long as the block runs.

    An agent that leaves its engines to the next one lets go of it, and the next one takes its own.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(assertion.run)
        yield
        nursery.cancel_scope.cancel(reason="the engine is not ours any more")
