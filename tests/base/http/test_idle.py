"""Idle connections end at their own moment, however many there are and whenever each began to wait."""

import attrs
import trio

from llmkube.base.http.idle import IdleConnections

SECONDS = 75.0


@attrs.define(eq=False)
class Waiting:
    """A connection that notes when it was ended."""

    ended_at: float | None = None

    def make_room(self):
        assert self.ended_at is None
        self.ended_at = trio.current_time()


async def test_each_ends_when_its_own_time_is_over_and_one_that_asks_again_later(autojump_clock, nursery):
    """Ended are: one after 75 s from 10, one that asks again at 60 after 75 s from there, and none that works."""
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


async def test_what_begins_while_none_waits_ends_in_time(autojump_clock, nursery):
    """One that begins to wait long after the last one has gone ends after its 75 s, not at some later look."""
    began, idle = trio.current_time(), IdleConnections(SECONDS)
    nursery.start_soon(idle.run)
    await trio.sleep(70)  # the next look would be at 75, without any that waits
    late = Waiting()
    idle.begin(late)
    await trio.sleep(500)
    assert late.ended_at == began + 145


async def test_one_that_is_ended_by_something_else_is_not_ended_twice(autojump_clock, nursery):
    """A connection that has gone before its time is left alone."""
    idle, gone = IdleConnections(SECONDS), Waiting()
    nursery.start_soon(idle.run)
    idle.begin(gone)
    await trio.sleep(74)
    idle.end(gone)
    idle.end(gone)
    await trio.sleep(500)
    assert gone.ended_at is None
