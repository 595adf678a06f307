"""A WebSocket client: against the `websockets` package over real sockets, and byte by byte against scripted peers."""

import base64
import hashlib
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from base.http.certificates import make_contexts
from http_lab import GONE, always, receive_until, serving_websockets
from llmkube.base.http import websocket as websocket_module
from llmkube.base.http.client import HttpClient, UpgradedConnection
from llmkube.base.http.dial import TlsDialer, dial
from llmkube.base.http.errors import ConnectError, ConnectionLostError, HttpError, PeerClosedError, ProtocolError
from llmkube.base.http.message import Headers, encode_request_head, netloc
from llmkube.base.http.websocket import Offer, connect_websocket

MIB = 1024 * 1024


async def upgrade(client, origin, headers):
    """Request a protocol upgrade, as clients of Kubernetes do."""
    head = encode_request_head("GET", "/chat", Headers((("Host", netloc(origin)), *headers)))
    answer = await client.start(origin, "GET", head, b"", switching=True)
    assert answer.status == 101
    return UpgradedConnection(answer.headers, answer.stream, answer.early, netloc(origin))


serving = partial(serving_websockets, subprotocols=["chat"])


@asynccontextmanager
async def connected(port, *, connect=dial):
    """A WebSocket to a server of this machine, within a generous time limit."""
    ask = partial(upgrade, HttpClient(connect), ("127.0.0.1", port))
    with trio.fail_after(60):
        async with await connect_websocket(ask, "chat") as websocket:
            yield websocket


def echo(connection):
    for message in connection:
        connection.send(message)


@pytest.mark.parametrize("secure", [False, True])
async def test_messages_come_back_as_they_were(secure, tmp_path):
    """Text and bytes of any size, plain and under TLS, even longer than one frame."""
    server_context, client_context = make_contexts(tmp_path)
    messages = [b"bytes", "zw€i", b"", "", bytes(range(256)) * 4096, b"x" * 125, b"x" * 126, b"x" * 65536]
    with serving(echo, ssl=server_context if secure else None, max_size=2 * MIB) as port:
        connect = TlsDialer(client_context, "localhost") if secure else dial
        async with connected(port, connect=connect) as websocket:
            for message in messages:
                await websocket.send(message)
                assert await websocket.receive() == message


async def test_sending_and_receiving_do_not_wait_for_each_other(tmp_path):
    """Under TLS, 8 MiB are sent while they come back: more than all buffers between the two hold."""
    server_context, client_context = make_contexts(tmp_path)
    message, received = bytes(64 * 1024), 0
    with serving(echo, ssl=server_context) as port:
        async with connected(port, connect=TlsDialer(client_context, "localhost")) as websocket:

            async def send():
                for _ in range(128):
                    await websocket.send(message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while received < 128 * len(message):
                    received += len(await websocket.receive())


async def test_fragments_and_pings_among_them():
    """A message in pieces is one message, and each ping of the server is answered while the client receives."""
    answered = []

    def talk(connection):
        connection.send([b"one ", b"and ", b"a half"])
        connection.send(["zw", "€", "i"])
        answered.append(connection.ping(b"one").wait(60))
        answered.append(connection.ping(b"two").wait(60))

    with serving(talk) as port:
        async with connected(port) as websocket:
            assert [message async for message in websocket] == [b"one and a half", "zw€i"]
    assert answered == [True, True]


@pytest.mark.parametrize(("code", "clean"), [(1000, True), (1001, True), (1011, False), (1013, False), (4321, False)])
async def test_a_close_of_the_server_ends_or_fails(code, clean):
    """Iteration ends without an error at a normal close; any other is an error with the server's code and reason."""

    def leave(connection):
        connection.send(b"last words")
        connection.close(code, "because")

    with serving(leave) as port:
        async with connected(port) as websocket:
            assert await websocket.receive() == b"last words"
            for _ in range(2):
                with pytest.raises(trio.EndOfChannel if clean else PeerClosedError) as caught:
                    await websocket.receive()
            if not clean:
                assert (caught.value.code, caught.value.reason) == (code, "because")
                assert str(caught.value) == f"127.0.0.1:{port} closed the WebSocket with code {code}: because"
            with pytest.raises(ConnectionLostError):
                await websocket.send(b"too late")


async def test_the_server_receives_our_close():
    """Leaving the block sends a close with code 1000, even while messages are still coming."""
    codes = []

    def flood(connection):
        try:
            while True:
                connection.send(bytes(1000))
        except ConnectionClosed as closed:
            codes.append(closed.rcvd.code)

    with serving(flood) as port:
        async with connected(port) as websocket:
            assert await websocket.receive() == bytes(1000)
    assert codes == [1000]


async def test_the_server_has_to_choose_our_protocol():
    """Another protocol of the server is refused."""
    with serving(echo, subprotocols=None) as port:  # noqa: SIM117
        with pytest.raises(ProtocolError, match="does not support the subprotocol chat"):
            async with connected(port):
                pass


# from here on against a script: every byte from the client is seen


def accept(request):
    """The head of a server's response to this request."""
    key = next(line[19:] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: "))
    digest = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\nSec-WebSocket-Protocol: chat\r\n\r\n" % digest
    )


class Peer:
    """The server's end of one connection in memory; `frames` parses the client's bytes by another implementation."""

    def __init__(self):
        self.client, self.stream = trio.testing.memory_stream_pair()
        self.frames = Protocol(Side.SERVER, max_size=None)
        self.upgrade = partial(upgrade, HttpClient(always(self.client)), ("pod", 80))

    async def accept(self, early=b""):
        head = accept(await receive_until(self.stream, b"\r\n\r\n"))
        await self.stream.send_all(head + early)

    async def open(self, early=b""):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.accept, early)
            websocket = await connect_websocket(self.upgrade, "chat")
        return websocket  # noqa: RET504 (flake8-async wants it outside of the nursery)

    async def send(self, opcode, data=b"", *, fin=True):
        await self.stream.send_all(Frame(opcode, data, fin).serialize(mask=False))

    async def receive_frames(self):
        """Return the next frames of the client; an empty list at the end of the connection."""
        while not (frames := self.frames.events_received()):
            data = await self.stream.receive_some()
            if not data:
                return []
            self.frames.receive_data(data)
        return frames

    async def is_gone(self):
        """Return whether the client has closed the connection."""
        try:
            await self.stream.send_all(b"\x8a\x00")
        except GONE:
            return True
        return False


