"""Heavy work leaves the event loop to others, and the interpreter as it was."""

import gc
import sys
import time

import trio

from llmkube.apiserver.heavy_work import ThreadRunner


async def test_the_event_loop_runs_during_heavy_work():
    """Python that runs for a quarter of a second in a thread costs other tasks no such pause."""
    usual, turns = sys.getswitchinterval(), 0

    def busy() -> str:
        end = time.perf_counter() + 0.25
        while time.perf_counter() < end:
            pass
        return "done"

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.005)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        assert await ThreadRunner()(busy) == "done"
        nursery.cancel_scope.cancel()
    assert turns >= 5, "on the loop it would have been none"
    assert (sys.getswitchinterval(), gc.isenabled()) == (usual, True)


async def test_heavy_work_is_done_one_at_a_time():
    """Two heavy requests at once take turns as wholes: the interpreter is shared by two threads, not by many."""
    work, inside, most = ThreadRunner(), 0, 0

    def count() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work, count)
    assert most == 1
