"""Whether an engine that serves still has its model, where another program holds it and may take it away.

What such an engine says of its work says nothing of that: it answers for its requests, and 503 where it says that it is
ready. So this is asked by itself, and often: an endpoint must not stay published whose requests are all refused.
"""

from collections.abc import Callable
from typing import Final, Literal

import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError

ANSWER_SECONDS: Final = 5.0
"""What is late says nothing, as what is not answered at all: other looks judge that."""

Said = Literal["loaded", "lost", "nothing"]


async def watch_model(http: HttpClient, ready_url: str, tell: Callable[[Said], None], tick_seconds: float) -> None:
    """Never return: ask at each tick, and tell what was said each time.

    Args:
        http: The way to the engine.
        ready_url: Answers 200 with its model, and 503 without.
        tell: Told each time; what others say of the engine meanwhile may need to be corrected.
        tick_seconds: Between two questions.
    """
    while True:
        await trio.sleep(tick_seconds)
        tell(await _ask(http, ready_url))


async def _ask(http: HttpClient, ready_url: str) -> Said:
    status = 0
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            status = (await http.request("GET", ready_url)).status
        except HttpError:
            return "nothing"
    return "loaded" if status == 200 else "lost" if status == 503 else "nothing"
