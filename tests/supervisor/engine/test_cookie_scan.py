import threading

import trio
import trio.testing

from llmkube.supervisor.engine.cookie_scan import CookieScan
from waiting import until


async def test_who_waits_for_a_scan_that_hangs_can_leave():
    """A process on a dead disk may block the look at all cookies for ever, and delays the end of no engine."""
    may_end = threading.Event()
    cookies = CookieScan(lambda: {"a": ("one",)} if may_end.is_set() else may_end.wait(600))
    with trio.fail_after(60):
        with trio.move_on_after(0.1):
            await cookies.carriers("a")
        may_end.set()
        assert await cookies.carriers("a") == ("one",)


async def test_many_who_look_for_cookies_at_once_share_a_look():
    """Who asks while a look runs gets the next one, which begins later and serves all who wait for it."""
    looks, may_end = [], threading.Event()

    def scan():
        looks.append(len(looks) + 1)
        may_end.wait(600)
        return {f"cookie-{number}": (number,) for number in looks}

    cookies, found = CookieScan(scan), []

    async def ask(cookie):
        found.append(tuple(await cookies.carriers(cookie)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "cookie-1")
        await until(lambda: looks == [1])
        for _ in range(50):
            nursery.start_soon(ask, "cookie-2")
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert looks == [1, 2]
    assert found == [(1,), *[(2,)] * 50]
