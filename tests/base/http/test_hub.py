"""Real sockets in a hub, and the same with Trio's own: servers and clients see no difference."""

import os
import socket
import sys
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from itertools import groupby

import pytest
import structlog.testing
import trio
import trio.testing

from http_lab import echo, receive_all, receive_until
from llmkube.base.http.client import open_http_client
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.hub import FREE_ROUNDS, WAKES_PER_CLIENT, Hub, open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server

LOOPBACK = "127.0.0.1"
GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = Headers.of({"X-Engine": "yes"})


@pytest.fixture
async def serve(sockets, nursery):
    """Start servers over the sockets; return their port."""

    async def start(handler, **kwargs):
        listeners = await open_listeners(LOOPBACK, 0)
        port = listeners[0].socket.getsockname()[1]
        await nursery.start(partial(run_server, handler, sockets.listen(listeners), **kwargs))
        return port

    return start


async def test_large_bodies_go_both_ways(sockets, serve):
    """Ten megabytes are echoed unchanged over one connection, with and without chunks."""
    body = bytes(range(256)) * 40_000

    async def mirror(exchange):
        if exchange.request.path == "/whole":
            await exchange.respond(Response(200, body=exchange.request.body))
            return
        async with exchange.stream(200, Headers()) as send:
            for start in range(0, len(body), 100_000):
                await send(exchange.request.body[start : start + 100_000])

    port = await serve(mirror)
    async with open_http_client(sockets.connect) as client:
        for path in ("whole", "chunked", "whole"):
            answer = await client.request("POST", f"http://{LOOPBACK}:{port}/{path}", body=body)
            assert answer.body == body
        assert list(client.pool) == [(LOOPBACK, port)]


async def test_requests_that_come_together_are_answered_in_order(serve):
    """Several requests in one packet, the last with `Connection: close`, are answered one after the other."""
    port = await serve(echo)
    async with await trio.open_tcp_stream(LOOPBACK, port) as client:
        await client.send_all(GET * 30 + GET[:-2] + b"Connection: close\r\n\r\n")
        assert (await receive_all(client)).count(b"HTTP/1.1 200 OK") == 31


