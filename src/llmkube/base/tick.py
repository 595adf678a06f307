"""Periodic work of everybody on one host happens together, so that an idle machine sleeps in between."""

import math

import attrs
import trio


@attrs.define(eq=False)
class _Tick:
    """A moment that somebody sleeps for; the others wait for the sleeper, at a third of what a sleep costs."""

    over: trio.Event = attrs.field(factory=trio.Event)
    early: bool = False


_coming: trio.lowlevel.RunVar[dict[float, _Tick]] = trio.lowlevel.RunVar("llmkube.base.tick")
"""The next tick of each period that anybody waits for."""


async def wait_tick(period_seconds: float) -> bool:
    """Sleep until Trio's clock next reaches a multiple of the period: all who share a period wake in one wake-up.

    Returns:
        Whether it came early, because somebody has called `skip_ticks`.
    """
    due = (math.floor(trio.current_time() / period_seconds) + 1) * period_seconds
    coming = _ticks()
    # Whoever sleeps for all may be cancelled: then one of the others does.
    while trio.current_time() < due:
        if (tick := coming.get(period_seconds)) is not None:
            await tick.over.wait()
        else:
            coming[period_seconds] = tick = _Tick()
            try:
                with trio.move_on_at(due):
                    await tick.over.wait()
            finally:
                if coming.get(period_seconds) is tick:
                    del coming[period_seconds]
                tick.over.set()
        if tick.early:
            return True
    return False


def skip_ticks() -> None:
    """Wake everybody who waits for a tick now: the machine has slept, and what was seen before is old."""
    coming = _ticks()
    for tick in coming.values():
        tick.early = True
        tick.over.set()
    coming.clear()


def _ticks() -> dict[float, _Tick]:
    try:
        return _coming.get()
    except LookupError:
        fresh: dict[float, _Tick] = {}
        _coming.set(fresh)
        return fresh
