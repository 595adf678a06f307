import pytest
import trio
import trio.testing

from llmkube.weights.download.downloader import LINGER_SECONDS, open_single_flight
from llmkube.weights.download.progress import Progress


class Work:
    """Work that waits until the test sets its result."""

    def __init__(self):
        self.begun = 0
        self.cancelled = 0
        self.end = trio.Event()
        self.notify = None
        self.error = None

    async def __call__(self, notify):
        self.begun += 1
        self.notify = notify
        try:
            await self.end.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return "done"


def ignore(progress):
    pass


async def test_all_who_ask_get_the_same_result_and_the_same_news():
    """Two who ask for the same share one piece of work, and each hears of its progress in a task of its own."""
    work, received, results = Work(), [], []

    async def ask(name):
        results.append(await shared.join("key", work, lambda step: received.append((name, step.done_bytes))))

    async with open_single_flight(str) as shared, trio.open_nursery() as nursery:
        nursery.start_soon(ask, "a")
        nursery.start_soon(ask, "b")
        await trio.testing.wait_all_tasks_blocked()
        work.notify(Progress("downloading", 5))
        await trio.testing.wait_all_tasks_blocked()
        assert shared.active() == {"key": Progress("downloading", 5)}
        work.end.set()
    assert results == ["done", "done"]
    assert work.begun == 1
    assert {("a", 5), ("b", 5)} <= set(received)
    assert shared.active() == {}


async def test_one_who_stops_waiting_takes_nothing_away(autojump_clock):
    """The work continues while a caller waits, whichever started it; it ends a moment after the last one has left."""
    work, scopes = Work(), [trio.CancelScope(), trio.CancelScope()]

    async def ask(scope):
        with scope:
            await shared.join("key", work, ignore)

    async with open_single_flight(str) as shared, trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(ask, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
        await trio.sleep(10 * LINGER_SECONDS)
        assert (work.begun, work.cancelled) == (1, 0)
        scopes[1].cancel()
        await trio.sleep(LINGER_SECONDS / 2)
        assert (work.begun, work.cancelled) == (1, 0)
        await trio.sleep(LINGER_SECONDS)
        assert (work.begun, work.cancelled) == (1, 1)
        assert shared.active() == {}


async def test_a_caller_that_returns_at_once_joins_the_running_work(autojump_clock):
    """A caller that stops waiting and asks again does not restart the work, and its end is no longer near."""
    work = Work()
    async with open_single_flight(str) as shared, trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await shared.join("key", work, ignore)
        nursery.start_soon(shared.join, "key", work, ignore)
        await trio.sleep(10 * LINGER_SECONDS)
        assert (work.begun, work.cancelled) == (1, 0)
        work.end.set()


async def test_a_later_caller_starts_again(autojump_clock):
    """The result of cancelled work is not returned."""
    work = Work()
    async with open_single_flight(str) as shared:
        with trio.move_on_after(0):
            await shared.join("key", work, ignore)
        await trio.sleep(2 * LINGER_SECONDS)
        assert (work.begun, work.cancelled) == (1, 1)
        again = Work()
        again.end.set()
        assert await shared.join("key", again, ignore) == "done"


async def test_an_error_reaches_all_waiters_and_no_other():
    """An error, even a bug, is raised in each waiter; other work continues, and the next call starts again."""
    work, other, errors = Work(), Work(), []

    async def ask():
        try:
            await shared.join("key", work, ignore)
        except ValueError as error:
            errors.append(error)

    async with open_single_flight(str) as shared, trio.open_nursery() as nursery:
        nursery.start_soon(shared.join, "other", other, ignore)
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        work.error = ValueError("a bug")
        work.end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(errors) == 2
        assert other.cancelled == 0
        other.end.set()


async def test_a_bug_in_a_listener_is_its_own():
    """A progress callback that fails takes its own task down, not the work."""
    work = Work()

    def broken(progress):
        raise ZeroDivisionError

    async with open_single_flight(str) as shared, trio.open_nursery() as nursery:
        nursery.start_soon(shared.join, "key", work, ignore)
        with pytest.raises(ZeroDivisionError):
            await shared.join("key", work, broken)
        assert work.cancelled == 0
        work.end.set()


async def test_closing_ends_everything():
    """When the place closes, what runs is cancelled."""
    work = Work()
    async with trio.open_nursery() as nursery:
        async with open_single_flight(str) as shared:
            nursery.start_soon(shared.join, "key", work, ignore)  # noqa: ASYNC111 (closing under a waiter is tested)
            await trio.testing.wait_all_tasks_blocked()
        assert work.cancelled == 1
        nursery.cancel_scope.cancel()
