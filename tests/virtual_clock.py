"""The virtual clock of the tests: it jumps to the next deadline when every task waits and no thread works."""

from math import inf

import trio
from trio.testing import MockClock, active_thread_count, wait_all_threads_completed  # noqa: TID251 (wrapped here)


def virtual_clock() -> MockClock:
    """Return a clock that jumps as Trio's own does, except while a thread of `trio.to_thread` works.

    Trio's own clock also jumps while a task waits for a thread that reads a file, by as many deadlines as the machine
    permits, so that the events of a virtual minute depend on how busy the machine is.
    """
    clock = MockClock(autojump_threshold=0)
    jump = clock._autojump

    async def jump_again() -> None:
        await wait_all_threads_completed()
        clock.autojump_threshold = 0

    def jump_if_no_thread_works() -> None:
        if active_thread_count():
            clock.autojump_threshold = inf
            trio.lowlevel.spawn_system_task(jump_again)
        else:
            jump()

    clock._autojump = jump_if_no_thread_works
    return clock
