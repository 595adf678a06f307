"""Long steps run in turn, with pauses; a cancelled one leaves its turn to the next."""

import pytest
import trio
import trio.testing

from llmkube.base.loop_shares import LONG_BYTES, MAX_PAUSE_SECONDS, ClientQueues, current_client, long_step

STEP_SECONDS = 0.004
LONG = LONG_BYTES + 1


@pytest.fixture
def steps(mock_clock):
    """Run steps that take some milliseconds, and return when each began."""
    began = []

    async def step(client, seconds=STEP_SECONDS, times=1, size=LONG):
        current_client.set(client)
        for _ in range(times):
            async with long_step(size):
                began.append((client, round(1000 * trio.current_time())))
                mock_clock.jump(seconds)

    async def run(*clients):
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(step, client)
                await trio.testing.wait_all_tasks_blocked()  # the first one waits for virtual time, or has ended
            mock_clock.autojump_threshold = 0.0
        return began

    run.step, run.began = step, began
    return run


def test_clients_take_turns():
    """Few items of each client are taken, and few in all; a client with many is next after every other."""
    queues = ClientQueues()
    for client, item in ("a1", "a2", "a3", "b1", "a4", "c1", "a1"):
        queues.add(client, client + item)
    assert queues.take(3, 2) == ["a1", "a2", "b1"]
    assert queues.take(1, 9) == ["c1"]
    assert queues.take(9, 9) == ["a3", "a4"]
    assert not queues


async def test_after_a_step_the_loop_is_free_for_as_long(steps, mock_clock):
    """Steps of one client leave time for others, and for the steps of another client."""
    async with trio.open_nursery() as nursery:
        async with long_step(LONG):
            for client in ("noisy", "noisy", "noisy", "quiet"):
                nursery.start_soon(steps.step, client)
                await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1.0)
        mock_clock.autojump_threshold = 0.0
    first = 1000 + 1000 * MAX_PAUSE_SECONDS
    assert steps.began == [(c, first + at) for c, at in (("noisy", 0), ("quiet", 8), ("noisy", 16), ("noisy", 24))]


async def test_a_smaller_step_waits_for_a_part_of_the_pause(steps, mock_clock):
    """After a step of 8 ms one of an eighth of its size begins after 1 ms, and the next large one after 8 ms."""
    async with trio.open_nursery() as nursery:
        async with long_step(8 * LONG):
            for client in ("small", "large"):
                nursery.start_soon(steps.step, client, 0.001, 1, LONG if client == "small" else 8 * LONG)
                await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.008)
        mock_clock.autojump_threshold = 0.0
    assert steps.began == [("small", 9), ("large", 16)]


async def test_a_task_alone_does_not_wait(steps, mock_clock):
    """Nor does a short step, whatever runs."""
    await steps.step("one", times=3)
    assert steps.began == [("one", 0), ("one", 4), ("one", 8)]
    async with long_step(LONG):
        with trio.fail_after(0.001):
            async with long_step(LONG_BYTES):
                pass


@pytest.mark.parametrize("when", ["in the queue", "as its turn comes", "in the pause"])
async def test_a_cancelled_step_leaves_its_turn(steps, mock_clock, when):
    """The one behind it is next."""
    scope = trio.CancelScope()

    async def cancelled():
        with scope:
            await steps.step("cancelled")

    async with trio.open_nursery() as nursery:
        async with long_step(LONG):
            nursery.start_soon(cancelled)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(steps.step, "next")
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(STEP_SECONDS)
            if when != "in the pause":
                scope.cancel()
            if when == "in the queue":
                await trio.testing.wait_all_tasks_blocked()
        if when == "in the pause":
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        mock_clock.autojump_threshold = 0.0
    assert steps.began == [("next", 8)]
    assert scope.cancelled_caught
