"""Process exits on macOS: a kqueue event, after a period in which the kernel hides the exiting process.

```
 alive ──exit begins──▶ hidden: EV_ADD answers ESRCH, a blocking waitpid blocks ──GPU memory freed──▶ zombie: NOTE_EXIT
```

xnu removes an exiting process from `proc_find` (bsd/kern/kern_exit.c) before it frees its memory, which takes seconds
for hundreds of gigabytes of a GPU; the event and the zombie come last. So ESRCH does not mean that a process has
exited, and no call in this module may block.
"""

import contextlib
import os
import select
import sys
from collections.abc import Callable
from typing import Any, Final

import attrs
import trio

# bsd/sys/event.h of xnu; Python's `select` has NOTE_EXIT only
NOTE_EXIT: Final = 0x80000000
NOTE_EXITSTATUS: Final = 0x04000000
"""Include the status of wait(2) in the event: for children, and for other processes that this one may signal."""
NOTE_EXIT_DETAIL: Final = 0x02000000
NOTE_EXIT_MEMORY: Final = 0x00020000
"""The kernel killed the process for lack of memory (jetsam)."""
NOTE_EXIT_CSERROR: Final = 0x00040000
"""The kernel killed the process because its code signature is not valid."""

REAP_SECONDS: Final = 0.05
"""Poll interval for a process that the kernel hides or has reported, until it is gone or can be reaped."""


@attrs.frozen
class ExitEvent:
    """The exit of a process as the kernel reports it.

    Attributes:
        code: Exit code, or the negated number of the signal; None if the kernel does not report it.
        for_memory: Whether the kernel killed it for lack of memory.
        for_signature: Whether the kernel killed it because of its code signature.
    """

    code: int | None = None
    for_memory: bool = False
    for_signature: bool = False


UNKNOWN_EXIT: Final = ExitEvent()


class Kqueue:
    """Trio's kqueue with the process filter."""

    async def wait(self, pid: int, flags: int) -> tuple[int, int]:
        """Return the event's flags and data as soon as the process has exited.

        Raises:
            ProcessLookupError: The kernel knows no such process: it has exited, or its exit has begun.
            PermissionError: The kernel does not report the details in `flags` to this user.
        """
        if sys.platform != "darwin":
            raise NotImplementedError("only macOS has kqueue with details of an exit")
        queue = trio.lowlevel.current_kqueue()

        def change(action: int) -> None:
            queue.control([select.kevent(pid, select.KQ_FILTER_PROC, action, flags)], 0)

        def abort(_: object) -> trio.lowlevel.Abort:
            with contextlib.suppress(OSError):  # the event has fired
                change(select.KQ_EV_DELETE)
            return trio.lowlevel.Abort.SUCCEEDED

        change(select.KQ_EV_ADD | select.KQ_EV_ONESHOT)
        event: Any = await trio.lowlevel.wait_kevent(pid, select.KQ_FILTER_PROC, abort)
        return event.fflags, event.data


def decode_exit(flags: int, data: int) -> ExitEvent:
    """Decode the flags and data of an event; pure."""
    code = os.waitstatus_to_exitcode(data & 0xFFFF) if flags & NOTE_EXITSTATUS else None
    detailed = bool(flags & NOTE_EXIT_DETAIL)
    return ExitEvent(code, detailed and bool(flags & NOTE_EXIT_MEMORY), detailed and bool(flags & NOTE_EXIT_CSERROR))


async def wait_exit(events: Kqueue, pid: int, has_ended: Callable[[], bool]) -> ExitEvent:
    """Wait until a process has exited; polls once kqueue no longer finds it.

    Args:
        events: The source of exit events.
        pid: The process.
        has_ended: Returns whether it is gone or reaped; must not block.
    """
    for flags in (NOTE_EXIT | NOTE_EXITSTATUS | NOTE_EXIT_DETAIL, NOTE_EXIT):
        try:
            return decode_exit(*await events.wait(pid, flags))
        except PermissionError:
            continue
        except ProcessLookupError:
            break
    while not has_ended():  # noqa: ASYNC110 - the kernel sends no event any more
        await trio.sleep(REAP_SECONDS)
    return UNKNOWN_EXIT
