"""Whether an engine answers: asked until it does, then watched for the moment when nobody listens any more."""

from collections.abc import Callable

import trio

from llmkube.base.http import HttpClient, HttpError
from llmkube.base.tick import wait_tick

FIRST_POLL_SECONDS = 0.02
POLL_CAP_SECONDS = 0.25
ANSWER_SECONDS = 5.0
WATCH_SECONDS = 10.0


async def wait_ready(http: HttpClient, url: str) -> None:
    """Return when the engine answers 200 on its readiness URL; a deadline is the caller's.

    The first questions follow each other closely, since a small model loads in less time than a comfortable poll.
    """
    pause = FIRST_POLL_SECONDS
    while await ask(http, url) != "ok":
        await trio.sleep(pause)
        pause = min(pause * 1.5, POLL_CAP_SECONDS)


async def ask(http: HttpClient, url: str) -> str:
    """Ask once: `ok`, `busy` (it listens, but gave no 200 in time) or `gone` (nobody listens, or it broke off)."""
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            response = await http.request("GET", url, max_body_bytes=64 * 1024)
        except HttpError:
            return "gone"
        return "ok" if response.status == 200 else "busy"
    return "busy"


async def watch(http: HttpClient, url: str, changed: Callable[[bool], None]) -> None:
    """Never return; call `changed` when the engine stops or starts to listen.

    Silence is not death: a server deep in a long prompt may answer `/health` late, and taking it out of service would
    punish it for working. Only a refused or broken connection, twice in a row, says that nobody can be served.
    """
    answering, misses = True, 0
    while True:
        await wait_tick(WATCH_SECONDS)
        verdict = await ask(http, url)
        misses = misses + 1 if verdict == "gone" else 0
        now_answering = misses < 2 if answering else verdict == "ok"
        if now_answering != answering:
            answering = now_answering
            changed(answering)
