"""The virtual clock waits for threads, and for nothing else."""

import threading
import time

import trio
from trio.testing import MockClock  # noqa: TID251 (to show what it does)


def work():
    """Read a file on a busy machine."""
    time.sleep(0.2)
    return "read"


async def test_it_waits_while_a_thread_works(autojump_clock):
    """Each read of a file within a deadline is in time, and between two reads the clock jumps."""
    for _ in range(3):
        with trio.fail_after(1):
            assert await trio.to_thread.run_sync(work) == "read"
        before = trio.current_time()
        await trio.sleep(3600)
        assert trio.current_time() == before + 3600


async def test_it_waits_for_the_last_thread(autojump_clock):
    """When the first of two threads is done, the clock does not jump."""
    first, begun = threading.Event(), trio.current_time()

    async def read_first():
        await trio.to_thread.run_sync(first.set)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 10)
        nursery.start_soon(read_first)
        await trio.to_thread.run_sync(lambda: (first.wait(60), work()))
        assert trio.current_time() == begun
    assert trio.current_time() == begun + 10


async def test_an_abandoned_thread_does_not_stop_it(autojump_clock):
    """The thread of a cancelled task may hang on a dead disk; the clock still jumps."""
    over = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: trio.to_thread.run_sync(over.wait, 60, abandon_on_cancel=True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="test")
    await trio.sleep(3600)
    assert not over.is_set()
    over.set()


def test_mutant_trios_own_does_not_wait():
    """Its deadlines pass while a thread works."""
    over = threading.Event()

    async def main():
        with trio.move_on_after(3600) as limit:
            await trio.to_thread.run_sync(over.wait, 60, abandon_on_cancel=True)
        over.set()
        assert limit.cancelled_caught

    trio.run(main, clock=MockClock(autojump_threshold=0))
