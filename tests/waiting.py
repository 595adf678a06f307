"""Wait for a fact about the real world that offers no event; the deadline is the caller's."""

from collections.abc import Callable

import trio


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; it is looked at often, and less often while it does not."""
    pause = 0.01
    while not condition():
        await trio.sleep(pause)
        pause = min(pause * 1.2, 0.1)
