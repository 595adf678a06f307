"""Shares of the event loop: clients take turns, and steps that block it leave time for all other tasks.

Trio runs all tasks that are ready in one round, so a client with many of them, or with long ones, delays every other.
Sockets (`base/http/hub`) wake few tasks in a round, of one client after the other. Steps on large bodies (`long_step`)
run one at a time, of one client after the other, and after each the loop is free of them for as long as it took.
"""

from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from itertools import islice
from types import TracebackType
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

    def remove(self, client: str, item: Item) -> bool:
        """Remove an item, and return whether it was waiting."""
        queue = self._queues.get(client, {})
        is_waiting = item in queue
        queue.pop(item, None)
        if not queue:
            self._queues.pop(client, None)
        return is_waiting

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


@attrs.define(eq=False)
class _LongSteps:
    """The steps of one Trio run: one runs or is about to, others wait."""

    waiting: ClientQueues[trio.Event] = attrs.field(factory=ClientQueues)
    is_taken: bool = False
    last: trio.lowlevel.Task | None = None
    began_at: float = 0.0
    free_at: float = 0.0

    async def __aenter__(self) -> None:
        task, has_begun = trio.lowlevel.current_task(), False
        if self.is_taken:
            await self._wait_turn()
        elif task is self.last:  # no other task has waited
            self.free_at = 0.0
        self.is_taken = True
        try:
            await trio.lowlevel.checkpoint()
            await trio.sleep_until(self.free_at)
            has_begun = True
        finally:
            if not has_begun:
                self._pass_on()
        self.last, self.began_at = task, trio.current_time()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = trio.current_time()
        self.free_at = now + min(now - self.began_at, MAX_PAUSE_SECONDS)
        self._pass_on()

    async def _wait_turn(self) -> None:
        client, turn, is_next = current_client.get(), trio.Event(), False
        self.waiting.add(client, turn)
        try:
            await turn.wait()
            is_next = True
        finally:
            if not is_next and not self.waiting.remove(client, turn):
                self._pass_on()  # cancelled just as its turn came

    def _pass_on(self) -> None:
        following = self.waiting.take(1, 1)
        self.is_taken = bool(following)
        for turn in following:
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
        return _steps.get()
    except LookupError:
        _steps.set(steps := _LongSteps())
        return steps
