"""Receiving into a buffer, from every kind of stream; TLS is in test_tls."""

import socket
import struct

import pytest
import trio
import trio.testing

from llmkube.base.http.bulk import receive_into
from llmkube.base.http.hub import MAX_READ_BYTES

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
    """A connection that is lost is an error in Trio's words, and not the end of a body."""
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
    """Receiving what is there already is a checkpoint now and then: a deadline that has passed is noticed."""
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


async def test_a_stream_that_knows_no_buffers():
    """What it gives is copied, and is never more than there is room for."""
    mine, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"0123456789")
    await theirs.send_eof()
    assert await receive_all_into(mine, memoryview(bytearray(4))) == b"0123456789"
