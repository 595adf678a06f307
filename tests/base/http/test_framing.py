"""Mutated requests in all pieces: the handler gets the requests that h11 reads, and each response is valid.

If two parsers of one connection disagree on the end of a request, an attacker hides a second one in the first. So
all requests that this server reads from a broken stream, h11 has to read alike; either may refuse more.
"""

import random

import h11
import pytest
import structlog.testing
import trio
import trio.testing

from http_lab import converse, cut
from lengths import MUTATIONS
from llmkube.base.http import connection
from llmkube.base.http.bodies import LengthBody
from llmkube.base.http.exchange import Exchange
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Response

CHUNKS = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
REQUESTS = [
    b"GET /a?b=c HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello world",
    b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    b"PUT /d HTTP/1.1\r\nhost: h\r\nX-Long: " + b"y" * 60 + b"\r\ncontent-length: 0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    b"GET /f HTTP/1.0\r\nHost: h\r\n\r\n",
]
SNIPPETS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b";", b"0", b"-1", b"+3", b"0x3", b"1_0", b"99999999999999999999",
    b"\r\n\r\n", b"\r\n ", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n",
    b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", b"\xff", b"\x80", b"0\r\n\r\n", b"Connection: close\r\n", b"Host: other\r\n",
]  # fmt: skip
LIMITS = Limits(linger_seconds=0)


def mutate(data, rng):
    """A stream with some bytes deleted, inserted, doubled or changed."""
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        at, length = rng.randrange(len(data)), rng.randrange(1, 8)
        match rng.randrange(4):
            case 0:
                data = data[:at] + data[at + length :]
            case 1:
                data = data[:at] + rng.choice(SNIPPETS) + data[at:]
            case 2:
                data = data[: at + length] + data[at:]
            case _:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        data = data or b"\r"
    return data


async def serve(pieces):
    """Return the handler's requests for these pieces, and the client's bytes."""
    taken = []

    async def handler(exchange: Exchange) -> None:
        request = exchange.request
        taken.append((request.method, request.target, request.body))
        await exchange.respond(Response.text(200, "ok"))

    received = await converse(handler, *pieces, limits=LIMITS, half_close=True)
    return taken, received


def read_with_h11(data):
    """Return the requests that h11 reads before it refuses the data, or the data or the connection ends."""
    server, taken = h11.Connection(h11.SERVER, max_incomplete_event_size=LIMITS.max_head_bytes), []
    server.receive_data(data)
    try:
        while isinstance(request := server.next_event(), h11.Request):
            body = b""
            while isinstance(event := server.next_event(), h11.Data):
                body += bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                break
            taken.append((request.method.decode(), request.target.decode("latin-1"), body))
            server.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            server.send(h11.EndOfMessage())
            if server.our_state is not h11.DONE or server.their_state is not h11.DONE:
                break
            server.start_next_cycle()
    except h11.RemoteProtocolError:
        pass
    return taken


def statuses(received):
    """Return the statuses of the responses that a client reads; the stream contains nothing else."""
    client, found = h11.Connection(h11.CLIENT), []
    while received:
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
        client.send(h11.EndOfMessage())
        client.receive_data(received)
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert not isinstance(event, h11.PAUSED | h11.NEED_DATA), received
            if isinstance(event, h11.Response):
                found.append(event.status_code)
        received, _ = client.trailing_data
        client = h11.Connection(h11.CLIENT)
    return found


def play(seed):
    """A hundred mutated streams."""
    rng = random.Random(seed)
    for _ in range(100):
        whole = b"".join(rng.choices(REQUESTS, k=rng.randrange(1, 4)))
        data = mutate(whole, rng)
        pieces = cut(data, [rng.randrange(1 << 16) for _ in range(rng.choice([0, 0, 1, 5]))])
        with structlog.testing.capture_logs() as logs:
            taken, received = trio.run(serve, pieces)
        reference = read_with_h11(data)
        both = min(len(taken), len(reference))
        assert taken[:both] == reference[:both], data
        assert logs == [], data
        found = statuses(received)
        assert found[: len(taken)] == [200] * len(taken), data
        assert len(found) - len(taken) <= 1, data
        assert all(400 <= status < 600 for status in found[len(taken) :]), data


@pytest.mark.parametrize("seed", range(MUTATIONS // 100))
def test_a_mutated_stream_is_read_as_another_parser_reads_it(seed):
    """No request comes out of a broken stream that another parser does not see."""
    play(seed)


BUGS = {
    "the body of a chunked request is the next request": lambda head, most: LengthBody(head.length or 0),
    "a length is not what it says": lambda head, most: LengthBody(max(0, (head.length or 0) - 1)),
}


@pytest.mark.soak
@pytest.mark.parametrize("bug", BUGS)
def test_a_deliberate_bug_is_caught(bug, monkeypatch):
    """A server that frames requests differently does not get through a hundred streams."""
    monkeypatch.setattr(connection, "request_body", BUGS[bug])
    with pytest.raises(AssertionError):
        play(1)


def test_valid_streams_are_read_in_full():
    """The test above is effective: without a mutation both read every request."""
    data = b"".join(REQUESTS)
    taken, received = trio.run(serve, [data])
    assert taken == read_with_h11(data)
    assert len(taken) == len(REQUESTS)
    assert statuses(received) == [200] * len(REQUESTS)
