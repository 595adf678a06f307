"""The client's side of TLS against OpenSSL's server; tests/k8s/auth covers trust."""

import socket
import ssl
import struct
from contextlib import suppress
from functools import partial

import pytest
import trio
import trio.testing

from base.http.certificates import make_contexts
from http_lab import always
from llmkube.base.http.dial import TlsDialer
from llmkube.base.http.hub import MAX_READ_BYTES
from llmkube.base.http.tls import TlsStream, receive_into


@pytest.fixture
def contexts(tmp_path):
    return make_contexts(tmp_path)


async def echo(stream, seen):
    """Echo everything; record whether the session was resumed."""
    while data := await stream.receive_some():
        seen.append(stream.session_reused)
        await stream.send_all(data)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_next_connection_resumes_the_session(contexts, version):
    """Bytes are echoed unchanged, in pieces of any size, and the second handshake resumes the session."""
    server_context, client_context = contexts
    client_context.maximum_version = version
    dialer, seen = TlsDialer(client_context, "localhost"), []

    async def serve(transport):
        await echo(trio.SSLStream(transport, server_context, server_side=True, https_compatible=True), seen)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            for _ in range(2):
                stream = await dialer("127.0.0.1", port)
                sent, received = bytes(range(256)) * 400, b""
                async with trio.open_nursery() as sending:
                    sending.start_soon(stream.send_all, sent)
                    while len(received) < len(sent):
                        received += await stream.receive_some(10_000)
                assert received == sent
                await stream.aclose()
            nursery.cancel_scope.cancel()
    assert (seen[0], seen[-1]) == (False, True)


async def test_a_session_is_for_one_server(contexts):
    """A session belongs to a verified certificate: another server has to present its own."""
    server_context, client_context = contexts
    dialer, seen = TlsDialer(client_context, "localhost"), []

    async def serve(transport):  # both would accept each other's sessions: they have the same keys
        await echo(trio.SSLStream(transport, server_context, server_side=True, https_compatible=True), seen)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            ports = []
            for _ in range(2):
                [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
                ports.append(listener.socket.getsockname()[1])
            for port in (*ports, *ports):
                stream = await dialer("127.0.0.1", port)
                await stream.send_all(b"x")
                assert await stream.receive_some() == b"x"
                await stream.aclose()
            nursery.cancel_scope.cancel()
    assert seen == [False, False, True, True]


@pytest.mark.parametrize("room", [1000, 20_000, 3_000_000])
async def test_a_large_body_is_decrypted_into_a_buffer(contexts, sockets, room):
    """Two megabytes arrive unchanged, for any size of the buffer and of the records, up to the clean end."""
    server_context, client_context = contexts
    data, received = bytes(range(251)) * 8_000, bytearray()
    dialer = TlsDialer(client_context, "localhost", sockets.connect)

    async def serve(transport):
        async with trio.SSLStream(transport, server_context, server_side=True) as stream:
            for at in range(0, len(data), 50_001):
                await stream.send_all(data[at : at + 50_001])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            buffer = memoryview(bytearray(room))
            async with await dialer("127.0.0.1", listener.socket.getsockname()[1]) as stream:
                while count := await receive_into(stream, buffer):
                    received += buffer[:count]
                assert not await receive_into(stream, buffer)
            nursery.cancel_scope.cancel()
    assert received == data


async def test_data_before_garbage_is_received(contexts):
    """Into a buffer as well: first the valid data, and then the error, again and again."""
    mine, theirs = trio.testing.memory_stream_pair()
    server = trio.SSLStream(theirs, contexts[0], server_side=True, https_compatible=True)
    client, buffer = TlsStream(mine, contexts[1], "localhost", None), memoryview(bytearray(100))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        nursery.start_soon(client.do_handshake)
    await server.send_all(b"last")
    await theirs.send_all(b"no TLS at all")
    assert (await client.receive_into(buffer), bytes(buffer[:4])) == (4, b"last")
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="TLS"):
            await client.receive_into(buffer)
    await theirs.aclose()


async def shake_hands(client_context, answer):
    """Return the result of a handshake with a server that sends only these bytes."""
    mine, server = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def play():
            await server.receive_some()
            if answer:
                await server.send_all(answer)
            await server.aclose()

        nursery.start_soon(play)
        with pytest.raises((ssl.SSLError, trio.BrokenResourceError)) as caught:
            await TlsDialer(client_context, connect=always(mine))("localhost", 1)
        with pytest.raises(trio.ClosedResourceError):
            await mine.send_all(b"x")
    return caught.value


