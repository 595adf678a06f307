"""Shares of the event loop: clients take turns, and steps that block it leave time for all other tasks.

Trio runs all tasks that are ready in one round, so a client with many of them, or with long ones, delays every other.
Sockets (`base/http/hub`) wake few tasks in a round, of one client after the other. Steps on large bodies (`long_step`)
run one at a time, of one client after the other. After each the loop is free of them for as long as it took, and of a
smaller one for a part of that.
"""

import math
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from itertools import islice
from typing import Final, Generic, TypeVar

import attrs
import trio

LONG_BYTES: Final = 64 << 10
"""Above this size, parsing or writing a body blocks the loop noticeably."""

MAX_PAUSE_SECONDS: Final = 0.05
"""Longest pause after a step."""

current_client: ContextVar[str] = ContextVar("llmkube.client", default="")
"""Client on whose behalf a task runs; "" for the program itself."""

Item = TypeVar("Item", bound=Hashable)


@attrs.define(eq=False)
class ClientQueues(Generic[Item]):
    """Items that wait, by client; clients take turns, and those of one client are in order."""

    _queues: dict[str, dict[Item, None]] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        """Return whether any item waits."""
        return bool(self._queues)

    def add(self, client: str, item: Item) -> None:
        """Append an item, unless it waits already."""
        self._queues.setdefault(client, {})[item] = None

    def take(self, most: int, of_each: int) -> list[Item]:
        """Remove and return the next items, at most so many in all and of each client."""
        taken: list[Item] = []
        for client in list(islice(self._queues, most)):
            if len(taken) == most:
                break
            queue = self._queues.pop(client)
            items = list(islice(queue, min(of_each, most - len(taken))))
            for item in items:
                del queue[item]
            taken += items
            if queue:
                self._queues[client] = queue
        return taken


@attrs.frozen(order=True)
class _Pause:
    """The time after a step of some size."""

    end: float = 0.0
    begin: float = 0.0
    size: int = 1

    def end_for(self, size: int) -> float:
        """Return when a step of this size may begin."""
        return self.begin + (self.end - self.begin) * min(1.0, size / self.size)


@attrs.define(eq=False)
class _LongSteps:
    """The steps of one Trio run: one runs or is about to, others wait."""

    waiting: ClientQueues[trio.Event] = attrs.field(factory=ClientQueues)
    is_taken: bool = False
    last: trio.lowlevel.Task | None = None
    pause: _Pause = _Pause()

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for a turn, a round of the event loop at least, and for the end of the pause after the last step."""
        task, began_at = trio.lowlevel.current_task(), math.inf
        if self.is_taken:
            await self._wait_turn()
        elif task is self.last:  # no other task has waited
            self.pause = _Pause()
        self.is_taken, self.last = True, task
        try:
            await trio.sleep_until(self.pause.end_for(size))
            began_at = trio.current_time()
            yield
        finally:
            now = trio.current_time()
            self.pause = max(self.pause, _Pause(now + min(now - began_at, MAX_PAUSE_SECONDS), now, size))
            self._pass_on()

    async def _wait_turn(self) -> None:
        client, turn = current_client.get(), trio.Event()
        self.waiting.add(client, turn)
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():  # its turn came at the same time
                self._pass_on()
            turn.set()
            raise

    def _pass_on(self) -> None:
        self.is_taken = False
        while self.waiting and not self.is_taken:
            [turn] = self.waiting.take(1, 1)
            self.is_taken = not turn.is_set()  # those that were cancelled are set
            turn.set()


_steps: trio.lowlevel.RunVar[_LongSteps] = trio.lowlevel.RunVar("llmkube.base.loop_shares")
_SHORT: Final = nullcontext()


def long_step(size: int) -> AbstractAsyncContextManager[None]:
    """Return a context for a step that blocks the loop, by the size of what it handles; a short one does not wait.

    Nothing inside should wait: other long steps do.
    """
    if size <= LONG_BYTES:
        return _SHORT
    try:
        return _steps.get().turn(size)
    except LookupError:
        _steps.set(steps := _LongSteps())
        return steps.turn(size)
