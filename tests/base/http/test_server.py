"""One connection at a time, as a client sees the server."""

from contextlib import suppress

import pytest
import structlog.testing
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from http_lab import GONE, converse, cut, echo, receive_all, serve_connection
from llmkube.base.errors import ExternalError
from llmkube.base.http.connection import Connection, ServerContext
from llmkube.base.http.errors import ClientGoneError
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Response

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /z HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
POST_3 = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
POST_9 = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"
SMALL = Limits(max_head_bytes=100, max_body_bytes=10, max_early_bytes=50)


def bodies(received):
    """The echoed bodies in a server's output."""
    return [part.rpartition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 OK\r\n")[1:]]


async def test_an_answer_on_the_wire():
    """A whole response has a length, and the last one announces the end of the connection."""
    assert await converse(echo, LAST) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 7\r\nConnection: close\r\n\r\n"
        b"GET /z "
    )


async def test_requests_on_one_connection_are_answered_in_order():
    """Requests sent one by one, or all at once, are answered one after the other on the same connection."""
    post = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz"
    chunked = b"PUT /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    expected = [b"GET /a ", b"POST /b xyz", b"PUT /c abc", b"GET /z "]
    assert bodies(await converse(echo, GET, post, chunked, LAST)) == expected
    assert bodies(await converse(echo, GET + post + chunked + LAST)) == expected


@given(positions=st.lists(st.integers(min_value=0, max_value=400), max_size=12))
def test_cuts_change_no_answer(positions):
    """At all boundaries of the network, the server's output is the same, byte for byte."""
    post = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz"
    chunked = b"PUT /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    data = GET + post + chunked + LAST
    assert trio.run(converse, echo, *cut(data, positions)) == trio.run(converse, echo, data)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nabcdefghijk\r\n0\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: a-miracle\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET /" + b"x" * 100, 431),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    ],
)
async def test_refusals_end_the_connection(request_bytes, status):
    """An invalid request is answered with its status, and the bytes after it are ignored."""
    received = await converse(echo, request_bytes + LAST, limits=SMALL)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in received
    assert received.count(b"\r\n\r\n") == 1


async def test_continue_is_sent_when_the_body_is_awaited():
    """A client with Expect gets 100 before its body, or 413 instead when the body is too large."""
    head = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    received = await converse(echo, head % 3, b"abc")
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert (await converse(echo, head % 3 + b"abc")).startswith(b"HTTP/1.1 200 OK\r\n")  # it did not wait
    limits = Limits(max_head_bytes=1000, max_body_bytes=2)
    assert (await converse(echo, head % 3, limits=limits)).startswith(b"HTTP/1.1 413 ")


