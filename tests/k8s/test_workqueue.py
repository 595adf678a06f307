"""Keys are worked on one at a time each, once for many wishes, and later when they fail."""

import random
from functools import partial

import pytest
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError
from llmkube.k8s.workqueue import WorkQueue, run_workers

STEADY = Backoff(base_seconds=1.0, cap_seconds=8.0, jitter=0.0)


@pytest.fixture
def queue():
    return WorkQueue(random.Random(1), STEADY)


async def take(queue):
    async with queue.acquire() as key:
        return key


async def test_keys_come_in_order_and_once(queue):
    """A key that is added three times before anybody takes it comes once, in its first place."""
    for key in "abaca":
        queue.add_nowait(key)
    assert len(queue) == 3
    assert [await take(queue) for _ in range(3)] == ["a", "b", "c"]


async def test_urgent_keys_come_before_all_others():
    """However many came before it, an urgent key is the next one; among themselves they come in order, and once."""
    queue = WorkQueue(random.Random(1), STEADY, str.isupper)
    for key in "abCaDC":
        queue.add_nowait(key)
    assert len(queue) == 4
    assert [await take(queue) for _ in range(4)] == ["C", "D", "a", "b"]


async def test_a_key_that_is_added_while_held_comes_again_but_not_at_the_same_time(queue, autojump_clock):
    """Work on one key never overlaps, and a wish during the work is not lost."""
    queue.add_nowait("a")
    async with queue.acquire() as key:
        queue.add_nowait("a")
        queue.add_nowait("a")
        with trio.move_on_after(100) as waiting:
            await take(queue)
        assert waiting.cancelled_caught
    assert await take(queue) == key
    assert len(queue) == 0


async def test_another_key_passes_a_held_one(queue):
    """A slow key does not hold up the others."""
    queue.add_nowait("slow")
    async with queue.acquire():
        queue.add_nowait("quick")
        assert await take(queue) == "quick"


async def test_a_body_that_raises_releases_its_key(queue):
    """An exception in the work neither loses the key for ever nor repeats it by itself."""
    queue.add_nowait("a")
    with pytest.raises(KeyError):
        async with queue.acquire():
            raise KeyError
    assert len(queue) == 0
    queue.add_nowait("a")
    assert await take(queue) == "a"


async def test_the_earliest_of_several_delays_applies(queue, autojump_clock):
    """A key that is due in 50, 5 and 500 seconds comes after 5, and only once."""
    start = trio.current_time()
    for seconds in (50, 5, 500):
        queue.add_after("a", seconds)
    assert await take(queue) == "a"
    assert trio.current_time() - start == pytest.approx(5)
    with trio.move_on_after(1000) as waiting:
        await take(queue)
    assert waiting.cancelled_caught


async def test_a_new_delay_wakes_a_sleeping_worker(queue, autojump_clock):
    """A worker that sleeps towards a far time notices a nearer one."""
    start = trio.current_time()
    queue.add_after("far", 100)
    taken = []

    async def work():
        taken.append((await take(queue), trio.current_time() - start))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)
        await trio.sleep(10)
        queue.add_after("near", 5)
    assert taken == [("near", pytest.approx(15)), ("far", pytest.approx(100))]


@pytest.mark.parametrize("leaves", [0, 1])
async def test_a_delay_ends_in_time_whichever_worker_leaves(queue, autojump_clock, leaves):
    """One of two workers looks at the clock for both; if that one is cancelled, the other takes the key when due."""
    start = trio.current_time()
    scopes = trio.CancelScope(), trio.CancelScope()
    taken = []

    async def work(scope):
        with scope:
            taken.append((await take(queue), trio.current_time() - start))

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(work, scope)
        await trio.sleep(1)
        queue.add_after("later", 10)
        await trio.sleep(1)
        scopes[leaves].cancel()
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert taken == [("later", pytest.approx(11))]


async def test_a_key_that_falls_due_while_held_waits_for_its_turn(queue, autojump_clock):
    """A delay that ends during the work brings the key back after it."""
    queue.add_nowait("a")
    async with queue.acquire():
        queue.add_after("a", 1)
        await trio.sleep(5)
    assert await take(queue) == "a"


async def test_retries_back_off_until_forgotten(queue):
    """Delays double per key up to the cap, and start afresh once the key is forgotten."""
    await trio.lowlevel.checkpoint()
    assert [queue.retry_later("a") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert queue.retry_later("b") == 1
    assert queue.is_failing("a")
    queue.forget("a")
    assert not queue.is_failing("a")
    assert queue.retry_later("a") == 1


async def test_a_cancelled_wait_loses_no_key(queue, autojump_clock):
    """A worker that is cancelled while it waits has not taken anything."""
    with trio.move_on_after(1):
        await take(queue)
    queue.add_nowait("a")
    assert await take(queue) == "a"


async def test_workers_are_as_many_as_asked_for(queue, autojump_clock):
    """Ten keys with three workers are worked on three at a time."""
    running, most = 0, 0

    async def handle(key):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1

    for key in range(10):
        queue.add_nowait(key)
    with trio.move_on_after(10):
        await run_workers(queue, handle, workers=3)
    assert (most, running, len(queue)) == (3, 0, 0)


async def test_workers_retry_world_errors_and_honour_the_next_look(queue, autojump_clock):
    """A key fails twice (after 1 and 2 s again), succeeds, asks to be seen in 10 s, and then rests."""
    start = trio.current_time()
    times = []

    async def handle(key):
        times.append(trio.current_time() - start)
        await trio.lowlevel.checkpoint()
        if len(times) <= 2:
            raise ExternalError("the API server is away")
        return 10.0 if len(times) == 3 else None

    queue.add_nowait("a")
    with trio.move_on_after(1000):
        await run_workers(queue, handle, workers=2)
    assert times == [pytest.approx(t) for t in (0, 1, 3, 13)]


async def test_a_bug_in_the_work_ends_the_workers(queue):
    """An error that is not the world's travels up as an exception group."""

    async def handle(key):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    queue.add_nowait("a")
    with pytest.RaisesGroup(ZeroDivisionError):
        await run_workers(queue, handle, workers=2)


async def test_a_delay_too_short_for_the_clock_is_over_all_the_same(queue, autojump_clock):
    """A key that comes back after next to nothing does not stop the clock, however large its number has become."""
    await trio.sleep(80_000)
    times = []

    async def handle(key):
        await trio.lowlevel.checkpoint()
        times.append(trio.current_time())
        return 1e-14 if len(times) < 5 else None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_workers, queue, handle, workers=1))
        queue.add_nowait("a")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert times == sorted(set(times))
    assert len(times) == 5
