"""The pooled client: the responses that it accepts, and the connections that it keeps."""

from contextlib import suppress

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from http_lab import GONE, MemoryListener, Peer, always, answers, cut, echo, receive_until, serve_connection
from llmkube.base.errors import ExternalError
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import BodyTooLargeError, ConnectError, ConnectionLostError, HttpError, ProtocolError
from llmkube.base.http.message import Headers
from llmkube.base.http.server import run_server

URL = "http://engine:8080/x"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def ask(*scripts, method="GET", times=1, **kwargs):
    """Return a scripted peer's responses to the same request, and the number of connections."""
    peer = Peer(*scripts)
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        got = []
        for _ in range(times):
            got.append(await peer.client.request(method, URL, **kwargs))
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await peer.client.aclose()
    return got, peer.connections


async def failure(*scripts, method="GET", **kwargs):
    """The error that a request to a scripted peer ends in."""
    peer = Peer(*scripts)
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        with pytest.raises(HttpError) as caught:
            await peer.client.request(method, URL, **kwargs)
        nursery.cancel_scope.cancel()
    assert not list(peer.client.pool)
    return caught.value


async def test_a_request_on_the_wire():
    """A request has Host and its own framing, even if the caller passed others."""
    listener = MemoryListener()
    seen = []

    async def peer():
        stream = await listener.accept()
        seen.append(await receive_until(stream, b"body"))
        await stream.send_all(OK)

    async with trio.open_nursery() as nursery, open_http_client(listener.connect) as client:
        nursery.start_soon(peer)
        headers = Headers.of({"A": "b", "Transfer-Encoding": "chunked", "Content-Length": "99"})
        await client.request("POST", "http://[::1]:81/p?q=%20", headers=headers, body=b"body")
    assert seen == [b"POST /p?q=%20 HTTP/1.1\r\nHost: [::1]:81\r\nA: b\r\nContent-Length: 4\r\n\r\nbody"]
    assert listener.dialled == [("::1", 81)]


@pytest.mark.parametrize(
    ("wire", "body", "connections"),
    [
        (OK, b"ok", 1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok", 1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n|\r\n", b"ok", 1),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + OK, b"ok", 1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", b"ok", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", 2),
        (OK + b"surplus", b"ok", 2),
    ],
    ids=["length", "chunks", "trailers", "no body", "interim answers", "close", "HTTP/1.0", "surplus bytes"],
)
async def test_clean_answers_keep_the_connection(wire, body, connections):
    """A connection is used again after a response that ended cleanly and alone, and after no other."""
    got, used = await ask(answers(wire, wire, then_hang=True), answers(wire, then_hang=True), times=2)
    assert [answer.body for answer in got] == [body, body]
    assert used == connections


async def test_the_end_of_the_connection_can_be_the_end_of_the_body():
    """A body without a length ends with the connection, which is a clean end."""
    got, _ = await ask(answers(b"HTTP/1.1 200 OK\r\n\r\nto the|end"))
    assert got[0].body == b"to theend"


async def test_head_has_no_body():
    """After HEAD the announced length is not awaited, and the connection is used again."""
    wire = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    got, used = await ask(answers(wire, wire, then_hang=True), method="HEAD", times=2)
    assert [(answer.body, answer.headers.get("content-length")) for answer in got] == [(b"", "1000")] * 2
    assert used == 1


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (b"", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nContent-Le", ConnectionLostError),
        (b"HTTP/1.1 100 Continue\r\n\r\n", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ProtocolError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", ProtocolError),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", ProtocolError),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", ProtocolError),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ProtocolError),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, ProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300, ProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + b"x" * 21, BodyTooLargeError),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 21, BodyTooLargeError),
    ],
)
async def test_bad_answers_are_errors_that_name_the_peer(wire, error):
    """A response that is truncated, malformed or too large is an environment error that names the peer."""
    caught = await failure(answers(wire), max_body_bytes=20)
    assert type(caught) is error or (error is ConnectionLostError and isinstance(caught, ConnectionLostError))
    assert "engine:8080" in str(caught)
    assert isinstance(caught, ExternalError)


async def test_no_connection_is_an_error_of_its_own():
    """A refused connection names the address."""
    caught = await failure(None)
    assert isinstance(caught, ConnectError)
    assert "cannot connect to engine:8080: [Errno 111] Connection refused" in str(caught)


@pytest.mark.parametrize("url", ["https://h/", "h:1/x", "http:///x", "http://user:pw@h/", "/x"])
async def test_only_plain_http_urls(url):
    """A URL that this client does not support is a bug of the caller, and makes no connection."""
    with pytest.raises(ValueError, match="not a plain http URL"):
        await HttpClient().request("GET", url)


async def test_a_stale_connection_is_replaced_once():
    """A pooled connection that the peer has closed is replaced without an error."""
    got, used = await ask(answers(OK), answers(OK), times=2)
    assert ([answer.body for answer in got], used) == ([b"ok", b"ok"], 2)


