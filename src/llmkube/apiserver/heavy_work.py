"""Writes run in a thread: the event loop continues, and waits about a millisecond for the interpreter.

All writes do, because even a small body may evaluate a costly rule or change a large object. Reading and validating a
body of a megabyte takes seconds of Python, during which the thread shares the interpreter with the event loop. Calls
that do not share it (one call of a JSON library, one sort) are short because the size of a body is limited.
"""

import gc
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")

_SWITCH_SECONDS: Final = 0.001  # time after which a thread yields the interpreter to one that waits; 5 ms by default


Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function that takes long; returns its result or raises its exception."""


async def inline(function: Callable[[], T], /) -> T:
    """Run the function here and now: a simulation has virtual time."""
    await trio.lowlevel.checkpoint()
    return function()


class ThreadRunner:
    """Runs one function at a time in a thread, and waits for it even when cancelled."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Run the function in a thread."""
        async with self._limiter:
            with _short_switch_interval():
                return await trio.to_thread.run_sync(function, abandon_on_cancel=False)


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Let the event loop take the interpreter's lock after a short interval, and pause garbage collection.

    A collection takes 80 ms while there is a large tree.
    """
    interval, gc_enabled = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if gc_enabled:
            gc.enable()