@pytest.mark.parametrize(
    ("answer", "error"), [(b"", trio.BrokenResourceError), (b"HTTP/1.1 400 Bad Request\r\n\r\n", ssl.SSLError)]
)
async def test_a_peer_without_tls_is_refused(contexts, answer, error):
    """A server that closes or does not speak TLS is an error, and the connection is closed."""
    assert isinstance(await shake_hands(contexts[1], answer), error)


async def test_an_end_without_close_notify_is_an_end(contexts):
    """The framing of the data decides; later garbage breaks the stream."""
    mine, theirs = trio.testing.memory_stream_pair()
    server = trio.SSLStream(theirs, contexts[0], server_side=True, https_compatible=True)
    client = TlsStream(mine, contexts[1], "localhost", None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        nursery.start_soon(client.do_handshake)
    await server.send_all(b"last")
    await theirs.send_all(b"no TLS at all")
    assert await client.receive_some() == b"last"
    with pytest.raises(trio.BrokenResourceError, match="TLS"):
        await client.receive_some()
    await theirs.aclose()


async def test_an_answer_of_tls_itself_does_not_disturb_a_task_that_sends(contexts):
    """A server that requests a certificate late, in the middle of a long send, gets it when the send continues."""
    server_context, client_context = contexts
    server_context.post_handshake_auth = client_context.post_handshake_auth = True
    server_context.verify_mode = ssl.CERT_OPTIONAL
    mine, theirs = trio.testing.memory_stream_pair()
    server, received = trio.SSLStream(theirs, server_context, server_side=True), []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.do_handshake)
            client = await TlsDialer(client_context, connect=always(mine))("localhost", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.send_all, b"hello")
            assert await client.receive_some() == b"hello"
        readable, deliver = trio.Event(), mine.send_stream.send_all_hook

        one_at_a_time = trio.Semaphore(1)  # as a socket's stream does

        async def deliver_later():
            one_at_a_time.acquire_nowait()
            await readable.wait()
            await deliver()
            one_at_a_time.release()

        mine.send_stream.send_all_hook = deliver_later
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, b"long")
            await trio.testing.wait_all_tasks_blocked()

            async def receive():
                received.append(await client.receive_some())

            nursery.start_soon(receive)
            server._ssl_object.verify_client_post_handshake()
            with suppress(ssl.SSLWantReadError):
                server._ssl_object.do_handshake()  # writes the request
            await theirs.send_all(server._outgoing.read())
            await trio.testing.wait_all_tasks_blocked()
            await server.send_all(b"x")
            await trio.testing.wait_all_tasks_blocked()
            readable.set()
        assert await server.receive_some() == b"long"
        await client.send_all(b"more")
        assert await server.receive_some() == b"more"
    assert received == [b"x"]


DATA = bytes(range(251)) * 20_000


async def receive_all_into(stream, room):
    received = bytearray()
    while count := await receive_into(stream, room):
        assert count <= len(room)
        received += room[:count]
    return bytes(received)


@pytest.mark.parametrize("size", [1000, 3 * MAX_READ_BYTES])
async def test_every_byte_comes_in_order(sockets, size):
    """Five megabytes over a socket fill a buffer of any size again and again, up to the end."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def send():
        async with await listener.accept() as server:
            await server.send_all(DATA)

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.fail_after(60):
            async with await sockets.connect("127.0.0.1", listener.socket.getsockname()[1]) as stream:
                assert await receive_all_into(stream, memoryview(bytearray(size))) == DATA


async def test_a_reset_is_no_end(sockets):
    """A lost connection is an error of Trio, and not the end of a body."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with trio.fail_after(60):
        async with await sockets.connect("127.0.0.1", listener.socket.getsockname()[1]) as stream:
            server = await listener.accept()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await server.aclose()
            with pytest.raises(trio.BrokenResourceError):
                await receive_into(stream, memoryview(bytearray(10)))
    await listener.aclose()


async def test_a_peer_that_always_has_more_lets_others_run(sockets):
    """Receiving available data is a checkpoint now and then: a deadline that has passed is noticed."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with trio.fail_after(60):
        async with await sockets.connect("127.0.0.1", listener.socket.getsockname()[1]) as stream:
            server = await listener.accept()
            await server.send_all(DATA[:1000])
            await trio.sleep(0.05)
            with trio.move_on_after(0) as passed:
                for _ in range(1000):
                    await receive_into(stream, memoryview(bytearray(1)))
            assert passed.cancelled_caught
            await server.aclose()
    await listener.aclose()


async def test_a_stream_without_receive_into():
    """Its data is copied, and is never more than the buffer holds."""
    mine, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"0123456789")
    await theirs.send_eof()
    assert await receive_all_into(mine, memoryview(bytearray(4))) == b"0123456789"
