"""Each lenient parser is caught by the corpus of test_smuggling.py; else the corpus would prove nothing.

A mutant corrects the bytes as some lenient server does, and the parser then finds them valid. The second request of a
case is then served, or the first one is.
"""

import re

import pytest

from llmkube.base.http import connection
from llmkube.base.http.bodies import ChunkedBody
from llmkube.base.http.heads import HeadReader
from router.test_smuggling import AMBIGUOUS, SECOND, SLOW, a_gateway, a_router, send, statuses

FEED, FEED_WHOLE, REQUEST_BODY = HeadReader.feed, HeadReader.feed_complete, connection.request_body


def without_but(name, keep):
    """Return a mutant that drops all lines of this name in a head except the first or the last one."""

    def correct(head):
        lines = head.split(b"\r\n")
        at = [number for number, line in enumerate(lines) if line.lower().startswith(name + b":")]
        dropped = set(at[1:] if keep == "first" else at[:-1] if keep == "last" else at)
        return b"\r\n".join(line for number, line in enumerate(lines) if number not in dropped)

    return correct


def dropped_beside(name, other):
    """Return a mutant that drops the lines of this name if the other is present."""
    drop = without_but(name, "none")
    return lambda head: drop(head) if b"\r\n" + other + b":" in head.lower() else head


def replaced(pattern, by):
    return lambda data: re.sub(pattern, by, data)


HEADS = {
    "the first length counts": (without_but(b"content-length", "first"), ["two lengths"]),
    "the last length counts": (without_but(b"content-length", "last"), ["two lengths, the other order"]),
    "chunks win over a length": (dropped_beside(b"content-length", b"transfer-encoding"), ["CL.TE", "TE.CL"]),
    "a length wins over chunks": (dropped_beside(b"transfer-encoding", b"content-length"), ["CL.TE", "TE.CL"]),
    "the first coding counts": (without_but(b"transfer-encoding", "first"), ["TE.TE", "TE.TE, the same"]),
    "a coding that is not known is none": (replaced(rb"(?i)transfer-encoding: xchunked\r\n", b""), ["TE unknown"]),
    "a coding like chunked is chunked": (
        replaced(rb"(?i)(transfer-encoding:)[^\r\n]*chunked[^\r\n]*", rb"\1 chunked"),
        ["TE unknown", "TE not last", "TE with a vertical tab", "TE quoted"],
    ),
    "1.0 has chunks": (replaced(rb"HTTP/1\.0", b"HTTP/1.1"), ["TE in HTTP/1.0"]),
    "a line feed ends a line": (
        replaced(rb"(?<!\r)\n", b"\r\n"),
        ["bare line feeds", "one bare line feed", "TE in the line before"],
    ),
    "a carriage return ends a line": (replaced(rb"\r(?!\n)", b"\r\n"), ["bare carriage return"]),
    "space before a colon is skipped": (
        replaced(rb"(?m)^([A-Za-z-]+)[ \t]+:", rb"\1:"),
        ["space before the colon of TE", "space before the colon of CL"],
    ),
    "space before a name is skipped": (replaced(rb"\r\n[ \t]+", b"\r\n"), ["TE after a space", "folded header"]),
    "a folded line is joined": (replaced(rb"\r\n[ \t]+", b" "), ["folded header"]),
    "a sign is skipped": (replaced(rb"(?i)(content-length: )[+-]", rb"\1"), ["signed length", "negative length"]),
    "the digits at the beginning count": (
        replaced(rb"(?i)(content-length: \d+)[^\r\n]*", rb"\1"),
        ["two lengths in a list", "length with a space", "length in hex"],
    ),
    "lengths have 64 bits": (
        lambda head: re.sub(rb"(?<=ength: )\d+", lambda found: b"%d" % (int(found[0]) % 2**64), head),
        ["length that overflows"],
    ),
    "nul is skipped": (replaced(rb"\0", b""), ["nul"]),
    "the first host counts": (without_but(b"host", "first"), ["two hosts"]),
    "no host is some host": (
        lambda head: head if b"\r\nHost:" in head else head.replace(b"\r\n", b"\r\nHost: x\r\n", 1),
        ["no host"],
    ),
    "the request line's host does not count": (replaced(rb"http://other/", b"/"), ["absolute form of another host"]),
}

