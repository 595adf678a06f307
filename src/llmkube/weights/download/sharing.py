"""However many services wait for a file, it is downloaded once; whoever stops waiting takes nobody's download away.

Nor does who stops to begin anew: every edit of a service interrupts its planner, which then asks for the same again.
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
"""How long work goes on that nobody waits for: a server that cannot resume would have to send everything again."""


@attrs.frozen
class _Result(Generic[T]):
    value: T


@attrs.define(eq=False)
class _Order(Generic[T]):
    """One piece of work: what it last said, and who still wants it."""

    key: Hashable
    work: Work[T]
    scope: trio.CancelScope
    news: Mailbox[Progress | _Result[T] | Exception]
    waiters: int = 0


class Shared(Generic[T]):
    """Work by key, at most one at a time each; `open_shared` makes one."""

    def __init__(self, orders: trio.MemorySendChannel[_Order[T]]) -> None:
        self._orders = orders
        self._running: dict[Hashable, _Order[T]] = {}

    def active(self) -> dict[Hashable, Progress]:
        """How far each piece of work has come."""
        values = {key: order.news.value for key, order in self._running.items()}
        return {key: value for key, value in values.items() if isinstance(value, Progress)}

    async def join(self, key: Hashable, work: Work[T], progress: OnProgress) -> T:
        """Return what the work under a key returns, or raise what it raises; it begins if nobody is at it.

        It is cancelled a moment after the last one who waits is. `progress` is called in this task.
        """
        order = self._running.get(key)
        if order is None or order.scope.cancel_called:
            order = self._running[key] = _Order(key, work, trio.CancelScope(), Mailbox(Progress("resolving")))
            self._orders.send_nowait(order)
        order.waiters += 1
        order.scope.deadline = math.inf
        version = -1
        try:
            while True:
                news = await order.news.wait_newer(version)
                version = order.news.version
                if isinstance(news, _Result):
                    return news.value
                if isinstance(news, Exception):
                    raise news
                progress(news)
        finally:
            order.waiters -= 1
            if order.waiters == 0:
                order.scope.deadline = trio.current_time() + LINGER_SECONDS

    def forget(self, order: _Order[T]) -> None:
        """Let the next one who asks for the same begin anew."""
        if self._running.get(order.key) is order:
            del self._running[order.key]


@asynccontextmanager
async def open_shared(result: type[T]) -> AsyncGenerator[Shared[T], None]:
    """Open a place for shared work with results of one type; leaving it cancels what is still running."""
    # Each caller has at most one order in it. A bounded one would let a caller be cancelled between the table of orders
    # and the channel, and whoever had joined in between would wait for work that never begins.
    send, receive = trio.open_memory_channel[_Order[T]](math.inf)
    shared = Shared(send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, shared, receive)
        yield shared
        nursery.cancel_scope.cancel(reason="the owner is done")


async def _serve(shared: Shared[T], orders: trio.MemoryReceiveChannel[_Order[T]]) -> None:
    async with trio.open_nursery() as nursery:
        async for order in orders:
            nursery.start_soon(_run, shared, order)


async def _run(shared: Shared[T], order: _Order[T]) -> None:
    with order.scope:
        try:
            news: _Result[T] | Exception = _Result(await order.work(order.news.put_nowait))
        except Exception as error:  # noqa: BLE001 - not swallowed: all who wait raise it, each in a task of its own
            news = error
        shared.forget(order)
        order.news.put_nowait(news)
    shared.forget(order)
