import pytest
import trio
import trio.testing

from llmkube.base.http.errors import BrokenOffError, ProtocolError
from llmkube.weights.download.http_get import get

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


async def ask(answer, *, piece=None, room=64):
    """Play an answer in pieces of some size; return status, headers, and the body as it came into small buffers."""
    ours, theirs = trio.testing.memory_stream_pair()
    body = bytearray()
    async with ours, theirs, trio.open_nursery() as nursery:

        async def play():
            asked = await theirs.receive_some()
            assert asked.startswith(b"GET /m.gguf HTTP/1.1\r\nHost: h\r\n")
            assert b"\r\nConnection: close\r\n" in asked
            for at in range(0, len(answer), piece or 1 + len(answer)):
                await theirs.send_all(answer[at : at + (piece or 1 + len(answer))])
            await theirs.send_eof()

        nursery.start_soon(play)
        reply = await get(ours, "/m.gguf", {"Host": "h"})
        buffer = memoryview(bytearray(room))
        while count := await reply.body.receive_into(buffer):
            body += buffer[:count]
    return reply.status, reply.headers, bytes(body)


@pytest.mark.parametrize("piece", [1, 7, None])
@pytest.mark.parametrize("room", [1, 5, 64])
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 10\r\n\r\n0123456789", b"0123456789"),
        (b"Content-Length: 10\r\n\r\n0123456789and more", b"0123456789"),
        (b"Content-Length: 0\r\n\r\n", b""),
        (CHUNKED + b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n", b"0123456789"),
        (b"\r\n0123456789", b"0123456789"),
    ],
)
async def test_a_body_comes_whole_however_it_is_cut(head, body, piece, room, autojump_clock):
    """Length, chunks or the end of the connection frame it; pieces of the network and of the reader do not show."""
    found = await ask(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nETag: x\r\n" + head, piece=piece, room=room)
    assert (found[0], found[1]["etag"], found[2]) == (200, "x", body)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"", BrokenOffError, "closed the connection before its answer was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-", BrokenOffError, "closed the connection before its answer was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123", BrokenOffError, "ended 6 bytes early"),
        (b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"4\r\n01", BrokenOffError, "ends before its last chunk"),
        (b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"zz\r\n01", ProtocolError, "malformed chunk"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ProtocolError, "malformed head"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n1", ProtocolError, "malformed head"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", ProtocolError, "malformed head"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300, ProtocolError, "more than 256 headers"),
    ],
)
async def test_an_answer_that_is_none(answer, error, says, autojump_clock):
    """What breaks off or is no HTTP is an error that says so, whatever has come before."""
    with pytest.RaisesGroup(pytest.RaisesExc(error, match=says), flatten_subgroups=True):
        await ask(answer)


async def test_lines_of_one_name_are_joined(autojump_clock):
    """Names are in lower case, and repeated lines are one value with commas."""
    _, headers, _ = await ask(b"HTTP/1.1 200 OK\r\nVary: a\r\nvary: b\r\nContent-Length: 0\r\n\r\n")
    assert headers == {"vary": "a, b", "content-length": "0"}
