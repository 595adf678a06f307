"""The server's life: accepting, listening errors, TLS, and the order of its shutdown."""

import errno
import socket
import sys
from functools import partial

import pytest
import structlog.testing
import trio
import trio.testing

from base.http.certificates import make_contexts
from free_ports import free_port
from http_lab import MemoryListener, echo, receive_all, receive_until
from llmkube.base.errors import UserError
from llmkube.base.http import listen
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import ListenError, PortTakenError, open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import CLOSE_ONE_IN, run_server

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
ANSWER_END = b"\r\n\r\nGET /a "


class Timeline:
    """The events, with their second of virtual time."""

    def __init__(self):
        self.started_at = trio.current_time()
        self.events = []

    def note(self, what):
        self.events.append((round(trio.current_time() - self.started_at, 3), what))


async def test_stop_closes_listeners_then_idle_connections_then_drains(autojump_clock):
    """On cancel no new client is accepted, idle connections end at once, and a request in flight is answered."""
    timeline = Timeline()
    listener = MemoryListener()
    started = trio.Event()

    async def slow(exchange):
        if exchange.request.path == "/slow":
            started.set()
            await trio.sleep(4)
        await echo(exchange)

    async def watch_idle(stream):
        assert await receive_all(stream) == b""
        timeline.note("idle ended")
        with pytest.raises(ConnectionRefusedError):
            await listener.connect("h", 1)
        timeline.note("connecting refused")

    async def watch_busy(stream):
        received = await receive_all(stream)
        assert received.endswith(b"GET /slow ")
        assert b"Connection: close" in received
        timeline.note("busy ended")
        await stream.aclose()

    async with trio.open_nursery() as clients:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_server, slow, [listener])
            idle, busy = await listener.connect("h", 1), await listener.connect("h", 1)
            await idle.send_all(GET)
            await receive_until(idle, ANSWER_END)
            await busy.send_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
            await started.wait()
            clients.start_soon(watch_idle, idle)
            clients.start_soon(watch_busy, busy)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        timeline.note("server ended")
    assert timeline.events == [(1, "idle ended"), (1, "connecting refused"), (4, "busy ended"), (4, "server ended")]


async def test_drain_has_an_end(autojump_clock):
    """A request that outlives the drain time is cut off without a clean end, and that is logged."""
    timeline = Timeline()
    listener = MemoryListener()
    started = trio.Event()

    async def endless(exchange):
        try:
            async with exchange.stream(200, Headers()) as send:
                await send(b"x")
                started.set()
                await trio.sleep_forever()
        finally:
            timeline.note("handler cancelled")

    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_server, endless, [listener], limits=Limits(drain_seconds=7)))
            client = await listener.connect("h", 1)
            await client.send_all(GET)
            await started.wait()
            nursery.cancel_scope.cancel()
    timeline.note("server ended")
    assert timeline.events == [(7, "handler cancelled"), (7, "server ended")]
    assert (await receive_all(client)).endswith(b"1\r\nx\r\n")
    assert [(log["event"], log["connections"]) for log in logs] == [("requests cut off after the drain time", 1)]


async def test_connections_beyond_the_limit_wait(autojump_clock):
    """No more connections than the limit are served; while handlers work, the next one waits for one to end."""
    listener, go_on = MemoryListener(), trio.Event()

    async def slow(exchange):
        await go_on.wait()
        await echo(exchange)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, slow, [listener], limits=Limits(max_connections=2)))
        clients = [await listener.connect("h", 1) for _ in range(3)]
        for client in clients:
            await client.send_all(GET)
        with trio.move_on_after(1) as patience:
            await clients[2].receive_some()
        assert patience.cancelled_caught
        await clients[0].aclose()
        go_on.set()
        await receive_until(clients[2], ANSWER_END)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sent", [b"", GET[:9], b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1"])