async def test_a_stale_connection_is_not_replaced_for_ever():
    """When the new connection breaks as well, its error is raised."""
    peer = Peer(answers(OK), answers(b""), answers(OK))
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        await peer.client.request("GET", URL)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ConnectionLostError, match="without a response"):
            await peer.client.request("GET", URL)
        assert peer.connections == 2
        nursery.cancel_scope.cancel()


async def test_a_started_response_is_never_requested_again():
    """Once a byte of the response came, a broken pooled connection is an error, not a second request."""
    peer = Peer(answers(OK, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"), answers(OK))
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        await peer.client.request("POST", URL)
        with pytest.raises(ConnectionLostError, match="1 bytes early"):
            await peer.client.request("POST", URL)
        assert peer.connections == 1
        nursery.cancel_scope.cancel()


async def test_idle_connections_expire(autojump_clock):
    """A connection that was idle for longer than the limit is closed and not used again."""
    peer = Peer(answers(OK, OK, OK, then_hang=True), answers(OK, then_hang=True))
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run)
        await peer.client.request("GET", URL)
        await trio.sleep(30)
        await peer.client.request("GET", URL)
        assert peer.connections == 1
        await trio.sleep(30.1)
        await peer.client.request("GET", URL)
        assert peer.connections == 2
        nursery.cancel_scope.cancel()


async def test_the_pool_is_bounded():
    """Of many concurrent connections only a limited number is kept, per origin and in all; the others are closed."""
    listener = MemoryListener()
    client = HttpClient(listener.connect, max_idle_per_origin=2, max_idle=3)
    barrier = trio.Event()

    async def hold(port):
        async with client.open_stream("GET", f"http://h:{port}/") as answer:
            while await answer.receive_some():
                pass
            await barrier.wait()

    async with trio.open_nursery() as nursery:
        await nursery.start(run_server, echo, [listener])
        async with trio.open_nursery() as holders:
            for port in (1, 1, 1, 2, 2, 2):
                holders.start_soon(hold, port)
            await trio.testing.wait_all_tasks_blocked()
            barrier.set()
        kept = list(client.pool)
        assert len(kept) == 3
        assert max(kept.count(("h", 1)), kept.count(("h", 2))) == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["break", "raise", "cancel"])
async def test_a_stream_left_early_closes_its_connection(way):
    """Leaving a stream before its end closes its connection at once and keeps nothing."""
    peer_saw_end = trio.Event()

    async def endless(stream):
        await receive_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert await stream.receive_some() == b""
        peer_saw_end.set()

    peer = Peer(endless)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run)
            try:
                with trio.CancelScope() as scope:
                    async with peer.client.open_stream("GET", URL) as answer:
                        assert await answer.receive_some() == b"x"
                        if way == "raise":
                            raise KeyError
                        if way == "cancel":
                            scope.cancel()
                            await answer.receive_some()
            except KeyError:
                pass
            await peer_saw_end.wait()
            assert not list(peer.client.pool)
            nursery.cancel_scope.cancel()


async def test_a_cancelled_wait_for_the_head_closes_its_connection():
    """A caller that is cancelled while it waits for the response closes the connection."""
    peer_saw_end, caller = trio.Event(), trio.CancelScope()

    async def silent(stream):
        await receive_until(stream, b"\r\n\r\n")
        caller.cancel(reason="the request is there")
        assert await stream.receive_some() == b""
        peer_saw_end.set()

    peer = Peer(silent)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run)
            with caller:
                await peer.client.request("GET", URL)
            await peer_saw_end.wait()
            nursery.cancel_scope.cancel()


async def test_pieces_arrive_as_they_are_sent():
    """A piece of a streamed response is delivered before the peer has made the next."""
    first_seen = trio.Event()

    async def handler(exchange):
        async with exchange.stream(200, Headers()) as send:
            await send(b"one")
            await first_seen.wait()
            await send(b"two")

    listener = MemoryListener()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_http_client(listener.connect) as client:
            await nursery.start(run_server, handler, [listener])
            async with client.open_stream("GET", URL) as answer:
                assert await answer.receive_some() == b"one"
                first_seen.set()
                assert await answer.receive_some() == b"two"
                assert await answer.receive_some() == b""
                assert await answer.receive_some() == b""
            nursery.cancel_scope.cancel()


async def test_an_answer_to_an_unfinished_request_is_read():
    """The refusal of a large body is read in the middle of the upload, and the connection is not used again."""
    mine, theirs = trio.testing.memory_stream_pair()

    async def connect(host, port):
        await theirs.send_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await theirs.receive_stream.aclose()
        return mine

    client = HttpClient(connect)
    assert (await client.request("POST", URL, body=b"x" * 1000)).status == 413
    assert not list(client.pool)


