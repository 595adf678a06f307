import pytest
import trio
import trio.testing

from llmkube.base.waiting import skip_count, skip_ticks, wait_tick


async def test_all_who_share_a_period_wake_together(autojump_clock):
    """For any start time, they wake at the multiples of the period, and at the same moment."""
    woken = []

    async def wait(after_seconds):
        await trio.sleep(after_seconds)
        for _ in range(3):
            await wait_tick(10)
            woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for after_seconds in (0.0, 1.0, 9.5):
            nursery.start_soon(wait, after_seconds)
    assert woken == [10, 10, 10, 20, 20, 20, 30, 30, 30]


async def test_periods_do_not_mix(autojump_clock):
    """A wait with a long period is not woken by one with a short period."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_tick, 3)
        await wait_tick(7)
        assert trio.current_time() == 7


async def test_the_others_wake_in_time_when_the_first_one_is_cancelled(autojump_clock):
    """The task that sleeps for all may be cancelled: no other wakes early or late for that."""
    woken = []

    async def wait():
        await wait_tick(10)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:

            async def cancel():
                await trio.sleep(4)
                first.cancel()

            nursery.start_soon(cancel)
            await trio.lowlevel.checkpoint()
            for _ in range(3):
                nursery.start_soon(wait)
            await wait_tick(10)
        assert trio.current_time() == 4
    assert woken == [10, 10, 10]


async def test_skipped_ticks_return_true_at_once(autojump_clock):
    """Each wait returns True, for any period; the next wait is for the next multiple again."""
    early = []

    async def wait(period):
        early.append((period, await wait_tick(period), trio.current_time()))
        assert not await wait_tick(period)
        assert trio.current_time() % period == 0

    async with trio.open_nursery() as nursery:
        for period in (5, 5, 60):
            nursery.start_soon(wait, period)
        await trio.sleep(2)
        skip_ticks()
        skip_ticks()
    assert sorted(early) == [(5, True, 2), (5, True, 2), (60, True, 2)]


async def test_a_skip_is_not_lost_on_a_busy_task(autojump_clock):
    """A task that has seen fewer skips than there were does not wait, and waits again once it has."""
    noted = skip_count()
    skip_ticks()
    assert await wait_tick(5, skips=noted)
    before = trio.current_time()
    assert not await wait_tick(5, skips=skip_count())
    assert trio.current_time() > before


async def test_an_idle_waiter_sleeps_on(autojump_clock):
    """While `is_idle` returns True the caller is not woken, and is called once per tick; the others wake as always."""
    asked, woken = [], []

    def is_idle():
        asked.append(trio.current_time())
        return len(asked) < 4

    async def wait_twice():
        for _ in range(2):
            await wait_tick(10)
            woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_twice)
        assert not await wait_tick(10, is_idle=is_idle)
    assert asked == [10, 20, 30, 40]
    assert woken == [10, 20]
    assert trio.current_time() == 40


async def test_idle_waiters_are_checked_when_the_task_that_sleeps_for_all_exits(autojump_clock):
    """The task that sleeps for all may exit: another one takes over, and each `is_idle` is called once per tick."""
    asked = {name: [] for name in "abc"}

    async def doze(name, ticks):
        def is_idle():
            asked[name].append(trio.current_time())
            return len(asked[name]) < ticks

        await wait_tick(10, is_idle=is_idle)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(doze, "a", 1)
        nursery.start_soon(doze, "b", 3)
        with trio.move_on_after(15):
            await doze("c", 9)
    assert asked == {"a": [10], "b": [10, 20, 30], "c": [10]}


async def test_an_error_in_is_idle_is_raised_in_its_caller(autojump_clock):
    """No other task gets it, and the caller wakes with the error."""
    others = []

    async def other():
        others.append(await wait_tick(10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.testing.wait_all_tasks_blocked()
        assert not await wait_tick(10, is_idle=lambda: 1 / 0)
        assert trio.current_time() == 10
    assert others == [False]


async def test_a_skip_wakes_idle_waiters(autojump_clock):
    """After a sleep of the machine every task wakes, idle or not."""
    async with trio.open_nursery() as nursery:

        async def skip():
            await trio.sleep(25)
            skip_ticks()

        nursery.start_soon(skip)
        assert await wait_tick(10, is_idle=lambda: True)
    assert trio.current_time() == 25


@pytest.mark.parametrize("number", [43, 81, 86])
async def test_a_tick_is_never_now(autojump_clock, number):
    """At a multiple that divides to a little less by rounding, the next tick is still one period away."""
    period = 0.1
    autojump_clock.jump(number * period - trio.current_time())
    assert trio.current_time() // period == number - 1  # the effect of rounding
    start = trio.current_time()
    await wait_tick(period)
    assert trio.current_time() == pytest.approx(start + period)
