"""What an engine answers: whether it is ready, which models it serves, whether requests are in flight."""

import json
import re
from collections.abc import Callable

import trio

from llmkube.base.http import HttpClient, HttpError
from llmkube.base.tick import wait_tick

FIRST_POLL_SECONDS = 0.02
POLL_CAP_SECONDS = 0.25
ANSWER_SECONDS = 5.0
WATCH_SECONDS = 10.0
IDLE_POLL_SECONDS = 0.1

_IN_FLIGHT = re.compile(rb"^llamacpp:requests_(?:processing|deferred)(?:\{[^}]*\})?\s+(\d+)", re.MULTILINE)


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


async def model_names(http: HttpClient, url: str) -> frozenset[str]:
    """Return the names of the models that an engine says it serves; empty when it does not say."""
    body = await _body(http, f"{url}/v1/models")
    try:
        return frozenset(str(model["id"]) for model in json.loads(body)["data"])
    except (ValueError, KeyError, TypeError):
        return frozenset()


async def wait_idle(http: HttpClient, url: str) -> None:
    """Return when no request is in flight or queued, or when that cannot be told; a deadline is the caller's.

    llama-server counts both in its metrics (with `--metrics`, which our plans give); without them its slots say who is
    at work, but not who waits.
    """
    while await in_flight(http, url):  # noqa: ASYNC110 - another process knows it: there is no event
        await trio.sleep(IDLE_POLL_SECONDS)


async def in_flight(http: HttpClient, url: str) -> int:
    """Return how many requests an engine works on or has queued; 0 when it does not say."""
    counts = [int(count) for count in _IN_FLIGHT.findall(await _body(http, f"{url}/metrics"))]
    if counts:
        return sum(counts)
    try:
        return sum(bool(slot["is_processing"]) for slot in json.loads(await _body(http, f"{url}/slots")))
    except (ValueError, KeyError, TypeError):
        return 0


async def _body(http: HttpClient, url: str) -> bytes:
    """The body of a 200, and nothing of anything else; a busy engine is given `ANSWER_SECONDS`."""
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            response = await http.request("GET", url, max_body_bytes=4 * 1024 * 1024)
        except HttpError:
            return b""
        return response.body if response.status == 200 else b""
    return b""