BODIES = {
    "signs of sizes are skipped": (replaced(rb"^[+-]", b""), ["chunk of a signed size", "chunk of a negative size"]),
    "sizes may begin with 0x": (replaced(rb"^0x", b""), ["chunk in 0x"]),
    "sizes may begin with a space": (replaced(rb"^ +", b""), ["chunk size with a space before"]),
    "no size is 0": (replaced(rb"^\r\n", b"0\r\n\r\n"), ["chunk size that is empty"]),
    "sizes have 64 bits": (
        lambda data: re.sub(rb"^[0-9a-f]+", lambda found: b"%x" % (int(found[0], 16) % 2**64), data),
        ["chunk size that overflows"],
    ),
    "extensions may have line feeds": (replaced(rb"^11;[^\r]*\r\n", b"11\r\n"), ["chunk extension with a line feed"]),
    "a chunk is as long as it is": (replaced(rb"^10\r\n", b"11\r\n"), ["chunk that is longer than it says"]),
    "a chunk ends with any line end": (replaced(rb"(?<!\r)\n", b"\r\n"), ["chunk that ends in a line feed"]),
}


async def noticed(place, case):
    """Return whether a case is not refused with one 400 and without a request to the backend."""
    async with place() as (front, asked):
        received = await send(front, AMBIGUOUS[case] + SECOND)
        return statuses(received) != [400] or asked != []


@pytest.mark.soak
@pytest.mark.parametrize("place", [a_router, a_gateway], ids=["router", "gateway"])
@pytest.mark.parametrize("mutant", HEADS)
async def test_a_lenient_reader_of_heads_is_caught(mutant, place, monkeypatch, autojump_clock):
    """Each case for it fails."""
    correct, cases = HEADS[mutant]

    def corrected(data):
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            head, end, rest = data.partition(b"\n\n")
        return correct(head + end) + rest

    monkeypatch.setattr(HeadReader, "feed", lambda reader, data: FEED(reader, corrected(data)))
    monkeypatch.setattr(HeadReader, "feed_complete", lambda reader, head: FEED_WHOLE(reader, corrected(head)))
    assert [case for case in cases if not await noticed(place, case)] == []


@pytest.mark.soak
@pytest.mark.parametrize("mutant", BODIES)
async def test_a_lenient_reader_of_bodies_is_caught(mutant, monkeypatch, autojump_clock):
    """Each case for it fails."""
    correct, cases = BODIES[mutant]

    class Lenient(ChunkedBody):
        def feed(self, data):
            return super().feed(correct(data))

    monkeypatch.setattr(
        connection, "request_body", lambda head, most: Lenient() if head.chunked else REQUEST_BODY(head, most)
    )
    assert [case for case in cases if not await noticed(a_router, case)] == []


@pytest.mark.ci
async def test_a_reader_whose_sizes_have_32_bits_is_caught(monkeypatch, autojump_clock):
    """It takes a chunk of 4 GiB and some for the 17 bytes that came."""

    class Lenient(ChunkedBody):
        def feed(self, data):
            return super().feed(data.replace(b"100000011\r\n", b"11\r\n"))

    monkeypatch.setattr(connection, "request_body", lambda head, most: Lenient())
    async with a_router() as (front, asked):
        assert statuses(await send(front, SLOW["in a chunk of 4 GiB"])) != [408]
        assert asked


def test_each_case_that_can_be_read_leniently_has_a_reader():
    """Only cases that no parser accepts have none."""
    caught = {case for _, cases in (*HEADS.values(), *BODIES.values()) for case in cases}
    assert set(AMBIGUOUS) - caught == {"chunk extension without end"}
