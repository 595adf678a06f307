"""Bodies parsed from bytes, at all boundaries of the network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_lab import cut
from llmkube.base.http.bodies import ChunkedBody, ChunkedEndFinder, EofBody, LengthBody
from llmkube.base.http.errors import MalformedError

BAD_CHUNKS = {
    "no size": b"\r\n",
    "prefixed size": b"0x3\r\nabc\r\n0\r\n\r\n",
    "signed size": b"+3\r\nabc\r\n0\r\n\r\n",
    "underscore": b"0_3\r\nabc\r\n0\r\n\r\n",
    "space after the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "bare line feed": b"3\nabc\r\n0\r\n\r\n",
    "line feed in an extension": b"3;a=\nx\r\nabc\r\n0\r\n\r\n",
    "data longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "size overflow": b"fffffffffffffffff\r\n",
    "endless extension": b"3;a=" + b"x" * 20_000,
    "endless trailers": b"0\r\n" + b"A: b\r\n" * 4_000,
}


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    after=st.binary(max_size=10),
    positions=st.lists(st.integers(min_value=0, max_value=2**16), max_size=8),
)
def test_chunks_round_trip(chunks, after, positions):
    """For all chunks and all pieces the body is read in full, and the bytes after it are separate."""
    wire = b"".join(b"%X\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    decoder = ChunkedBody()
    payload = b"".join(decoder.feed(piece) for piece in cut(wire + after, positions))
    assert (payload, decoder.rest) == (b"".join(chunks), after)


@pytest.mark.parametrize("data", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_malformed_chunks_are_refused(data):
    """Chunk framing that two parsers could read differently is refused."""
    with pytest.raises(MalformedError):
        ChunkedBody().feed(data)


@pytest.mark.parametrize(
    ("decoder", "data", "clean"),
    [
        (LengthBody(3), b"ab", False),
        (LengthBody(3), b"abc", True),
        (LengthBody(0), b"", True),
        (ChunkedBody(), b"3\r\nabc\r\n", False),
        (ChunkedBody(), b"3\r\nabc\r\n0\r\n", False),
        (ChunkedBody(), b"3\r\nabc\r\n0\r\n\r\n", True),
        (EofBody(), b"abc", True),
    ],
)
def test_the_end_of_the_stream_is_clean_only_at_the_end_of_the_body(decoder, data, clean):
    """Early end of stream is an error, except for a body that only the end of the stream ends."""
    decoder.feed(data)
    if clean:
        decoder.feed_eof()
        assert decoder.rest == b""
    else:
        with pytest.raises(MalformedError, match=r"early|before"):
            decoder.feed_eof()


def find_end(pieces):
    """Return the offset of a body's end in these pieces; None if it does not end, or "refused"."""
    finder, before = ChunkedEndFinder(), 0
    try:
        for piece in pieces:
            if (end := finder.feed(piece)) >= 0:
                return before + end
            before += len(piece)
    except MalformedError:
        return "refused"
    return None


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    extension=st.sampled_from([b"", b";a", b";a=b;c"]),
    trailers=st.sampled_from([b"", b"A: b\r\n", b"A:\r\nB: c d\r\n"]),
    after=st.binary(max_size=10),
    positions=st.lists(st.integers(min_value=0, max_value=2**16), max_size=8),
)
def test_the_end_of_chunks_is_found_without_decoding(chunks, extension, trailers, after, positions):
    """For all chunks and all pieces the end is at its offset."""
    wire = b"".join(b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    wire += b"0\r\n" + trailers + b"\r\n"
    assert find_end(cut(wire + after, positions)) == len(wire)


@pytest.mark.parametrize("data", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_the_search_for_the_end_refuses_malformed_chunks(data):
    """Framing that this proxy's client could read differently is not passed on."""
    assert find_end([data]) == "refused"
    assert find_end([data[i : i + 1] for i in range(len(data))]) == "refused"


@given(
    at=st.integers(min_value=0, max_value=60),
    noise=st.binary(max_size=2),
    positions=st.lists(st.integers(min_value=0, max_value=2**16), max_size=4),
)
def test_passed_bytes_are_read_alike_by_a_parser(at, noise, positions):
    """A body whose end is found here is read by llhttp, and ends at the same byte."""
    wire = b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nTrailer: 1\r\n\r\nNEXT"
    broken = wire[:at] + noise + wire[at + len(noise) :]
    end = find_end(cut(broken, positions))
    if isinstance(end, int):
        decoder = ChunkedBody()
        decoder.feed(broken)
        assert decoder.rest == broken[end:]
