"""Wait for a state of the real world that offers no event; a caller may have a nearer deadline."""

from collections.abc import Callable

import trio


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; it is checked often at first, and then less often.

    Raises:
        trio.TooSlowError: It does not hold after five minutes.
    """
    pause = 0.01
    with trio.fail_after(300):
        while not condition():
            await trio.sleep(pause)
            pause = min(pause * 1.2, 0.1)
