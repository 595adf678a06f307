"""Wait for a fact about the real world that offers no event; the deadline is the caller's."""

from collections.abc import Callable

import trio


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds."""
    while not condition():  # noqa: ASYNC110 - the real world offers no event here
        await trio.sleep(0.01)
