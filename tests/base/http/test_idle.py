"""Idle connections end at their own deadline, for any number of them and any start."""

import attrs
import pytest
import trio

from http_lab import MemoryListener, echo, receive_all, receive_until
from llmkube.base.http.connection import IdleConnections
from llmkube.base.http.server import run_server

SECONDS = 75.0


@attrs.define(eq=False)
class Waiting:
    """A connection that records the time when it was closed."""

    ended_at: float | None = None

    def close_waiting(self):
        assert self.ended_at is None
        self.ended_at = trio.current_time()


async def test_each_connection_ends_at_its_own_deadline(autojump_clock, nursery):
    """Closed are: one after 75 s from 10, one with a request at 60 after 75 s from there, and none that works."""
    began, idle = trio.current_time(), IdleConnections(SECONDS)
    nursery.start_soon(idle.run)
    silent, again, works, together = Waiting(), Waiting(), Waiting(), Waiting()
    await trio.sleep(10)
    for each in (again, works, silent, together):
        idle.begin(each)
    await trio.sleep(50)
    idle.end(works)
    idle.end(again)
    idle.begin(again)
    await trio.sleep(1000)
    assert [each.ended_at and each.ended_at - began for each in (silent, together, again, works)] == [85, 85, 135, None]


async def test_a_wait_that_starts_alone_ends_in_time(autojump_clock, nursery):
    """One that starts to wait long after the last one was closed ends after its 75 s, not at some later check."""
    began, idle = trio.current_time(), IdleConnections(SECONDS)
    nursery.start_soon(idle.run)
    await trio.sleep(70)  # the next check would be at 75, without any that waits
    late = Waiting()
    idle.begin(late)
    await trio.sleep(500)
    assert late.ended_at == began + 145


async def test_a_connection_that_was_closed_is_not_closed_twice(autojump_clock, nursery):
    idle, gone = IdleConnections(SECONDS), Waiting()
    nursery.start_soon(idle.run)
    idle.begin(gone)
    await trio.sleep(74)
    idle.end(gone)
    idle.end(gone)
    await trio.sleep(500)
    assert gone.ended_at is None


async def test_a_server_closes_idle_and_not_busy_connections(autojump_clock, nursery):
    """An answer that takes 100 s comes; its connection ends 75 s later, an unused one 75 s after it was accepted."""
    listener, ends = MemoryListener(), {}

    async def slow(exchange):
        await trio.sleep(100)
        await echo(exchange)

    async def watch(name, stream):
        assert await receive_all(stream) == b""
        ends[name] = trio.current_time() - began

    await nursery.start(run_server, slow, [listener])
    silent, asks = await listener.connect("h", 1), await listener.connect("h", 1)
    began = trio.current_time()
    nursery.start_soon(watch, "silent", silent)
    await asks.send_all(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
    await receive_until(asks, b"GET /a ")
    with trio.fail_after(1000):
        await watch("asks", asks)
    assert ends == pytest.approx({"silent": 75, "asks": 175}, abs=0.001)