async def stream_three(exchange):
    async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
        for piece in (b"one", b"", b"two"):
            await send(piece)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: h", b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"),
        (b"GET / HTTP/1.0", b"onetwo"),
        (b"HEAD / HTTP/1.1\r\nHost: h", b""),
    ],
)
async def test_streams_are_framed_for_their_reader(head, expected):
    """A stream is chunked for HTTP/1.1, ended by the connection's end for HTTP/1.0, and empty for HEAD."""
    received = await converse(stream_three, head + b"\r\nConnection: close\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    assert body == expected
    assert (b"Transfer-Encoding: chunked" in head) == expected.startswith(b"3")


async def test_a_stream_with_a_length_is_sent_plain():
    """A stream whose length is known keeps its Content-Length, and the connection stays usable."""

    async def handler(exchange):
        async with exchange.stream(200, Headers.of({"Content-Length": "6"})) as send:
            await send(b"one")
            await send(b"two")

    received = await converse(handler, GET, LAST)
    assert received.count(b"\r\n\r\nonetwo") == 2
    assert b"chunked" not in received


async def test_head_sends_the_length_and_no_body():
    """HEAD gets the head that GET would get, and the next response follows at once."""
    received = await converse(echo, b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", LAST)
    first, _, rest = received.partition(b"\r\n\r\n")
    assert b"Content-Length: 8" in first
    assert rest.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("status", [204, 304])
async def test_bodiless_statuses_have_neither_body_nor_length(status):
    """A response that cannot have a body is sent without one, for any handler."""

    async def handler(exchange):
        await exchange.respond(Response.text(status, "x"))

    received = await converse(handler, LAST)
    assert received.endswith(b"Connection: close\r\n\r\n")
    assert b"Content-Length" not in received


async def test_a_client_that_leaves_during_a_stream_cancels_its_handler():
    """A handler that writes to a closed client is cancelled, gets no error, and nothing is logged."""
    ended_by = []

    async def handler(exchange):
        try:
            async with exchange.stream(200, Headers()) as send:
                while True:
                    await send(b"x")
        except BaseException as exc:
            ended_by.append(type(exc))
            raise

    client, server = trio.testing.memory_stream_pair()
    with structlog.testing.capture_logs() as logs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, handler, server)
            await client.send_all(GET)
            await client.receive_some()
            await client.aclose()
    assert ended_by == [trio.Cancelled]
    assert logs == []


async def test_a_shielded_handler_gets_an_error_on_loss():
    """A handler that shields its writes gets an error once the client is gone, so that it cannot continue for ever."""
    gone = trio.Event()
    seen = []

    async def handler(exchange):
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await gone.wait()
            try:
                await exchange.respond(Response.text(200, "late"))
            except ClientGoneError as exc:
                seen.append(exc)
                raise

    client, server = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, handler, server)
        await client.send_all(GET)
        await client.aclose()
        gone.set()
    assert len(seen) == 1


class Counted(trio.abc.Stream):
    """A stream that counts the bytes read from it, in small pieces."""

    def __init__(self, inner):
        self.inner = inner
        self.received = 0

    async def send_all(self, data):
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes=None):
        data = await self.inner.receive_some(20)
        self.received += len(data)
        return data

    async def aclose(self):
        await self.inner.aclose()


async def test_early_requests_are_buffered_up_to_a_bound():
    """Early requests are kept for later up to a bound; above it the connection is not read."""
    go_on = trio.Event()

    async def handler(exchange):
        await go_on.wait()
        await echo(exchange)

    client, inner = trio.testing.memory_stream_pair()
    server = Counted(inner)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, handler, server, SMALL)
            await client.send_all(GET * 20 + LAST)
            await trio.testing.wait_all_tasks_blocked()
            assert len(GET) <= server.received <= len(GET) + SMALL.max_early_bytes + 40
            go_on.set()
            assert len(bodies(await receive_all(client))) == 21
            await client.aclose()


async def crash(exchange):
    await trio.lowlevel.checkpoint()
    raise KeyError("bug")


async def crash_in_a_group(exchange):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise KeyError("bug")


async def forget(exchange):
    await trio.lowlevel.checkpoint()


async def answer_nonsense(exchange):
    await exchange.respond(Response(200, Headers.of({"A": "b\r\nc"})))


@pytest.mark.parametrize("handler", [crash, crash_in_a_group, forget, answer_nonsense])
async def test_a_handler_that_fails_costs_its_own_request(handler):
    """A bug in a handler is a logged 500 that ends this connection, and nothing else."""
    with structlog.testing.capture_logs() as logs:
        received = await converse(handler, GET, GET)
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"bug" not in received
    assert received.count(b"HTTP/1.1") == 1
    assert [log["event"] for log in logs] == ["request handler crashed"]
    assert (logs[0]["log_level"], logs[0]["path"]) == ("error", "/a")


async def test_an_expected_failure_is_logged_without_a_traceback():
    """An environment error of a handler is a warning with its message, still a 500 to the client."""

    async def handler(exchange):
        await trio.lowlevel.checkpoint()
        raise ExternalError("the disk is full")

    with structlog.testing.capture_logs() as logs:
        assert (await converse(handler, LAST)).startswith(b"HTTP/1.1 500 ")
    assert [(log["log_level"], log["error"]) for log in logs] == [("warning", "the disk is full")]


