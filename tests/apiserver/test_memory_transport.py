"""The in-memory transport behaves as a connection does."""

from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from llmkube.apiserver.memory_transport import open_transport
from llmkube.base.errors import ExternalError
from llmkube.base.http.message import Headers, Response


@asynccontextmanager
async def open_http(handler):
    async with (
        open_transport(handler) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://x") as http,
    ):
        yield http


async def test_a_request_reaches_the_handler_whole():
    """Method, target, headers and body arrive; status, headers and body come back."""
    seen = []

    async def handler(exchange):
        seen.append(exchange.request)
        await exchange.respond(Response(201, Headers.of({"X-Answer": "yes"}), b"body"))

    async with open_http(handler) as http:
        answer = await http.post("/a%2Fb?q=1", content=b"sent", headers={"x-ask": "1"})
    assert (answer.status_code, answer.headers["x-answer"], answer.content) == (201, "yes", b"body")
    assert (seen[0].method, seen[0].target, seen[0].body) == ("POST", "/a%2Fb?q=1", b"sent")
    assert seen[0].headers.get("X-Ask") == "1"


async def test_a_reader_that_leaves_cancels_the_handler():
    """Closing a stream half-way ends the handler that feeds it."""
    ended = trio.Event()

    async def handler(exchange):
        try:
            async with exchange.stream(200, Headers()) as send:
                while True:
                    await send(b"x")
        finally:
            ended.set()

    async with open_transport(handler) as transport:
        request = httpx.Request("GET", "http://x/")
        answer = await transport.handle_async_request(request)
        assert await anext(answer.stream.__aiter__()) == b"x"
        await answer.aclose()
        with trio.fail_after(60):
            await ended.wait()


async def test_a_caller_that_is_cancelled_takes_its_request_along(autojump_clock):
    """A deadline around a request ends the handler before it answers."""
    ended = trio.Event()

    async def handler(exchange):
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_http(handler) as http:
        with trio.move_on_after(1):
            await http.get("/", timeout=None)
        await ended.wait()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_connection_that_breaks_is_an_error_and_not_an_end(begun):
    """A handler that raises a world's error breaks the answer off; the reader never takes half for whole."""

    async def handler(exchange):
        if begun:
            async with exchange.stream(200, Headers()) as send:
                await send(b"half")
                raise ExternalError("cable")
        raise ExternalError("cable")

    async with open_http(handler) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/")
