"""Periodic work of everybody on one host happens together, so that an idle machine sleeps in between."""

import math

import attrs
import trio


@attrs.define(eq=False)
class _Tick:
    """A moment that somebody sleeps for; the others wait for the sleeper, at a third of what a sleep costs."""

    over: trio.Event = attrs.field(factory=trio.Event)
    early: bool = False


@attrs.define(eq=False)
class _Ticks:
    """The next tick of each period that anybody waits for, and how often they were skipped."""

    coming: dict[float, _Tick] = attrs.field(factory=dict)
    skips: int = 0


_of_this_run: trio.lowlevel.RunVar[_Ticks] = trio.lowlevel.RunVar("llmkube.base.tick")


async def wait_tick(period_seconds: float, *, skips: int | None = None) -> bool:
    """Sleep until Trio's clock next reaches a multiple of the period: all who share a period wake in one wake-up.

    Args:
        period_seconds: How long between two of them.
        skips: What `skips_so_far` said when the caller took note of them last; one that came while it was busy with
            something else is then not lost on it.

    Returns:
        Whether it came early, because somebody has called `skip_ticks`.
    """
    ticks = _ticks()
    if skips is not None and skips != ticks.skips:
        await trio.lowlevel.checkpoint()
        return True
    due = (math.floor(trio.current_time() / period_seconds) + 1) * period_seconds
    coming = ticks.coming
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
    ticks = _ticks()
    ticks.skips += 1
    for tick in ticks.coming.values():
        tick.early = True
        tick.over.set()
    ticks.coming.clear()


def skips_so_far() -> int:
    """Return how often `skip_ticks` was called in this run."""
    return _ticks().skips


def _ticks() -> _Ticks:
    try:
        return _of_this_run.get()
    except LookupError:
        _of_this_run.set(fresh := _Ticks())
        return fresh
