"""Ambiguous requests, which two parsers could read differently, through a router and a gateway to a backend.

Each contains a second request that a lenient server would forward. Here the backend gets nothing, the client gets one
error, and the connection ends.
"""

from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from http_lab import MemoryListener, receive_all
from llmkube.base.http.client import open_http_client
from llmkube.base.http.server import run_server
from llmkube.router.front_door import PassThrough, passing_door
from llmkube.router.origin_policy import cors_lines, refuse_foreign_pages
from llmkube.router.proxy.router import LIMITS
from router.proxy.router_lab import answer, config_of, local, open_lab
from router.test_front_door import BORN, ONE, Engine

MOST = 1 << 16
BOUNDS = attrs.evolve(LIMITS, max_body_bytes=MOST)
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
TOP = LINE + b"Host: front\r\nContent-Type: application/json\r\n"
ASKED = b'{"model": "only"}'
LENGTH = b"Content-Length: %d\r\n" % len(ASKED)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ASKED), ASKED)
SECOND = TOP + LENGTH + b"X-Smuggled: yes\r\n\r\n" + ASKED


def lengths(*values):
    return TOP + b"".join(b"Content-Length: %b\r\n" % each for each in values) + b"\r\n" + ASKED


def encoded(*lines):
    return TOP + b"".join(each + b"\r\n" for each in lines) + b"\r\n" + IN_CHUNKS


def sized(size):
    return TOP + CHUNKED + b"\r\n" + size + b"\r\n" + ASKED + b"\r\n0\r\n\r\n"


