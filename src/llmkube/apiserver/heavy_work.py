"""Writes are worked on in a thread: the event loop goes on, and waits a millisecond for the interpreter.

A small body may meet a costly rule or change a large object, so no write is told apart. Reading and judging a body of a
megabyte takes seconds of Python. In a thread it shares the interpreter with the event loop; what does not share it (one
call of a JSON library, one sort) is bounded by the bounds of a body.
"""

import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")

_SWITCH_SECONDS: Final = 0.001  # how long a thread keeps the interpreter that another one waits for; 5 ms by default


Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Where a function is run that takes long: returns or raises what the function does."""


async def inline(function: Callable[[], T], /) -> T:
    """Run the function here and now: in a simulation time does not pass."""
    await trio.lowlevel.checkpoint()
    return function()


class ThreadRunner:
    """Runs one function at a time in a thread, which is waited for even when cancelled."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Run the function beside the event loop."""
        async with self._limiter:
            with _short_switch_interval():
                return await trio.to_thread.run_sync(function, abandon_on_cancel=False)


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Let the event loop have the interpreter soon; collect no garbage: 80 ms while there is a large tree."""
    interval, gc_enabled = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if gc_enabled:
            gc.enable()
