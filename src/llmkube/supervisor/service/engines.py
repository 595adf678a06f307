"""The engines of one service: each attempt in a task of one nursery, which ends after the last of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from llmkube.supervisor.service.attempt import Attempt

FOLLOW_SECONDS: Final = 2.0
"""After the API server has heard of a new endpoint; nodes follow after a moment (kube-proxy gathers for up to 1 s)."""


@attrs.define(eq=False)
class Engines:
    """Start attempts, and let those end that have been replaced."""

    _nursery: trio.Nursery
    _alive: list[Attempt]

    async def start(self, attempt: Attempt) -> None:
        """Return when an engine serves, or has ended before it did; whatever cancels the wait until then ends it."""
        await self._nursery.start(self._run, attempt)

    def retire(self, old: Attempt) -> None:
        """Let an engine end in a task of its own when no request is sent to it any more."""
        self._nursery.start_soon(retire, old)

    async def _run(self, attempt: Attempt, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        attempt.tell_start(task_status)
        del task_status  # it holds the nursery that the start was awaited in: the attempt drops it once it is told
        self._alive.append(attempt)
        try:
            await attempt.run()
        finally:
            self._alive.remove(attempt)


@asynccontextmanager
async def open_engines(alive: list[Attempt]) -> AsyncIterator[Engines]:
    """Open the nursery of a service's engines; `alive` lists those that are there."""
    async with trio.open_nursery() as nursery:
        yield Engines(nursery, alive)


async def retire(old: Attempt) -> None:
    """End an engine once clients have followed its successor's endpoint."""
    with trio.move_on_after(old.context.settings.withdraw_seconds):
        await old.context.status_manager.wait_endpoint_heard()
    await trio.sleep(FOLLOW_SECONDS)
    old.scope.cancel(reason="its successor serves")
