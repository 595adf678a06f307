"""What an engine says of its model: 200 and 503 count, and nothing else does; and which build has it."""

import pytest
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.engine.health import Engine, bearer
from llmkube.supervisor.engine.model_watch import watch_model

KEY = "CanaryKey"


def engine(http, runtime="ollama"):
    return Engine(http, "http://127.0.0.1:1", LaunchPlan((), (), runtime, "chat"), bearer(KEY))


@pytest.mark.parametrize(
    ("status", "delay_seconds", "said"),
    [(200, 0, "loaded"), (503, 0, "lost"), (404, 0, "nothing"), (500, 0, "nothing"), (503, 60, "nothing")],
)
async def test_each_tick_tells_what_was_said(autojump_clock, status, delay_seconds, said):
    """What is late is no word about the model: a machine at work is late."""
    listener, told = MemoryListener(), []

    async def answer(exchange):
        await trio.sleep(delay_seconds)
        await exchange.respond(Response.json(status, {}))

    async with open_http_client(listener.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, answer, [listener])
        with trio.move_on_after(21):
            await watch_model(engine(http), lambda *words: told.append(words), 5.0)
        nursery.cancel_scope.cancel()
    assert set(told) == {(said, "")}
    assert len(told) == (4 if not delay_seconds else 2)


@pytest.mark.parametrize(
    ("runtime", "props", "build"),
    [
        ("ollama", Response.json(200, {"build_info": "0.18.0"}), "0.18.0"),
        ("omlx", Response.json(200, {"build_info": "0.6.4"}), "0.6.4"),
        ("llamacpp", Response.json(200, {"build_info": "b1"}), ""),  # it is its program: nothing can change
        ("ollama", Response.json(200, {"build_info": "v" * 1000}), "v" * 100),
        ("ollama", Response.json(200, {"build_info": ["0.18.0"]}), ""),
        ("ollama", Response.json(200, []), ""),
        ("ollama", Response.json(404, {}), ""),  # of an earlier release
    ],
)
async def test_which_build_has_the_model_is_asked_with_the_key(autojump_clock, runtime, props, build):
    """Of engines whose program others may upgrade; what is no build is none."""
    listener, told = MemoryListener(), []

    async def answer(exchange):
        if exchange.request.path == "/props":
            assert exchange.request.headers.get("authorization") == f"Bearer {KEY}"
        await exchange.respond(props if exchange.request.path == "/props" else Response.json(200, {}))

    async with open_http_client(listener.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, answer, [listener])
        with trio.move_on_after(6):
            await watch_model(engine(http, runtime), lambda *words: told.append(words), 5.0)
        nursery.cancel_scope.cancel()
    assert told == [("loaded", build)]


async def test_an_engine_that_has_gone_says_nothing(autojump_clock):
    """Its end is noticed elsewhere."""
    told = []

    async def refuse(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "refused")

    async with open_http_client(refuse) as http:
        with trio.move_on_after(6):
            await watch_model(engine(http), lambda *words: told.append(words), 5.0)
    assert told == [("nothing", "")]
