"""Pressure stall information of Linux: how long programs wait for memory, and a wake-up when they begin to.

The kernel describes it in Documentation/accounting/psi.rst. A trigger is a text written to the file: from then on the
descriptor has an exceptional condition (POLLPRI), once per window, when programs have stalled for longer than it says.
"""

import contextlib
import os
import re
import select
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

log = structlog.get_logger(__name__)

TRIGGERS: Final = (b"some 100000 1000000\0", b"some 200000 2000000\0")
"""Some program has waited for a tenth of the window, in microseconds; the kernel wants the NUL.

The kernel looks ten times per window, so the first wakes us 0.1 s after it got tight. Without CAP_SYS_RESOURCE it
accepts only windows of whole multiples of 2 s, at which it then looks.
"""

_LINE: Final = re.compile(r"(some|full) avg10=(\d+\.\d+) ")


@attrs.frozen
class Pressure:
    """How much of the last ten seconds programs have waited for memory, in per cent: some of them, and all at once."""

    some_percent: float = 0.0
    full_percent: float = 0.0


def parse_pressure(text: str) -> Pressure:
    """Return what a memory.pressure file says.

    Raises:
        ValueError: It says something else.
    """
    found = dict(_LINE.findall(text))
    if found.keys() != {"some", "full"}:
        raise ValueError(f"no pressure in {text[:80]!r}")
    return Pressure(float(found["some"]), float(found["full"]))


def read_pressure(paths: Sequence[Path]) -> Pressure:
    """Return what the first of these files says that is there; no pressure where the kernel does not measure it.

    Raises:
        ValueError: It says something else.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            return parse_pressure(path.read_text("ascii"))
    return Pressure()


@contextmanager
def open_triggers(paths: Sequence[Path]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Give a function that returns when programs begin to wait for memory, by any of these files.

    It sleeps for ever when none of them takes a trigger: no such kernel, or no permission.
    """
    with contextlib.ExitStack() as stack:
        armed = [descriptor for path in paths if (descriptor := _arm(path)) is not None]
        for descriptor in armed:
            stack.callback(os.close, descriptor)
        yield stack.enter_context(open_alarm(armed)) if armed else trio.sleep_forever


@contextmanager
def open_alarm(descriptors: Sequence[int]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Give a function that returns when one of these has an exceptional condition; Linux only.

    Trio waits for reading only: an epoll within Trio's own turns one into the other. Trio's look at the inner one takes
    a trigger's event away, so the wake-up itself is the event.
    """
    if sys.platform != "linux":
        yield trio.sleep_forever
        return
    with select.epoll() as inner:
        for descriptor in descriptors:
            inner.register(descriptor, select.EPOLLPRI)

        async def wait() -> None:
            await trio.lowlevel.wait_readable(inner.fileno())

        yield wait


def _arm(path: Path) -> int | None:
    """Return a descriptor with a trigger, or None."""
    reason: str | None = None
    for trigger in TRIGGERS:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            reason = exc.strerror
            break
        try:
            os.write(descriptor, trigger)
        except OSError as exc:
            reason = exc.strerror
            os.close(descriptor)
        else:
            return descriptor
    log.debug("the kernel sends no events of memory pressure; it is polled", path=str(path), reason=reason)
    return None
