"""How macOS tells that a process ends: one event of kqueue, and a while in which the kernel hides a process that ends.

```
 alive ──exit begins──▶ hidden: EV_ADD answers ESRCH, a blocking waitpid blocks ──GPU memory freed──▶ zombie: NOTE_EXIT
```

xnu takes an exiting process out of `proc_find` (bsd/kern/kern_exit.c) before it frees what the process held: seconds
where that is hundreds of gigabytes of a GPU; the event and the zombie come last. So ESRCH does not say that a
process has ended, and nothing here asks the kernel a question that could block.
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
"""Have the event carry the status of wait(2): for children, and for others that this process may signal."""
NOTE_EXIT_DETAIL: Final = 0x02000000
NOTE_EXIT_MEMORY: Final = 0x00020000
"""The kernel has ended the process for want of memory (jetsam)."""
NOTE_EXIT_CSERROR: Final = 0x00040000
"""The kernel has ended it because its code signature is not valid."""

REAP_SECONDS: Final = 0.05
"""Between two looks at a process that the kernel hides or has told of, until it is gone or can be reaped."""


@attrs.frozen
class ExitEvent:
    """What a kernel tells of an end.

    Attributes:
        code: Exit code, or the negated number of the signal; None where the kernel does not say.
        for_memory: Whether the kernel ended it for want of memory.
        for_signature: Whether it did so because of its code signature.
    """

    code: int | None = None
    for_memory: bool = False
    for_signature: bool = False


UNKNOWN_EXIT: Final = ExitEvent()


class Kqueue:
    """Trio's own kqueue, with its filter of processes."""

    async def wait(self, pid: int, flags: int) -> tuple[int, int]:
        """Return the event's flags and data as soon as the process has ended.

        Raises:
            ProcessLookupError: The kernel knows no such process: it has ended, or its exit has begun.
            PermissionError: The kernel does not tell this user as much as the flags ask.
        """
        if sys.platform != "darwin":
            raise NotImplementedError("only macOS has kqueue with details of an exit")
        queue = trio.lowlevel.current_kqueue()

        def change(action: int) -> None:
            queue.control([select.kevent(pid, select.KQ_FILTER_PROC, action, flags)], 0)

        def abort(_: object) -> trio.lowlevel.Abort:
            with contextlib.suppress(OSError):  # it has fired meanwhile
                change(select.KQ_EV_DELETE)
            return trio.lowlevel.Abort.SUCCEEDED

        change(select.KQ_EV_ADD | select.KQ_EV_ONESHOT)
        event: Any = await trio.lowlevel.wait_kevent(pid, select.KQ_FILTER_PROC, abort)
        return event.fflags, event.data


def decode_exit(flags: int, data: int) -> ExitEvent:
    """Return what an event says; pure."""
    code = os.waitstatus_to_exitcode(data & 0xFFFF) if flags & NOTE_EXITSTATUS else None
    detailed = bool(flags & NOTE_EXIT_DETAIL)
    return ExitEvent(code, detailed and bool(flags & NOTE_EXIT_MEMORY), detailed and bool(flags & NOTE_EXIT_CSERROR))


async def wait_exit(events: Kqueue, pid: int, has_ended: Callable[[], bool]) -> ExitEvent:
    """Return when a process has ended; polls in the while in which the kernel hides it.

    Args:
        events: Who tells.
        pid: The process.
        has_ended: Whether it is gone, or reaped; must not block.
    """
    for flags in (NOTE_EXIT | NOTE_EXITSTATUS | NOTE_EXIT_DETAIL, NOTE_EXIT):
        try:
            return decode_exit(*await events.wait(pid, flags))
        except PermissionError:
            continue
        except ProcessLookupError:
            break
    while not has_ended():  # noqa: ASYNC110 - the kernel tells of it no more
        await trio.sleep(REAP_SECONDS)
    return UNKNOWN_EXIT
