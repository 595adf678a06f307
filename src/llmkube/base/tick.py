"""Periodic work of everybody on one host happens together, so that an idle machine sleeps in between."""

import math

import trio

_coming: trio.lowlevel.RunVar[dict[float, trio.Event]] = trio.lowlevel.RunVar("llmkube.base.tick")
"""By period, the tick that somebody sleeps for; the others wait for the sleeper, at a third of what a sleep costs."""


async def wait_tick(period_seconds: float) -> None:
    """Sleep until Trio's clock next reaches a multiple of the period: all who share a period wake in one wake-up."""
    due = (math.floor(trio.current_time() / period_seconds) + 1) * period_seconds
    try:
        coming = _coming.get()
    except LookupError:
        _coming.set(coming := {})
    # Whoever sleeps for all may be cancelled: then one of the others does.
    while trio.current_time() < due:
        if (tick := coming.get(period_seconds)) is not None:
            await tick.wait()
            continue
        coming[period_seconds] = tick = trio.Event()
        try:
            await trio.sleep_until(due)
        finally:
            del coming[period_seconds]
            tick.set()