@pytest.mark.parametrize("way", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_cancels_its_handler(serve, way):
    """The client's end cancels any wait of the handler at once."""
    started, cancelled = trio.Event(), trio.Event()

    async def endless(exchange):
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    port = await serve(endless)
    client = await trio.open_tcp_stream(LOOPBACK, port)
    await client.send_all(GET)
    with trio.fail_after(60):
        await started.wait()
        if way == "half-close":
            await client.send_eof()
        else:
            if way == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await client.aclose()
        await cancelled.wait()
    await client.aclose()


async def test_a_client_that_does_not_read_is_given_up(serve):
    """A write that is not read for some time ends the connection; the handler is cancelled, and others are served."""
    ended = trio.Event()

    async def pour(exchange):
        if exchange.request.path != "/pour":
            await echo(exchange)
            return
        try:
            async with exchange.stream(200, Headers()) as send:
                while True:
                    await send(bytes(100_000))
        finally:
            ended.set()

    port = await serve(pour, limits=Limits(send_stall_seconds=0.2))
    async with await trio.open_tcp_stream(LOOPBACK, port) as deaf, await trio.open_tcp_stream(LOOPBACK, port) as client:
        with trio.fail_after(60):
            await deaf.send_all(b"GET /pour HTTP/1.1\r\nHost: h\r\n\r\n")
            await client.send_all(GET)
            await receive_until(client, b"GET /a ")
            await ended.wait()


async def test_a_connection_that_ended_in_the_pool_is_not_used(sockets, serve):
    """A server that closes idle connections costs its clients nothing."""
    port = await serve(echo, limits=Limits(idle_seconds=0.05))
    async with open_http_client(sockets.connect) as client:
        for _ in range(3):
            assert (await client.request("GET", f"http://{LOOPBACK}:{port}/")).status == 200
            await trio.sleep(0.2)


async def test_an_engine_that_streams_is_passed_on(sockets, serve):
    """A proxy passes pieces on as they come, in the engine's own framing, and keeps both connections."""
    go_on = [trio.Event(), trio.Event()]

    async def engine(exchange):
        async with exchange.stream(200, CHUNKED) as send:
            await send(b"one")
            await go_on[int(exchange.request.body)].wait()
            await send(b"two")

    back = await serve(engine)
    async with open_http_client(sockets.connect) as upstream, open_http_client(sockets.connect) as client:

        async def proxy(exchange: StreamExchange) -> None:
            await forward(exchange, upstream, (LOOPBACK, back), exchange.request.body)

        front = await serve(proxy)
        with trio.fail_after(60):
            for n in range(2):
                url = f"http://{LOOPBACK}:{front}/"
                async with client.open_stream("POST", url, body=b"%d" % n) as answer:
                    assert answer.headers.get("x-engine") == "yes"
                    assert await answer.receive_some() == b"one"
                    go_on[n].set()
                    assert await answer.receive_some() == b"two"
                    assert await answer.receive_some() == b""
        assert (list(client.pool), list(upstream.pool)) == ([(LOOPBACK, front)], [(LOOPBACK, back)])


async def test_a_server_drains_over_a_hub_that_is_cancelled_with_it():
    """When both are cancelled, a request in flight is still answered to its end."""
    started = trio.Event()

    async def slow(exchange):
        started.set()
        await trio.sleep(0.2)
        await echo(exchange)

    async def program(*, task_status):
        async with open_sockets() as sockets, trio.open_nursery() as servers:
            listeners = await open_listeners(LOOPBACK, 0)
            await servers.start(run_server, slow, sockets.listen(listeners))
            task_status.started(listeners[0].socket.getsockname()[1])

    async def ask(client):
        async with client:
            await client.send_all(GET)
            assert (await receive_all(client)).endswith(b"GET /a ")

    async with trio.open_nursery() as clients, trio.open_nursery() as nursery:
        port = await nursery.start(program)
        clients.start_soon(ask, await trio.open_tcp_stream(LOOPBACK, port))
        await started.wait()
        nursery.cancel_scope.cancel()


@pytest.fixture
async def pair():
    """A stream in a hub, and the socket at its other end."""
    async with open_sockets() as hub:
        if not isinstance(hub, Hub):
            pytest.skip("this system has no epoll")
        mine, theirs = socket.socketpair()
        with theirs:
            stream = hub.add(trio.SocketStream(trio.socket.from_stdlib_socket(mine)))
            yield stream, theirs
            stream.close()


async def test_one_task_reads(pair):
    """A second reader gets an error; the first one is not affected."""
    stream, theirs = pair
    async with trio.open_nursery() as nursery:

        async def read():
            assert await stream.receive_some() == b"x"

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await stream.receive_some()
        theirs.send(b"x")


async def test_a_closed_stream_raises(pair):
    """Closing wakes the task that waits for data, and nothing more is read or written."""
    stream, _ = pair
    async with trio.open_nursery() as nursery:

        async def read():
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        stream.close()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


async def test_a_busy_peer_does_not_block_the_loop(pair):
    """A stream that always has data lets other tasks run now and then."""
    (stream, theirs), others = pair, 0
    theirs.send(b"x" * 1000)
    async with trio.open_nursery() as nursery:

        async def other():
            nonlocal others
            while True:
                await trio.lowlevel.checkpoint()
                others += 1

        nursery.start_soon(other)
        for _ in range(1000):
            assert await stream.receive_some(1) == b"x"
        nursery.cancel_scope.cancel()
    assert others >= 30


async def test_clients_that_connect_and_close_are_not_logged(serve):
    """A hundred connections that send nothing and close are not logged."""
    port = await serve(echo)
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            await (await trio.open_tcp_stream(LOOPBACK, port)).aclose()
        await trio.sleep(0.05)
    assert logs == []


NOISY = "127.0.0.2"
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n"


async def _run_rounds(order, until):
    """Note each round of the event loop until this is so."""
    with trio.fail_after(60):
        while not until():
            order.append("round")
            await trio.lowlevel.checkpoint()


async def _ask_at_once(serve, connections, order, *, are_accepted):
    """Have a client of many connections and one of a single connection ask at once; note who is answered when."""

    async def note(exchange):
        order.append(exchange.peer)
        await exchange.respond(Response(200))

    port = await serve(note)
    with ExitStack() as stack:
        clients = []
        half = [NOISY] * (connections // 2)  # Trio runs tasks that are ready in their order or in reverse
        for host in (*half, LOOPBACK, *half):
            client = socket.create_connection((LOOPBACK, port), source_address=(host, 0))
            clients.append(stack.enter_context(client))
            client.send(POST)
        if are_accepted:
            await trio.testing.wait_all_tasks_blocked(0.01)
        for client in clients:
            client.send(b"x")
        await _run_rounds(order, lambda: order.count(NOISY) == connections)
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no second loopback address")
@pytest.mark.parametrize("are_accepted", [True, False])
async def test_a_client_with_many_connections_delays_others_by_a_few_requests(serve, sockets, are_accepted):
    """All of its connections are ready, or not accepted yet, when a client with one connection asks."""
    if isinstance(sockets, Hub):
        order = []
        await _ask_at_once(serve, 100, order, are_accepted=are_accepted)
        before = order[: order.index(LOOPBACK)]
        assert before.count(NOISY) <= WAKES_PER_CLIENT * (1 if are_accepted else 3)
        assert before.count("round") <= 15


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no second loopback address")
async def test_a_client_with_many_streams_delays_others_by_a_few_pieces(serve, sockets, nursery):
    """In each round few of its streams are passed on, and none in most; the rest gathers, and everything arrives."""
    if not isinstance(sockets, Hub):
        return
    order, engines = [], []

    async def engine(connection):
        engines.append(connection.socket)
        await connection.receive_some()
        await connection.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n.")
        await trio.sleep_forever()

    def note(piece):
        order.append(piece)
        return piece

    async def proxy(exchange):
        if exchange.peer == LOOPBACK:
            order.append("quiet")
            await exchange.respond(Response(200))
        else:
            await forward(exchange, upstream, (LOOPBACK, back), exchange.body, editor=note)

    back = (await nursery.start(partial(trio.serve_tcp, engine, 0, host=LOOPBACK)))[0].socket.getsockname()[1]
    async with open_http_client(sockets.connect) as upstream, AsyncExitStack() as stack:
        port = await serve(proxy)
        for host in (*[NOISY] * 40, LOOPBACK):
            client = await trio.open_tcp_stream(LOOPBACK, port, local_address=host)
            await stack.enter_async_context(client)
            await client.send_all(POST + (b"x" if host == NOISY else b""))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert order == [b"."] * 40
        order.clear()
        for each in engines:
            os.write(each.fileno(), b"1")
        os.write(client.socket.fileno(), b"x")
        await _run_rounds(order, lambda: "quiet" in order)
        assert order.count(b"1") <= 2 * WAKES_PER_CLIENT
        for each in engines:
            os.write(each.fileno(), b"23")
        await _run_rounds(order, lambda: order.count(b"") == 40)
        assert order.count(b"123") >= 20
        rounds = [list(each) for is_round, each in groupby(order, lambda each: each == "round") if not is_round]
        assert max(len([piece for piece in each if piece]) for each in rounds) <= 2 * WAKES_PER_CLIENT
        assert order.count("round") >= 40 / WAKES_PER_CLIENT * FREE_ROUNDS


async def test_requests_sent_ahead_are_handled_in_different_rounds(serve):
    """A client that sends a hundred requests at once does not occupy the event loop until they are answered."""
    order = []

    async def note(exchange):
        order.append("request")
        await exchange.respond(Response(200))

    port = await serve(note)
    async with await trio.open_tcp_stream(LOOPBACK, port) as client:
        await trio.testing.wait_all_tasks_blocked(0.01)
        os.write(client.socket.fileno(), GET * 20)
        while order.count("request") < 20:
            order.append("round")
            await trio.lowlevel.checkpoint()
    # in each round either may be first
    assert ["request"] * 3 not in [order[at : at + 3] for at in range(len(order))]
