"""Share one download among all tasks that wait for the same file.

A task that stops waiting does not cancel it for the others, nor for itself if it soon waits again: every edit of a
service interrupts its planner, which then requests the same file.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import attrs
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.weights.download.progress import OnProgress, Progress

T = TypeVar("T")
Work = Callable[[OnProgress], Awaitable[T]]

LINGER_SECONDS: Final = 2.0
"""The time for which work continues without a waiter: some servers cannot resume, and would send everything again."""


@attrs.frozen
class _Result(Generic[T]):
    value: T


@attrs.define(eq=False)
class _Call(Generic[T]):
    """One piece of work: its latest state and the number of waiters."""

    key: Hashable
    work: Work[T]
    scope: trio.CancelScope
    state: Mailbox[Progress | _Result[T] | Exception]
    waiters: int = 0


class SingleFlight(Generic[T]):
    """Shared work by key, at most one at a time per key; `open_single_flight` creates it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._running: dict[Hashable, _Call[T]] = {}

    def active(self) -> dict[Hashable, Progress]:
        """Return the progress of each piece of work."""
        values = {key: call.state.value for key, call in self._running.items()}
        return {key: value for key, value in values.items() if isinstance(value, Progress)}

    async def join(self, key: Hashable, work: Work[T], progress: OnProgress) -> T:
        """Return the result of the work under a key, or raise its exception; start it if it is not running.

        It is cancelled a moment after its last waiter. `progress` is called in this task.
        """
        call = self._running.get(key)
        if call is None or call.scope.cancel_called:
            call = self._running[key] = _Call(key, work, trio.CancelScope(), Mailbox(Progress("resolving")))
            self._nursery.start_soon(self._run, call)
        call.waiters += 1
        call.scope.deadline = math.inf
        version = -1
        try:
            while True:
                state = await call.state.wait_newer(version)
                version = call.state.version
                if isinstance(state, _Result):
                    return state.value
                if isinstance(state, Exception):
                    raise state
                progress(state)
        finally:
            call.waiters -= 1
            if call.waiters == 0:
                call.scope.deadline = trio.current_time() + LINGER_SECONDS

    async def _run(self, call: _Call[T]) -> None:
        with call.scope:
            try:
                state: _Result[T] | Exception = _Result(await call.work(call.state.put_nowait))
            except Exception as error:  # noqa: BLE001 - not swallowed: every waiter raises it, in its own task
                state = error
            self._forget(call)
            call.state.put_nowait(state)
        self._forget(call)

    def _forget(self, call: _Call[T]) -> None:
        """Let the next call for the same key start the work again."""
        if self._running.get(call.key) is call:
            del self._running[call.key]


@asynccontextmanager
async def open_single_flight(result: type[T]) -> AsyncGenerator[SingleFlight[T], None]:
    """Yield a `SingleFlight` with results of one type; on exit, running work is cancelled."""
    async with trio.open_nursery() as nursery:
        yield SingleFlight(nursery)
        nursery.cancel_scope.cancel(reason="the owner is done")
