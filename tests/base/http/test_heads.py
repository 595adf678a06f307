"""Heads parsed from bytes, at all boundaries of the network."""

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_lab import cut
from llmkube.base.http.bodies import ChunkedBody, EofBody, LengthBody, request_body, response_body
from llmkube.base.http.errors import MalformedError
from llmkube.base.http.heads import (
    FinalHeadReader,
    HeadCache,
    HeadReader,
    RequestHead,
    read_final_response,
    read_request,
)
from llmkube.base.http.limits import Limits

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
SMALL = Limits(max_head_bytes=200, max_headers=5, max_body_bytes=50)
BAD_REQUESTS = {
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
    "another host in the target": (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two hosts in 1.0": (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "length and chunks": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunks and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400),
    "list of lengths": (POST + b"Content-Length: 3, 3\r\n\r\n", 400),
    "signed length": (POST + b"Content-Length: +3\r\n\r\n", 400),
    "negative length": (POST + b"Content-Length: -3\r\n\r\n", 400),
    "hex length": (POST + b"Content-Length: 0x3\r\n\r\n", 400),
    "empty length": (POST + b"Content-Length:\r\n\r\n", 400),
    "enormous length": (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "length above the bound": (POST + b"Content-Length: 51\r\n\r\n", 413),
    "chunked is not last": (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", 400),
    "chunked on two lines": (
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    "gzip and chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "unknown encoding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
    "space before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare carriage return": (b"GET / HTTP/1.1\r\nHost: a\rB: c\r\n\r\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400),
    "nul in a value": (b"GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", 400),
    "header without colon": (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
    "non-ascii name": (b"GET / HTTP/1.1\r\nH\xc3\xb6st: a\r\n\r\n", 400),
    "non-ascii target": (b"GET /\xc3\xb6 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "unknown method": (b"FETCH / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "version 1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400),
    "version 2.0": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "version 0.9": (b"GET /\r\n\r\n", 505),
    "a proxy request": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501),
    "a long target": (b"GET /" + b"x" * 300, 431),
    "a long header": (b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 300, 431),
    "a long head": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n" * 5, 431),
    "many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 6, 431),
    "empty lines for ever": (b"\r\n" * 101, 431),
}
GOOD_REQUESTS = {
    "plain": b"GET /x?y=z HTTP/1.1\r\nHost: a\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\n\r\n",
    "after empty lines": b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nA:\r\n\r\n",
    "last words": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: foo, CLOSE\r\n\r\n",
    "with a body": POST + b"Content-Length: 7\r\n\r\nabc\r\ndeNEXT",
    "in chunks": POST + b"Transfer-Encoding: Chunked\r\n\r\n"
    b"3\r\na\r\n\r\n4;ext=1\r\nbcde\r\n0\r\nTrailer: 1\r\n\r\nGET /next",
    "wish to upgrade": POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nabNEXT",
    "wish to upgrade in chunks": POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nNEXT",
}


def parse(pieces, limits=SMALL):
    """Return the result of a request in these pieces: head, body and the rest, or the refusal's status."""
    reader = HeadReader(httptools.HttpRequestParser, limits)
    head, decoder, body, rest = None, None, b"", b""
    try:
        for piece in pieces:
            if head is None:
                early = reader.feed(piece)
                if early is None:
                    continue
                head, piece = reader.request(), early  # noqa: PLW2901 - the rest of the piece is the body's
                decoder = request_body(head, limits.max_body_bytes)
            if decoder.rest is None:
                body += decoder.feed(piece)
                rest = decoder.rest or b""
            else:
                rest += piece
    except MalformedError as exc:
        return exc.status
    return head, body, rest if decoder and decoder.rest is not None else "incomplete"


@pytest.mark.parametrize(("data", "status"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_malformed_requests_are_refused(data, status):
    """Each malformed request gets its status, in one piece and byte by byte."""
    assert parse([data]) == status
    assert parse([data[i : i + 1] for i in range(len(data))]) == status


def test_good_requests_are_understood():
    """Head, body and the first bytes of the next request are exact."""
    head, body, rest = parse([GOOD_REQUESTS["in chunks"]])
    assert head == RequestHead(head.headers, keep_alive=True, chunked=True, method="POST", target="/", version="1.1")
    assert (body, rest) == (b"a\r\nbcde", b"GET /next")
    assert parse([GOOD_REQUESTS["with a body"]])[1:] == (b"abc\r\nde", b"NEXT")
    assert parse([GOOD_REQUESTS["old"]])[0].keep_alive is False
    assert parse([GOOD_REQUESTS["last words"]])[0].keep_alive is False


@pytest.mark.parametrize("name", ["wish to upgrade", "wish to upgrade in chunks"])
def test_an_upgrade_offer_does_not_hide_the_body(name):
    """A client that offers h2c with its POST (as Java's does) gets a plain response, body and all."""
    assert parse([GOOD_REQUESTS[name]])[1:] == (b"ab", b"NEXT")


@pytest.mark.parametrize("data", GOOD_REQUESTS.values(), ids=GOOD_REQUESTS)
def test_one_cut_anywhere_changes_nothing(data):
    """A request cut in two at any byte is read as in one piece."""
    whole = parse([data])
    assert whole[2] != "incomplete"
    assert all(parse([data[:i], data[i:]]) == whole for i in range(len(data) + 1))


@given(
    data=st.sampled_from([*GOOD_REQUESTS.values(), *(data for data, _ in BAD_REQUESTS.values())]),
    positions=st.lists(st.integers(min_value=0, max_value=2**16), max_size=8),
)
def test_many_cuts_change_nothing(data, positions):
    """A request, valid or not, is read alike in all pieces."""
    assert parse(cut(data, positions)) == parse([data])


@pytest.mark.parametrize(
    ("method", "head", "kind", "keep_alive"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3", LengthBody, True),
        ("GET", b"HTTP/1.1 200\r\nContent-Length: 3", LengthBody, True),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close", LengthBody, False),
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 3", LengthBody, False),
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: Keep-Alive", LengthBody, True),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", ChunkedBody, True),
        ("GET", b"HTTP/1.1 200 OK\r\nA: b", EofBody, True),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 3", LengthBody, True),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", LengthBody, True),
        ("GET", b"HTTP/1.1 204 No Content\r\nA: b", LengthBody, True),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3", LengthBody, True),
    ],
)
def test_answers_are_framed(method, head, kind, keep_alive):
    """The framing of a response follows from its head and the request's method."""
    reader = HeadReader(httptools.HttpResponseParser, Limits())
    assert reader.feed(head + b"\r\n\r\nrest") == b"rest"
    answer = reader.response()
    decoder = response_body(method, answer)
    assert type(decoder) is kind
    assert answer.keep_alive is keep_alive
    if method == "HEAD" or answer.status in (204, 304):
        assert decoder.rest == b""


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4",
        b"HTTP/1.1 twohundred OK",
        b"HTTP/3.0 200 OK",
        b"SSH-2.0-OpenSSH_9.2",
    ],
)
def test_malformed_answers_are_refused(head):
    """A response with ambiguous framing is refused."""
    reader = HeadReader(httptools.HttpResponseParser, Limits())

    def read():
        reader.feed(head + b"\r\n\r\n")
        return response_body("GET", reader.response())

    with pytest.raises(MalformedError):
        read()


@pytest.mark.parametrize(
    "interim", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2]
)
def test_interim_answers_are_skipped(interim):
    """The final head and the bytes after it are found, at all boundaries of the network."""
    data = interim + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    for cut_at in range(len(data) - 3):
        reader = FinalHeadReader(Limits())
        assert reader.feed(data[:cut_at]) is None
        head, rest = reader.feed(data[cut_at:])
        assert (head.status, head.headers.get("content-length"), rest) == (200, "3", b"abc")


@pytest.mark.parametrize("lines", [b"", b"Upgrade: x\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n"])
def test_an_answer_that_leaves_http_is_refused(lines):
    """A server may not switch to a protocol that the request did not offer."""
    with pytest.raises(MalformedError):
        FinalHeadReader(Limits()).feed(b"HTTP/1.1 101 Switching Protocols\r\n" + lines + b"\r\n")


LINES = st.sampled_from(
    [
        b"Host: a",
        b"Host: b",
        b"Content-Length: 3",
        b"Content-Length: ",
        b"content-length:  12\t",
        b"Content-Length: 007",
        b"Content-Length: +3",
        b"Content-Length: 3, 3",
        b"X-Content-Length: 5",
        b"A: Content-Length: 5",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
        b"Connection: close",
        b"Connection: X-One",
        b"X-One: 1",
        b"Expect: 100-continue",
        b" folded",
        b"A: x\ny",
        b"",
    ]
)
ENDS = st.sampled_from([b"\r\n"] * 9 + [b"\n"])


@st.composite
def heads(draw):
    """A request's head, or something like one, and bytes that may follow it."""
    lines = [b"POST /x HTTP/1.1", b"Host: a", *draw(st.lists(LINES, max_size=5))]
    return b"".join(line + draw(ENDS) for line in lines) + b"\r\n" + draw(st.sampled_from([b"", b"abc", b"\r\n\r\n"]))


def read_head(data):
    """Return a reader's result for a head."""
    reader = HeadReader.for_requests(SMALL)
    try:
        rest = reader.feed(data)
        return "incomplete" if rest is None else (seen(reader.request()), rest)
    except MalformedError as exc:
        return exc.status


def seen(head):
    """Return all properties of a head."""
    return (
        head.method, head.target, head.path, head.version, head.keep_alive, head.length, head.chunked,
        list(head.headers), dict(head.joined), head.end_to_end, head.expectations, head.request_line,
    )  # fmt: skip


@given(st.lists(heads(), min_size=1, max_size=8))
def test_a_cached_head_equals_a_parsed_one(data):
    """After any earlier head, and one with only its length in common: the same head, or none for a reader."""
    memory = HeadCache(SMALL, read_request)

    def remember(one):
        try:
            found = memory.find(one)
        except MalformedError as exc:
            return exc.status
        return read_head(one) if found is None else (seen(found[0]), found[1])

    assert [remember(one) for one in [*data, *data]] == [read_head(one) for one in [*data, *data]]


def test_heads_that_differ_in_their_length_share_the_cache():
    """Chats of one client differ in nothing else; the lines that a proxy passes on are encoded once."""
    memory = HeadCache(Limits(), read_request)
    chat = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nA: b\r\nContent-Length: %d\r\n\r\n"
    first, _ = memory.find(chat % 5)
    assert first.end_to_end == b"A: b\r\n"
    second, rest = memory.find(chat % 17 + b"x")
    assert (first.length, second.length, rest) == (5, 17, b"x")
    assert (first.headers.get("content-length"), second.headers.get("content-length")) == ("5", "17")
    assert second.end_to_end is first.end_to_end


@pytest.mark.parametrize("line", [b"Content-Length:", b"content-length: ", b"Content-Length:\t"])
@pytest.mark.parametrize(
    ("first", "read"), [(b"POST / HTTP/1.1\r\nHost: a", read_request), (b"HTTP/1.1 200 OK", read_final_response)]
)
def test_a_cached_head_does_not_admit_an_empty_length(first, read, line):
    """Two parsers of one connection would disagree on the end of the body."""
    memory = HeadCache(Limits(), read)
    for length in (b"2", b"3"):
        memory.find(first + b"\r\n" + line + length + b"\r\n\r\n")
    for empty in (b"", b" ", b"2,2", b"+2"):
        with pytest.raises(MalformedError, match="Content-Length"):
            memory.find(first + b"\r\n" + line + empty + b"\r\n\r\n")


def test_a_cached_response_is_a_final_one():
    """An interim response is left to a reader, which reads the next head."""
    memory = HeadCache(Limits(), read_final_response)
    assert memory.find(b"HTTP/1.1 100 Continue\r\n\r\n") is None
    for length in (3, 4):
        head, rest = memory.find(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nabc" % length)
        assert (head.status, head.length, rest) == (200, length, b"abc")