async def test_bytes_after_the_head_are_read_first():
    """A frame in the same packet as the 101 is received."""
    peer = Peer()
    websocket = await peer.open(early=Frame(Opcode.BINARY, b"early").serialize(mask=False))
    assert await websocket.receive() == b"early"
    await trio.aclose_forcefully(websocket)


def frame(opcode, data=b"", *, fin=True):
    return Frame(opcode, data, fin).serialize(mask=False)


@pytest.mark.parametrize(
    ("wire", "code", "why"),
    [
        (b"\x82\x81\x00\x00\x00\x00x", 1002, "masked"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", 1002, "violates"),
        (b"\x81\x02\xff\xff", 1007, "decode"),
        (
            frame(Opcode.BINARY, b"x" * 60, fin=False) + frame(Opcode.CONT, b"x" * 60, fin=False),
            1009,
            "more than 100 bytes",
        ),
        (frame(Opcode.CONT, b"x"), 1002, "violates"),
        (frame(Opcode.CLOSE, b"\x03"), 1002, "violates"),
        (b"\x82\x7f" + (2**40).to_bytes(8, "big") + bytes(101), 1009, "more than 100 bytes"),
    ],
)
async def test_garbage_ends_the_connection_with_the_right_code(wire, code, why, autojump_clock, monkeypatch):
    """The server gets the close code, the reader gets an error again and again, and the connection closes."""
    monkeypatch.setattr(websocket_module, "MAX_MESSAGE_BYTES", 100)
    peer = Peer()
    websocket = await peer.open()
    await peer.stream.send_all(wire)
    for _ in range(2):
        with pytest.raises(ProtocolError, match=f"^pod:80 .*{why}"):
            await websocket.receive()
    [frame] = await peer.receive_frames()
    assert (frame.opcode, frame.data[:2]) == (Opcode.CLOSE, code.to_bytes(2, "big"))
    await websocket.aclose()
    assert await peer.is_gone()
    assert trio.current_time() == peer_time(0)


def peer_time(seconds):
    """A virtual clock starts at zero."""
    return pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("received_bytes", [b"", b"\x82", b"\x82\x05hel", b"\x02\x03hel"])
async def test_an_end_without_a_close_is_an_error(received_bytes):
    """A connection that ends in the middle of a message, or after one, is never taken for a clean end."""
    peer = Peer()
    websocket = await peer.open()
    await peer.stream.send_all(received_bytes)
    await peer.stream.send_eof()
    with pytest.raises(ConnectionLostError, match="connection to pod:80 lost"):
        await websocket.receive()
    await websocket.aclose()


async def test_a_reset_is_an_error_for_both_directions():
    """When the connection breaks, sending and receiving both name the peer."""
    peer = Peer()
    websocket = await peer.open()
    await trio.aclose_forcefully(peer.stream)
    with pytest.raises(ConnectionLostError, match="connection to pod:80 lost"):
        await websocket.send(b"x")
    with pytest.raises(ConnectionLostError, match="connection to pod:80 lost"):
        await websocket.receive()
    await websocket.aclose()


async def test_a_handshake_has_one_deadline(autojump_clock):
    """30 s after the first packet the handshake fails, however slowly the response arrives; no connection is left."""
    peer = Peer()

    async def drip():
        with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
            while True:
                await peer.stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                await trio.sleep(7)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        with pytest.raises(ConnectError, match="30 s"):
            await connect_websocket(peer.upgrade, "chat")
        assert trio.current_time() == peer_time(30)


async def test_a_close_that_is_not_answered_is_bounded(autojump_clock):
    """2 s after our close frame the connection is closed; messages in between are dropped."""
    peer = Peer()
    websocket = await peer.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(websocket.aclose)
        [frame] = await peer.receive_frames()
        assert (frame.opcode, frame.data) == (Opcode.CLOSE, b"\x03\xe8")
        await peer.send(Opcode.BINARY, b"what?")
        assert not await peer.is_gone()
    assert trio.current_time() == peer_time(2)
    assert await peer.is_gone()
    for late in (websocket.receive, partial(websocket.send, b"x")):
        with pytest.raises(trio.ClosedResourceError):
            await late()


async def test_a_close_while_another_task_receives_ends_that_task():
    """The receiver gets the server's close frame; two tasks never read at once."""
    peer, ended = Peer(), []
    websocket = await peer.open()

    async def receive():
        with pytest.raises(trio.EndOfChannel):
            await websocket.receive()
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await websocket.receive()
        nursery.start_soon(websocket.aclose)
        assert (await peer.receive_frames())[0].opcode is Opcode.CLOSE
        await peer.send(Opcode.CLOSE, b"\x03\xe8")
    assert ended == [True]
    assert await peer.is_gone()


async def test_a_ping_that_comes_while_another_task_sends_is_answered_by_it():
    """The receiver continues to receive; of several pings the last is answered, after the current message."""
    peer = Peer()
    websocket = await peer.open()
    blocked, deliver = trio.Event(), peer.client.send_stream.send_all_hook

    async def deliver_later():
        await blocked.wait()
        await deliver()

    peer.client.send_stream.send_all_hook = deliver_later  # the server's buffers are full
    received = []

    async def receive():
        received.append(await websocket.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(websocket.send, b"long")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(receive)
        await peer.send(Opcode.PING, b"one")
        await peer.send(Opcode.PING, b"two")
        await peer.send(Opcode.BINARY, b"still heard")
        await trio.testing.wait_all_tasks_blocked()
        assert received == [b"still heard"]
        blocked.set()
    frames = await peer.receive_frames()
    if len(frames) == 1:
        frames += await peer.receive_frames()
    assert [(frame.opcode, frame.data) for frame in frames] == [(Opcode.BINARY, b"long"), (Opcode.PONG, b"two")]
    await trio.aclose_forcefully(websocket)


async def test_nothing_is_read_without_a_receive():
    """A server that sends without an end is blocked while the client does not receive."""
    client, server = trio.testing.lockstep_stream_pair()
    sent = 0

    async def flood():
        nonlocal sent
        await server.send_all(accept(await receive_until(server, b"\r\n\r\n")))
        with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
            while True:
                await server.send_all(Frame(Opcode.BINARY, bytes(1000)).serialize(mask=False))
                sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        websocket = await connect_websocket(partial(upgrade, HttpClient(always(client)), ("pod", 80)), "chat")
        await trio.testing.wait_all_tasks_blocked()
        assert sent == 0
        for _ in range(3):
            await websocket.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert sent == 3
        await trio.aclose_forcefully(websocket)


async def test_a_cancelled_receive_loses_nothing():
    """Half a message that had come before the cancellation is whole after it."""
    peer = Peer()
    websocket = await peer.open()
    await peer.send(Opcode.TEXT, b"first ", fin=False)
    with trio.move_on_after(0.01):
        await websocket.receive()
    await peer.send(Opcode.CONT, b"second")
    assert await websocket.receive() == "first second"
    await trio.aclose_forcefully(websocket)


async def test_after_a_cancelled_send_nothing_is_sent():
    """Half a frame stays half: no later frame, not even a close, could be parsed."""
    peer = Peer()
    websocket = await peer.open()
    deliver = peer.client.send_stream.send_all_hook
    peer.client.send_stream.send_all_hook = trio.sleep_forever
    with trio.move_on_after(0.01):
        await websocket.send(b"x")
    peer.client.send_stream.send_all_hook = deliver
    with pytest.raises(trio.ClosedResourceError):
        await websocket.send(b"y")
    with trio.fail_after(60):
        await websocket.aclose()
    assert await peer.is_gone()


async def converse_once(peer):
    """Accept, send one message back, and answer the close, as far as the client gets."""
    with suppress(AssertionError, *GONE):  # the client's end, at any point
        await peer.accept()
        for frame in await peer.receive_frames():
            await peer.send(frame.opcode, frame.data)
        for frame in await peer.receive_frames():
            await peer.send(frame.opcode, frame.data)


async def test_a_cancellation_anywhere_leaves_no_connection():
    """At any checkpoint of handshake, message and close a cancellation closes the connection."""
    finished = 0
    for checkpoints in range(100):
        peer, opened = Peer(), []

        async def connect(host, port, peer=peer, opened=opened):
            await trio.lowlevel.checkpoint()
            opened.append(peer.client)
            return peer.client

        async with trio.open_nursery() as outer:
            outer.start_soon(converse_once, peer)
            async with trio.open_nursery() as call:

                async def cancel(scope=call.cancel_scope, checkpoints=checkpoints):
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                call.start_soon(cancel)
                async with await connect_websocket(
                    partial(upgrade, HttpClient(connect), ("pod", 80)), "chat"
                ) as websocket:
                    await websocket.send(b"hello")
                    assert await websocket.receive() == b"hello"
                finished += 1
            assert await peer.is_gone() == bool(opened)
            outer.cancel_scope.cancel()
    assert 0 < finished < 90


async def test_an_answer_that_does_not_fit_leaves_no_connection():
    """A peer that sends 101 without having read the key is refused, and the connection closed."""
    peer = Peer()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def lie():
            await receive_until(peer.stream, b"\r\n\r\n")
            await peer.stream.send_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            )

        with pytest.raises(ProtocolError, match="does not match the request"):
            await connect_websocket(peer.upgrade, "chat")
    assert await peer.is_gone()


async def test_a_101_without_an_offer_is_still_refused():
    """An ordinary request never switches protocols."""
    peer = Peer()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def switch():
            await receive_until(peer.stream, b"\r\n\r\n")
            await peer.stream.send_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")

        with pytest.raises(HttpError, match="that was not requested"):
            await HttpClient(always(peer.client)).request("GET", "http://pod:80/", headers=Headers())


OFFER = Offer(b"the sample nonce", "v4.channel.k8s.io")  # RFC 6455, 1.3
ACCEPT = ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
SWITCH = (("Upgrade", "WebSocket"), ("Connection", "keep-alive, Upgrade"))
CHOICE = ("Sec-WebSocket-Protocol", "v4.channel.k8s.io")


def test_the_offer_is_the_one_of_the_rfc():
    """The key, the version and the protocols are in the request as in RFC 6455."""
    assert list(OFFER.headers) == [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
    ]
    OFFER.check_response(Headers((*SWITCH, ACCEPT, CHOICE)), "pod")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((ACCEPT, CHOICE), "does not switch"),
        ((("Upgrade", "h2c"), SWITCH[1], ACCEPT, CHOICE), "does not switch"),
        ((SWITCH[0], ("Connection", "close"), ACCEPT, CHOICE), "does not switch"),
        ((*SWITCH, CHOICE), "Sec-WebSocket-Accept"),
        ((*SWITCH, ("Sec-WebSocket-Accept", "S3PPLMBITXAQ9KYGZZHZRBK+XOO="), CHOICE), "Sec-WebSocket-Accept"),
        ((*SWITCH, ACCEPT, ACCEPT, CHOICE), "Sec-WebSocket-Accept"),
        ((*SWITCH, ACCEPT, CHOICE, ("Sec-WebSocket-Extensions", "permessage-deflate")), "extension"),
        ((*SWITCH, ACCEPT, ("Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io")), "not offered"),
        ((*SWITCH, ACCEPT, CHOICE, ("Sec-WebSocket-Protocol", "other")), "not offered"),
        ((*SWITCH, ACCEPT), "does not support the subprotocol"),
    ],
)
def test_an_answer_that_does_not_fit_the_offer_is_refused(lines, why):
    """Each difference from the offer is an error that names it."""
    with pytest.raises(ProtocolError, match=f"^pod .*{why}"):
        OFFER.check_response(Headers(lines), "pod")