AMBIGUOUS = {
    "CL.TE": TOP + LENGTH + CHUNKED + b"\r\n0\r\n\r\n",
    "TE.CL": TOP + CHUNKED + b"Content-Length: 4\r\n\r\n" + IN_CHUNKS,
    "TE.TE": encoded(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x"),
    "TE.TE, the same": encoded(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "TE unknown": encoded(b"Transfer-Encoding: xchunked"),
    "TE not last": encoded(b"Transfer-Encoding: chunked, identity"),
    "TE with a vertical tab": encoded(b"Transfer-Encoding: \x0bchunked"),
    "TE quoted": encoded(b'Transfer-Encoding: "chunked"'),
    "TE in the line before": encoded(b"X: y\nTransfer-Encoding: chunked"),
    "TE after a space": encoded(b" Transfer-Encoding: chunked"),
    "TE in HTTP/1.0": encoded(b"Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "two lengths": lengths(b"%d" % len(ASKED), b"0"),
    "two lengths, the other order": lengths(b"0", b"%d" % len(ASKED)),
    "two lengths in a list": lengths(b"%d, 0" % len(ASKED)),
    "signed length": lengths(b"+%d" % len(ASKED)),
    "negative length": lengths(b"-1"),
    "length with a space": lengths(b"1 7"),
    "length in hex": lengths(b"0x11"),
    "length that overflows": lengths(b"18446744073709551633"),
    "space before the colon of TE": encoded(b"Transfer-Encoding : chunked"),
    "space before the colon of CL": TOP + b"Content-Length : 17\r\n\r\n" + ASKED,
    "bare line feeds": (TOP + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + ASKED,
    "one bare line feed": TOP + b"X: y\n" + LENGTH + b"\r\n" + ASKED,
    "bare carriage return": TOP + b"X: y\r" + LENGTH + b"\r\n" + ASKED,
    "folded header": TOP + b"X: y\r\n " + LENGTH + b"\r\n" + ASKED,
    "nul": TOP + b"X: y\0\r\n" + LENGTH + b"\r\n" + ASKED,
    "chunk of a negative size": sized(b"-11"),
    "chunk of a signed size": sized(b"+11"),
    "chunk in 0x": sized(b"0x11"),
    "chunk size that overflows": sized(b"1" + b"0" * 14 + b"11"),  # the last of its 64 bits are 17
    "chunk size with a space before": sized(b" 11"),
    "chunk size that is empty": sized(b""),
    "chunk extension with a line feed": sized(b"11;x\n"),
    "chunk extension without end": sized(b"11;" + b"x" * (LIMITS.max_head_bytes + 1)),
    "chunk that is longer than it says": sized(b"10"),
    "chunk that ends in a line feed": TOP + CHUNKED + b"\r\n11\r\n" + ASKED + b"\n0\r\n\r\n",
    "two hosts": TOP + b"Host: other\r\n" + LENGTH + b"\r\n" + ASKED,
    "no host": LINE + LENGTH + b"\r\n" + ASKED,
    "absolute form of another host": TOP.replace(b"POST /", b"POST http://other/", 1) + LENGTH + b"\r\n" + ASKED,
}

ABOVE = {
    "a header above the bound": (TOP + b"X: " + b"x" * LIMITS.max_head_bytes + b"\r\n\r\n", 431),
    "more headers than the bound": (TOP + b"X: y\r\n" * LIMITS.max_headers + b"\r\n", 431),
    "a body above the bound": (TOP + b"Content-Length: %d\r\n\r\n" % (MOST + 1), 413),
    "a chunk above the bound": (TOP + CHUNKED + b"\r\n%x\r\n" % (MOST + 1) + b"x" * (MOST + 1) + b"\r\n0\r\n\r\n", 413),
}

SLOW = {
    "in its head": TOP,
    "in its body": TOP + LENGTH + b"\r\n{",
    "in a chunk": TOP + CHUNKED + b"\r\n11\r\n{",
    "in a chunk of 4 GiB": sized(b"100000011") + SECOND,  # whose low 32 bits are the length of the data
}


@asynccontextmanager
async def a_router():
    async with open_lab(config_of(local("only")), only=answer(), limits=BOUNDS) as lab:
        yield lab.front, lab.players["only"].asked


@asynccontextmanager
async def a_gateway():
    front, engine = MemoryListener(), Engine()
    async with open_http_client(engine.listener.connect) as upstream, trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.handle, [engine.listener])
        handler = passing_door(PassThrough(ONE, upstream), lambda: BORN)
        serve = partial(run_server, handler, [front], limits=BOUNDS, judge=refuse_foreign_pages, stamp=cors_lines)
        await nursery.start(serve)
        yield front, engine.requests
        nursery.cancel_scope.cancel()


PLACES = {"router": a_router, "gateway": a_gateway}


@pytest.fixture(params=PLACES.values(), ids=PLACES)
async def place(request):
    async with request.param() as found:
        yield found


async def send(front, data):
    """Send, and return all data until the server ends the connection."""
    connection = await front.connect("front", 80)
    async with connection:
        await connection.send_all(data)
        return await receive_all(connection)


def statuses(received):
    return [int(each[:3]) for each in received.split(b"HTTP/1.1 ")[1:]]


async def test_two_good_requests_are_two(place, autojump_clock):
    """The second one of each case is a request that the backend would answer."""
    front, asked = place
    for first in (TOP + LENGTH + b"\r\n" + ASKED, encoded(b"Transfer-Encoding: chunked")):
        before = len(asked)
        assert statuses(await send(front, first + SECOND)) == [200, 200]
        assert len(asked) == before + 2


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_what_can_be_read_in_two_ways_is_refused(place, autojump_clock, data):
    """The backend gets neither request; the client gets one 400, and the end of the connection."""
    front, asked = place
    assert statuses(await send(front, data + SECOND)) == [400]
    assert asked == []


@pytest.mark.parametrize(("data", "status"), ABOVE.values(), ids=ABOVE)
async def test_what_is_too_large_ends_the_connection(place, autojump_clock, data, status):
    """The rest is not parsed as a request: the end of the first one is unknown."""
    front, asked = place
    assert statuses(await send(front, data + SECOND)) == [status]
    assert asked == []


@pytest.mark.parametrize("data", SLOW.values(), ids=SLOW)
async def test_a_client_that_stops_sending_gets_an_error(place, autojump_clock, data):
    """A head or body that never ends gets 408, and the backend gets nothing."""
    front, asked = place
    assert statuses(await send(front, data)) == [408]
    assert asked == []