@pytest.mark.parametrize("headers", [Headers(), Headers.of({"Content-Length": "9"})])
async def test_half_an_answer_has_no_clean_end(headers):
    """A handler that fails in mid-stream leaves neither a last chunk nor the promised length."""

    async def handler(exchange):
        async with exchange.stream(200, headers) as send:
            await send(b"half")
            raise KeyError("bug")

    with structlog.testing.capture_logs() as logs:
        received = await converse(handler, GET, GET)
    assert received.endswith((b"4\r\nhalf\r\n", b"\r\n\r\nhalf"))
    assert len(logs) == 1


async def answer_short(exchange):
    async with exchange.stream(200, Headers.of({"Content-Length": "9"})) as send:
        await send(b"short")


async def answer_twice(exchange):
    await echo(exchange)
    await echo(exchange)


@pytest.mark.parametrize("handler", [answer_short, answer_twice])
async def test_a_response_that_contradicts_its_head_is_a_bug(handler):
    """Ending short of Content-Length or answering twice is logged; the client has one response, and no connection."""
    with structlog.testing.capture_logs() as logs:
        received = await converse(handler, GET, GET)
    assert received.count(b"HTTP/1.1") == 1
    assert logs[0]["event"] == "request handler crashed"


@pytest.mark.parametrize(
    ("steps", "ends_at", "received"),
    [
        ([], 75, b""),
        ([(0, GET[:5])], 10, b"HTTP/1.1 408"),
        ([(1, GET[:5]), (9, GET[5:8]), (10, GET[8:10])], 11, b"HTTP/1.1 408"),
        ([(70, GET)], 145, b"HTTP/1.1 200"),
        ([(0, POST_3), (1, b"a")], 30, b"HTTP/1.1 408"),
        ([(0, POST_9), *((20 * n, b"a") for n in range(1, 4))], 30, b"HTTP/1.1 408"),
    ],
    ids=["silent", "half a head", "dripping head", "idle after an answer", "stalled body", "dripping body"],
)
async def test_slow_clients_lose_their_connection(autojump_clock, steps, ends_at, received):
    """No request, a slow head and a stalled body each have a deadline, to the second."""
    client, server = trio.testing.memory_stream_pair()
    ended = []

    async def serve():
        await serve_connection(echo, server, Limits(linger_seconds=0))
        ended.append(trio.current_time())

    started_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        for at, data in steps:
            await trio.sleep_until(started_at + at)
            with suppress(*GONE):
                await client.send_all(data)
        assert (await receive_all(client)).startswith(received)
    assert ended[0] - started_at == pytest.approx(ends_at, abs=0.001)


@pytest.mark.parametrize("end", [Connection.close_waiting, Connection.stop_nowait])
async def test_a_request_that_comes_while_its_connection_is_closed_is_not_started(end):
    """No handler is started only to be interrupted: the client sees a connection that was closed while idle."""
    asked = []

    async def handler(exchange):
        asked.append(exchange.request.target)
        await trio.sleep_forever()

    client, server = trio.testing.memory_stream_pair()
    connection = Connection(ServerContext(handler, Limits()), server)
    pump = client.send_stream.send_all_hook

    async def pump_and_end():
        await pump()
        end(connection)  # the data is there, and the task that waited for it has not run yet

    client.send_stream.send_all_hook = pump_and_end
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await trio.testing.wait_all_tasks_blocked()
            await client.send_all(GET)
            assert await receive_all(client) == b""
    assert asked == []


async def test_a_client_that_does_not_read_loses_its_connection(autojump_clock):
    """A write that is not read is given up after a while, and the handler is cancelled."""
    client, server = trio.testing.lockstep_stream_pair()
    ended = []

    async def handler(exchange):
        try:
            await exchange.respond(Response.text(200, "x"))
        finally:
            ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, handler, server)
        started_at = trio.current_time()
        await client.send_all(GET)
    assert ended[0] - started_at == pytest.approx(60)