async def test_idle_connections_are_closed_for_new_ones(autojump_clock, sent):
    """Idle connections, or partial requests, do not block another client, and no handler is interrupted."""
    listener, started, go_on = MemoryListener(), trio.Event(), trio.Event()

    async def handler(exchange):
        if exchange.request.path == "/slow":
            started.set()
            await go_on.wait()
        await echo(exchange)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, handler, [listener], limits=Limits(max_connections=4)))
        busy = await listener.connect("h", 1)
        await busy.send_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
        await started.wait()
        for _ in range(50):
            crowd = await listener.connect("h", 1)
            await crowd.send_all(sent)
            await trio.testing.wait_all_tasks_blocked()
        client = await listener.connect("h", 1)
        await client.send_all(GET)
        with trio.fail_after(0.1):
            await receive_until(client, ANSWER_END)
        go_on.set()
        await receive_until(busy, b"GET /slow ")
        nursery.cancel_scope.cancel()


async def test_several_idle_connections_are_closed_at_once(autojump_clock):
    """Two of 128 places become free at a time, those of clients that have waited longest; the others keep theirs."""
    listener = MemoryListener()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, echo, [listener], limits=Limits(max_connections=2 * CLOSE_ONE_IN)))
        crowd = [await listener.connect("h", 1) for _ in range(2 * CLOSE_ONE_IN)]
        await trio.testing.wait_all_tasks_blocked()
        client = await listener.connect("h", 1)  # they had a place already; the one behind has the other
        await client.send_all(GET)
        await receive_until(client, ANSWER_END)
        assert [await receive_all(each) for each in crowd[:2]] == [b"", b""]
        for each in crowd[2:]:
            await each.send_all(GET)
            await receive_until(each, ANSWER_END)
        nursery.cancel_scope.cancel()


async def test_the_memory_of_all_bodies_is_bounded():
    """Buffered bodies take no more memory than the bound; the one beyond it is refused, and its memory released."""
    listener = MemoryListener()
    post = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, echo, [listener], limits=Limits(max_bodies_bytes=15)))
        held, refused, later = [await listener.connect("h", 1) for _ in range(3)]
        await held.send_all(post + b"123456789")
        await trio.testing.wait_all_tasks_blocked()
        await refused.send_all(post + b"123456789")
        assert (await receive_all(refused)).startswith(b"HTTP/1.1 503 ")
        await later.send_all(post + b"12345")
        await trio.testing.wait_all_tasks_blocked()
        await held.send_all(b"0")
        await receive_until(held, b"1234567890")
        await later.send_all(b"67890")
        await receive_until(later, b"1234567890")
        nursery.cancel_scope.cancel()


async def test_a_head_filter_refuses_before_the_body_is_read():
    """A request refused by its head is answered at once, without waiting for its body."""
    listener = MemoryListener()

    def judge(head, peer):
        return Response.text(401, "no") if head.headers.get("authorization") is None else None

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, echo, [listener], judge=judge))
        stranger, known = [await listener.connect("h", 1) for _ in range(2)]
        await stranger.send_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
        assert b"401 Unauthorized" in await receive_all(stranger)
        await known.send_all(GET[:-2] + b"Authorization: me\r\n\r\n")
        await receive_until(known, ANSWER_END)
        nursery.cancel_scope.cancel()


async def test_running_out_of_descriptors_is_survived(autojump_clock):
    """An accept that fails without file descriptors is logged and tried again."""
    listener = MemoryListener()
    failures = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENFILE, "Too many open files in system")]
    accept = listener.accept

    async def sometimes():
        if failures:
            raise failures.pop()
        return await accept()

    listener.accept = sometimes
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_server, echo, [listener])
            client = await listener.connect("h", 1)
            await client.send_all(GET)
            await receive_until(client, ANSWER_END)
            nursery.cancel_scope.cancel()
    assert len(logs) == 2


async def test_a_server_needs_a_listener():
    """A server without listeners is a bug that shows at once."""
    with pytest.raises(ValueError, match="listener"):
        await run_server(echo, [])