async def test_late_bytes_on_an_idle_connection_are_not_a_response():
    """Bytes on an idle connection (a time-out notice, or its end) are not taken for the next response."""
    opened = []
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"

    async def serve(stream):
        opened.append(stream)
        await receive_until(stream, b"\r\n\r\n")
        await stream.send_all(OK + late if len(opened) == 1 else OK)
        await trio.sleep_forever()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_http_client() as client:
            listeners = await nursery.start(trio.serve_tcp, serve, 0)
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
            for _ in range(2):
                assert (await client.request("GET", url)).status == 200
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert len(opened) == 2


WIRES = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\r\nbc",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\na\r\r\n3\r\n\nbc\r\n0\r\nA: b\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\r\nbc",
    "end of stream": b"HTTP/1.1 200 OK\r\n\r\na\r\nbc",
    "broken off": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na\r\nbc",
}


async def outcome(pieces):
    """Return the client's result for a response that comes in these pieces."""
    mine, theirs = trio.testing.memory_stream_pair()

    async def send():
        for piece in pieces:
            await theirs.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        await theirs.aclose()

    client = HttpClient(always(mine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            result = await client.request("GET", URL)
        except ConnectionLostError as exc:
            result = str(exc)
        kept = len(list(client.pool))
        nursery.cancel_scope.cancel()
    return result, kept


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_an_answer_cut_at_any_byte_is_the_same(wire):
    """A response cut in two at any byte is read as in one piece."""
    whole = trio.run(outcome, [wire])
    for position in range(1, len(wire)):
        assert trio.run(outcome, [wire[:position], wire[position:]]) == whole


@given(wire=st.sampled_from(list(WIRES.values())), positions=st.lists(st.integers(1, 200), max_size=9))
def test_an_answer_in_any_pieces_is_the_same(wire, positions):
    assert trio.run(outcome, cut(wire, positions)) == trio.run(outcome, [wire])


async def test_client_and_server_understand_each_other():
    """Our client and our server work together on one connection in memory, request after request."""
    mine, theirs = trio.testing.memory_stream_pair()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, echo, theirs)
        async with open_http_client(always(mine)) as client:
            for method in ("GET", "POST", "PUT"):
                answer = await client.request(method, URL, body=b"b")
                assert answer.body == f"{method} /x b".encode()


async def receive_into_small(answer, *, piece, room):
    """Play a response in pieces of some size; return its status, and the body as it came into small buffers."""
    listener, body = MemoryListener(), bytearray()

    async def play():
        stream = await listener.accept()
        await receive_until(stream, b"\r\n\r\n")
        step = piece or len(answer) + 1
        with suppress(*GONE):
            for at in range(0, len(answer), step):
                await stream.send_all(answer[at : at + step])
            await stream.send_eof()

    async with trio.open_nursery() as nursery, open_http_client(listener.connect) as client:
        nursery.start_soon(play)
        async with client.open_stream("GET", URL) as reply:
            buffer = memoryview(bytearray(room))
            while count := await reply.receive_into(buffer):
                body += buffer[:count]
            assert not await reply.receive_into(buffer)
            status = reply.status
        kept = len(list(client.pool))
    return status, bytes(body), kept


@pytest.mark.parametrize("piece", [1, 7, None])
@pytest.mark.parametrize("room", [1, 5, 64])
@pytest.mark.parametrize(
    ("head", "wire", "keeps"),
    [
        (b"Content-Length: 10", b"0123456789", True),
        (b"Content-Length: 10", b"0123456789and more", False),
        (b"Transfer-Encoding: chunked", b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n", True),
        (b"X: ends with the connection", b"0123456789", False),
    ],
)
async def test_a_body_goes_into_a_buffer_however_it_is_cut(head, wire, keeps, piece, room):
    """For a body framed by length, chunks or the end of the connection, pieces of network and reader do not matter."""
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + wire
    status, body, kept = await receive_into_small(answer, piece=piece, room=room)
    assert (status, body) == (200, b"0123456789")
    assert kept == keeps or wire.endswith(b"more")  # excess bytes that come late are found by the pool


async def test_no_body_goes_into_a_buffer():
    """An empty body ends at once."""
    found = await receive_into_small(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", piece=None, room=4)
    assert found == (200, b"", 1)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"", ConnectionLostError, "closed the connection without a response"),
        (b"HTTP/1.1 200 OK\r\nContent-", ConnectionLostError, "closed the connection in the head"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123", ConnectionLostError, "ends 6 bytes early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n01", ConnectionLostError, "before its last chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n01", ProtocolError, "malformed chunk"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ProtocolError, "malformed head"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n1", ProtocolError, "malformed head"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", ProtocolError, "malformed head"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300, ProtocolError, "more than 256 headers"),
    ],
)
async def test_an_invalid_body_is_an_error_in_a_buffer(answer, error, says):
    """A truncated or invalid response is an error, after any number of valid bytes."""
    with pytest.RaisesGroup(pytest.RaisesExc(error, match=says), flatten_subgroups=True):
        await receive_into_small(answer, piece=None, room=64)
