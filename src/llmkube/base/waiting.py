"""Wait for the first of several events, or for ticks that all tasks share so that an idle machine sleeps in between."""

import math
from collections.abc import Awaitable, Callable

import attrs
import trio


async def wait_any(first: Callable[[], Awaitable[object]], *others: Callable[[], Awaitable[object]]) -> None:
    """Return as soon as the first of several waits returns, and cancel the others.

    If a wait fails, the others are cancelled, and its error is raised in a group, as from any nursery.
    """
    async with trio.open_nursery() as nursery:

        async def end_all(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel(reason="another wait has returned")

        for wait in others:
            nursery.start_soon(end_all, wait)
        await end_all(first)


@attrs.define(eq=False)
class _Waiter:
    """A task that waits for a tick.

    Attributes:
        due: Time of the tick.
        is_idle: Called at the tick; True keeps the task asleep until the next one.
        wake: Set when the task has to act: its wait is over, or it has to sleep on behalf of all.
        done: Its wait is over.
        early: Its wait is over because of `skip_ticks`.
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
    """All tasks that wait for ticks of one period: one sleeps; the others wait for it, at a third of the cost."""

    seconds: float
    waiting: dict[_Waiter, None] = attrs.field(factory=dict)
    sleeper: _Waiter | None = None

    def next_due(self) -> float:
        """Return the time of the next multiple of the period, never the current time, which rounding could give."""
        now = trio.current_time()
        due = (math.floor(now / self.seconds) + 1) * self.seconds
        return due if due > now else due + self.seconds

    async def wait(self, waiter: _Waiter) -> None:
        """Return when the waiter is done; if no task sleeps, this one sleeps for all."""
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
            if self.sleeper is None and self.waiting:  # the sleeper may have been cancelled
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
        """End the waits that are due, except those of idle waiters."""
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
    """Periods that tasks wait for, and the number of `skip_ticks` calls."""

    periods: dict[float, _Period] = attrs.field(factory=dict)
    skips: int = 0


_run_ticks: trio.lowlevel.RunVar[_Ticks] = trio.lowlevel.RunVar("llmkube.base.waiting")


async def wait_tick(
    period_seconds: float, *, skips: int | None = None, is_idle: Callable[[], bool] | None = None
) -> bool:
    """Sleep until Trio's clock reaches the next multiple of the period, so that all tasks of a period wake together.

    Args:
        period_seconds: The period.
        skips: Result of `skip_count` at the caller's last check: returns at once if ticks were skipped since, so that
            the caller does not miss a skip while it is busy.
        is_idle: Called at the tick, by the task that sleeps for all; True keeps the caller asleep until the next tick.
            For hundreds of tasks that nearly always have nothing to do: the call costs a tenth of waking a task. It
            must not block. If it raises, the wait ends as with False, and the caller meets the cause itself.

    Returns:
        Whether the wait ended early, because `skip_ticks` was called.
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
        if not period.waiting:  # do not accumulate periods: they may be random
            ticks.periods.pop(period_seconds, None)
    return waiter.early


def skip_ticks() -> None:
    """Wake all tasks that wait for a tick: the machine has slept, and earlier observations are outdated."""
    ticks = _ticks()
    ticks.skips += 1
    for period in ticks.periods.values():
        for waiter in period.waiting:
            if not waiter.done:
                waiter.end(early=True)


def skip_count() -> int:
    """Return the number of `skip_ticks` calls in this Trio run."""
    return _ticks().skips


def _is_idle(is_idle: Callable[[], bool]) -> bool:
    try:
        return is_idle()
    except Exception:  # noqa: BLE001 - another task calls it; its own task meets the error itself
        return False


def _ticks() -> _Ticks:
    try:
        return _run_ticks.get()
    except LookupError:
        _run_ticks.set(fresh := _Ticks())
        return fresh