async def test_a_taken_port_is_named():
    """The error names the port, and the flag that chose it."""
    (first,) = await open_listeners("127.0.0.1", 0)
    port = first.socket.getsockname()[1]
    with pytest.raises(PortTakenError, match=f"--port: cannot listen on 127.0.0.1:{port}: another program") as caught:
        await open_listeners("127.0.0.1", port, field="--port")
    assert isinstance(caught.value, UserError)
    assert caught.value.field == "--port"
    await first.aclose()


@pytest.mark.parametrize(("host", "why"), [("192.0.2.1", "does not have that address"), ("x" * 70, "not a host name")])
async def test_a_foreign_address_is_named(host, why):
    """Listening on an address that this machine does not have is a user error that names it."""
    with pytest.raises(ListenError, match=why):
        await open_listeners(host, 0)


async def test_port_zero_gives_one_port():
    """With port 0 a name with two addresses gives one listener, so that there is one port to report."""
    listeners = await open_listeners("localhost", 0)
    assert len(listeners) == 1
    await listeners[0].aclose()


async def test_tls_listeners_are_served(tmp_path, sockets):
    """Over TLS the same server answers, streams, notices a client that closes, and survives one without TLS."""
    server_context, client_context = make_contexts(tmp_path)
    watching, cancelled = trio.Event(), trio.Event()

    async def handler(exchange):
        if exchange.request.path != "/watch":
            await echo(exchange)
            return
        async with exchange.stream(200, Headers()) as send:
            await send(b"x")
            watching.set()
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            (plain,) = await open_listeners("127.0.0.1", 0)
            port = plain.socket.getsockname()[1]
            [inner] = sockets.listen([plain])
            await nursery.start(run_server, handler, [trio.SSLListener(inner, server_context, https_compatible=True)])

            async with await trio.open_tcp_stream("127.0.0.1", port) as rude:
                await rude.send_all(GET)
                assert b"HTTP" not in await receive_all(rude)

            async def open_tls():
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                return trio.SSLStream(stream, client_context, server_hostname="localhost", https_compatible=True)

            async with await open_tls() as client:
                await client.send_all(GET + GET)
                assert (await receive_until(client, ANSWER_END)).count(b"200 OK") in (1, 2)
                await client.send_all(b"GET /z HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                assert (await receive_all(client)).endswith(b"GET /z ")
            client = await open_tls()
            await client.send_all(b"GET /watch HTTP/1.1\r\nHost: h\r\n\r\n")
            await watching.wait()
            await trio.aclose_forcefully(client)
            await cancelled.wait()
            nursery.cancel_scope.cancel()


async def test_a_port_that_macos_would_share_is_taken(monkeypatch):
    """A server on all addresses keeps its port, even if the kernel would let us listen before it on one of them."""

    async def bind(port, *, host):
        await trio.lowlevel.checkpoint()
        return []  # macOS does so next to a listener on all addresses: it sees no conflict

    port = free_port()
    with socket.create_server(("0.0.0.0", port)):
        monkeypatch.setattr(listen, "SHARES_PORTS", True)
        monkeypatch.setattr(trio, "open_tcp_listeners", bind)
        with pytest.raises(PortTakenError, match=f"--port: cannot listen on 127.0.0.1:{port}: another program"):
            await open_listeners("127.0.0.1", port, field="--port")
    assert await open_listeners("127.0.0.1", port, field="--port") == []


INTERRUPTED = """
import trio
from llmkube.base.http import server
from llmkube.base.http.listen import open_listeners

class Interrupted(server.ServerContext):
    @property
    def idle(self):
        raise KeyboardInterrupt

    @idle.setter
    def idle(self, value):
        pass

async def main():
    server.ServerContext = Interrupted
    await server.run_server(None, await open_listeners("127.0.0.1", 0))

try:
    trio.run(main)
except* KeyboardInterrupt:
    print("ended")
"""


@pytest.mark.e2e
async def test_an_interrupt_while_a_server_starts_ends_it():
    """Ctrl-C between the starts of its tasks leaves none that waits for connections for ever, behind a shield."""
    with trio.fail_after(60):
        ran = await trio.run_process([sys.executable, "-c", INTERRUPTED], capture_stdout=True)
    assert ran.stdout == b"ended\n"
