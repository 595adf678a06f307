"""Waiting for one thing or another."""

from collections.abc import Awaitable, Callable

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
