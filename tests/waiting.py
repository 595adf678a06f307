"""Wait for a state of the real world that offers no event; a caller may have a nearer deadline."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import psutil
import trio


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; it is checked often at first, and then less often.

    Raises:
        trio.TooSlowError: It does not hold after five minutes.
    """
    pause = 0.01
    with trio.fail_after(300):
        while not condition():
            await trio.sleep(pause)
            pause = min(pause * 1.2, 0.1)


async def stop_process(pid: int) -> None:
    """Send SIGSTOP; return once the process has stopped or exited.

    `os.kill` returns before: on a busy machine, other threads of the process still run until one has read the signal.
    """

    def has_stopped() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        return True

    os.kill(pid, signal.SIGSTOP)
    await until(has_stopped)
