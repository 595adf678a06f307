"""Whether an engine that serves still has its model, and in which build, where another program holds it.

That program may take the model away, and may be upgraded by its owner while the engine runs.

What such an engine says of its work says nothing of that: it answers for its requests, and 503 where it says that it is
ready. So this is asked by itself, and often: an endpoint must not stay published whose requests are all refused.
"""

from collections.abc import Callable
from typing import Final, Literal

import trio

from llmkube.base.http.errors import HttpError
from llmkube.supervisor.engine.health import Engine

ANSWER_SECONDS: Final = 5.0
"""What is late says nothing, as what is not answered at all: other looks judge that."""

Said = Literal["loaded", "lost", "nothing"]


async def watch_model(engine: Engine, tell: Callable[[Said, str], None], tick_seconds: float) -> None:
    """Never return: ask at each tick, and tell what was said each time.

    Args:
        engine: Answers 200 with its model when it is asked whether it is ready, and 503 without.
        tell: Told each time, of a loaded model with the build that has it, or "" where that is not said; what others
            say of the engine meanwhile may need to be corrected.
        tick_seconds: Between two questions.
    """
    while True:
        await trio.sleep(tick_seconds)
        said = await _ask(engine)
        tell(said, await engine.build() if said == "loaded" else "")


async def _ask(engine: Engine) -> Said:
    status = 0
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            status = (await engine.http.request("GET", engine.ready_url)).status
        except HttpError:
            return "nothing"
    return "loaded" if status == 200 else "lost" if status == 503 else "nothing"
