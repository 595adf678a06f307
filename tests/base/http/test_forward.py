"""A proxy's data path: unchanged bytes, changed framing, and bodies that are never buffered."""

import pytest
import structlog.testing
import trio
import trio.testing

from http_lab import always, receive_until, serve_connection
from llmkube.base.http.client import open_http_client
from llmkube.base.http.forward import forward

ORIGIN = ("engine", 1)
HEADERS = b"Host: h\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\nContent-Length: 2\r\n\r\n"
POST = b"POST http://h/a?b HTTP/1.%d\r\n" + HEADERS + b"hi"
CHUNKS = b"3;x=y\r\none\r\n3\r\ntwo\r\n0\r\nT: 1\r\n\r\n"


async def pass_through(answer, request=POST % 1, *, pieces=1, end=True):
    """Return the engine's request, the client's response, and whether the engine's connection is kept."""
    client, front = trio.testing.memory_stream_pair()
    back, engine = trio.testing.memory_stream_pair()
    asked = b""

    async def play_engine():
        nonlocal asked
        asked = (
            await receive_until(engine, b"\r\n\r\nhi") if request.startswith(b"POST") else await engine.receive_some()
        )
        step = -(-len(answer) // pieces)
        for at in range(0, len(answer), step):
            await engine.send_all(answer[at : at + step])
            await trio.testing.wait_all_tasks_blocked()
        if end:
            await engine.send_eof()

    async with open_http_client(always(back)) as upstream:

        async def proxy(exchange):
            await forward(exchange, upstream, ORIGIN, exchange.body)

        with structlog.testing.capture_logs():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(play_engine)
                nursery.start_soon(serve_connection, proxy, front)
                await client.send_all(request)
                await trio.testing.wait_all_tasks_blocked(0.01)
                received = b""
                with trio.move_on_after(0.05):
                    while piece := await client.receive_some():
                        received += piece
                kept = list(upstream.pool) == [ORIGIN]
                await client.aclose()
        return bytes(asked), received, kept


async def test_a_request_on_its_way():
    """Hop-by-hop lines are dropped, the others pass; the target loses its host, and the engine's name is in `Host`."""
    asked, _, _ = await pass_through(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert asked == b"POST /a?b HTTP/1.1\r\nHost: engine:1\r\nX-End: 2\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize("pieces", [1, 7, 60])
@pytest.mark.parametrize(
    ("answer", "received"),
    [
        (b"Content-Length: 3\r\n\r\none", b"Content-Length: 3\r\n\r\none"),
        (b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS, b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS),
        (b"A: b\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n", b"A: b\r\nContent-Length: 0\r\n\r\n"),
    ],
    ids=["length", "chunks", "empty"],
)
async def test_an_answer_passes_in_its_own_framing(pieces, answer, received):
    """At all boundaries of the network; and both connections are kept."""
    _, seen, kept = await pass_through(b"HTTP/1.1 200 OK\r\n" + answer, pieces=pieces, end=False)
    assert (seen, kept) == (b"HTTP/1.1 200 OK\r\n" + received, True)


@pytest.mark.parametrize(
    ("request_bytes", "answer", "body"),
    [
        (POST % 0, b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS, b"onetwo"),
        (POST % 0, b"A: b\r\n\r\nto the end", b"to the end"),
        (POST % 1, b"A: b\r\n\r\nto the end", b"a\r\nto the end\r\n0\r\n\r\n"),
        (b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", b"Content-Length: 3\r\n\r\n", b""),
    ],
    ids=["chunks for HTTP/1.0", "no length for HTTP/1.0", "no length", "HEAD"],
)
async def test_an_unsupported_framing_is_replaced(request_bytes, answer, body):
    """A client gets the body in a framing that it supports."""
    _, seen, _ = await pass_through(b"HTTP/1.1 200 OK\r\n" + answer, request_bytes)
    head, _, rest = seen.partition(b"\r\n\r\n")
    assert (head.startswith(b"HTTP/1.1 200 OK"), rest) == (True, body)


@pytest.mark.parametrize(
    "answer",
    [
        b"Content-Length: 3\r\n\r\non",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\nwhat?\r\n0\r\n\r\n",
    ],
    ids=["length", "chunks", "no last line", "malformed"],
)
async def test_half_an_answer_has_no_clean_end(answer):
    """The client's connection breaks, so that a partial response is not taken for a whole one."""
    _, seen, kept = await pass_through(b"HTTP/1.1 200 OK\r\n" + answer)
    assert not seen.endswith(b"0\r\n\r\n")
    assert not kept


@pytest.mark.parametrize(
    "answer", [b"Content-Length: 3\r\n\r\noneHTTP/1.1", b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"more"]
)
async def test_bytes_after_a_response_are_not_part_of_it(answer):
    """It is not passed on, and its connection is not used for another request."""
    _, seen, kept = await pass_through(b"HTTP/1.1 200 OK\r\n" + answer, end=False)
    assert seen.endswith((b"\r\n\r\none", CHUNKS))
    assert not kept


async def test_a_connection_that_the_engine_ends_is_not_kept():
    """`Connection: close` applies to one hop: the client may continue."""
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\none"
    _, seen, kept = await pass_through(answer)
    assert (b"close" in seen, kept) == (False, False)
