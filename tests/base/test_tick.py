import trio

from llmkube.base.tick import skip_ticks, skips_so_far, wait_tick


async def test_all_who_share_a_period_wake_together(autojump_clock):
    """However they started, they wake at the multiples of the period, and at the same moment."""
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
    """Who waits for a long period is not woken by a short one."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_tick, 3)
        await wait_tick(7)
        assert trio.current_time() == 7


async def test_the_others_wake_in_time_when_the_first_one_is_cancelled(autojump_clock):
    """The one who sleeps for all may go away: nobody wakes early or late for that."""
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


async def test_skipped_ticks_come_at_once_and_say_so(autojump_clock):
    """Whoever waits is woken with True, whatever the period; the next wait is for the next multiple again."""
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


async def test_a_skip_is_not_lost_on_who_was_busy(autojump_clock):
    """Who has taken note of fewer skips than there were does not wait, and waits again once it has."""
    noted = skips_so_far()
    skip_ticks()
    assert await wait_tick(5, skips=noted)
    before = trio.current_time()
    assert not await wait_tick(5, skips=skips_so_far())
    assert trio.current_time() > before
