"""Periodic work of all tasks of one process happens together, so that an idle machine sleeps in between."""

import math
from collections.abc import Awaitable, Callable

import attrs
import trio


async def wait_any(first: Callable[[], Awaitable[object]], *others: Callable[[], Awaitable[object]]) -> None:
    """Return as soon as the first of several waits has returned; the others are cancelled.

    A wait that fails ends them all, and its error comes out in a group, as from any nursery.
    """
    async with trio.open_nursery() as nursery:

        async def end_all(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel(reason="another wait has ended")

        for wait in others:
            nursery.start_soon(end_all, wait)
        await end_all(first)


@attrs.define(eq=False)
class _Waiter:
    """One who waits for a tick.

    Attributes:
        due: When.
        is_idle: Says at the tick whether to sleep on.
        wake: Set when there is something to do: the tick is over for it, or it has to sleep for all.
        done: Its wait is over.
        early: `skip_ticks` was called.
    """

    due: float
    is_idle: Callable[[], bool] | None
    wake: trio.Event = attrs.field(factory=trio.Event)
    done: bool = False
    early: bool = False

    def end(self, *, early: bool = False) -> None:
        self.done, self.early = True, early
        self.wake.set()


@attrs.define(eq=False)
class _Period:
    """All who wait for ticks of one period: one of them sleeps, at three times the price of waiting for the sleeper."""

    seconds: float
    waiting: dict[_Waiter, None] = attrs.field(factory=dict)
    sleeper: _Waiter | None = None

    def next_due(self) -> float:
        """The next multiple; by rounding the one that is now may look like it, and no task waits for that."""
        now = trio.current_time()
        due = (math.floor(now / self.seconds) + 1) * self.seconds
        return due if due > now else due + self.seconds

    async def wait(self, waiter: _Waiter) -> None:
        """Return when the waiter's wait is over; a task that finds no sleeper sleeps for all."""
        self.waiting[waiter] = None
        try:
            while not waiter.done:
                if self.sleeper is None:
                    await self._sleep(waiter)
                else:
                    await waiter.wake.wait()
                    if not waiter.done:
                        waiter.wake = trio.Event()
        finally:
            del self.waiting[waiter]
            if self.sleeper is None and self.waiting:  # it may have been cancelled
                next(iter(self.waiting)).wake.set()

    async def _sleep(self, waiter: _Waiter) -> None:
        self.sleeper = waiter
        try:
            with trio.move_on_at(min(each.due for each in self.waiting)):
                await waiter.wake.wait()
        finally:
            self.sleeper = None
        self._end_due()

    def _end_due(self) -> None:
        """End the waits that are due, except those of waiters that are idle."""
        now, due = trio.current_time(), self.next_due()
        for each in tuple(self.waiting):
            if each.due > now or each.done:
                continue
            if each.is_idle is not None and _is_idle(each.is_idle):
                each.due = due
            else:
                each.end()


@attrs.define(eq=False)
class _Ticks:
    """The periods that tasks wait for, and how often ticks were skipped."""

    periods: dict[float, _Period] = attrs.field(factory=dict)
    skips: int = 0


_run_ticks: trio.lowlevel.RunVar[_Ticks] = trio.lowlevel.RunVar("llmkube.base.waiting")


async def wait_tick(
    period_seconds: float, *, skips: int | None = None, is_idle: Callable[[], bool] | None = None
) -> bool:
    """Sleep until Trio's clock next reaches a multiple of the period: all who share a period wake in one wake-up.

    Args:
        period_seconds: How long between two of them.
        skips: What `skip_count` said when the caller took note of them last; one that came while it was busy with
            something else is then not lost on it.
        is_idle: Called at the tick, by the task that sleeps for all; if it returns True the caller sleeps on until the
            next one. For hundreds who nearly always find nothing to do: a call costs a tenth of what waking a task
            costs. It must not wait. What it raises ends the wait like False, and the caller finds the cause by itself.

    Returns:
        Whether it came early, because `skip_ticks` was called.
    """
    ticks = _ticks()
    if skips is not None and skips != ticks.skips:
        await trio.lowlevel.checkpoint()
        return True
    period = ticks.periods.get(period_seconds)
    if period is None:
        period = ticks.periods[period_seconds] = _Period(period_seconds)
    waiter = _Waiter(period.next_due(), is_idle)
    try:
        await period.wait(waiter)
    finally:
        if not period.waiting:  # a period may be a random one
            ticks.periods.pop(period_seconds, None)
    return waiter.early


def skip_ticks() -> None:
    """Wake all tasks that wait for a tick now: the machine has slept, and what was seen before is old."""
    ticks = _ticks()
    ticks.skips += 1
    for period in ticks.periods.values():
        for waiter in period.waiting:
            if not waiter.done:
                waiter.end(early=True)


def skip_count() -> int:
    """Return how often `skip_ticks` was called in this run."""
    return _ticks().skips


def _is_idle(is_idle: Callable[[], bool]) -> bool:
    try:
        return is_idle()
    except Exception:  # noqa: BLE001 - it is called in another task, and its own task comes to the same place
        return False


def _ticks() -> _Ticks:
    try:
        return _run_ticks.get()
    except LookupError:
        _run_ticks.set(fresh := _Ticks())
        return fresh
