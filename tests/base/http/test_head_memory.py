"""Heads from memory: what a reader makes of them, whatever came before."""

from hypothesis import given
from hypothesis import strategies as st

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.head_memory import HeadMemory
from llmkube.base.http.heads import HeadReader
from llmkube.base.http.limits import Limits

SMALL = Limits(max_head_bytes=200, max_headers=5)
LINES = st.sampled_from(
    [
        b"Host: a",
        b"Host: b",
        b"Content-Length: 3",
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
    """A request's head, or something like one, and what may come after it."""
    lines = [b"POST /x HTTP/1.1", b"Host: a", *draw(st.lists(LINES, max_size=5))]
    return b"".join(line + draw(ENDS) for line in lines) + b"\r\n" + draw(st.sampled_from([b"", b"abc", b"\r\n\r\n"]))


def read_head(data):
    """What a reader makes of a head."""
    reader = HeadReader.of_requests(SMALL)
    try:
        rest = reader.feed(data)
        return "incomplete" if rest is None else (seen(reader.request()), rest)
    except MalformedError as exc:
        return exc.status


def seen(head):
    """Everything that anybody reads of a head."""
    return (
        head.method, head.target, head.path, head.version, head.keep_alive, head.length, head.chunked,
        list(head.headers), dict(head.joined), head.end_to_end, head.expectations, head.request_line,
    )  # fmt: skip


@given(st.lists(heads(), min_size=1, max_size=8))
def test_a_head_from_memory_is_what_a_reader_makes_of_it(data):
    """Whatever came before, and whatever only its length has in common with it: the same head, or none for a reader."""
    memory = HeadMemory(SMALL)

    def remember(one):
        try:
            found = memory.request(one)
        except MalformedError as exc:
            return exc.status
        return read_head(one) if found is None else (seen(found[0]), found[1])

    assert [remember(one) for one in [*data, *data]] == [read_head(one) for one in [*data, *data]]


def test_heads_that_differ_in_their_length_share_what_was_made_of_them():
    """Chats of one client differ in nothing else; the lines that a proxy passes on are encoded once."""
    memory = HeadMemory(Limits())
    chat = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nA: b\r\nContent-Length: %d\r\n\r\n"
    (first, _), (second, rest) = memory.request(chat % 5), memory.request(chat % 17 + b"x")
    assert (first.length, second.length, rest) == (5, 17, b"x")
    assert (first.headers.get("content-length"), second.headers.get("content-length")) == ("5", "17")
    assert first.end_to_end == b"A: b\r\n"
    assert second.end_to_end is first.end_to_end


def test_an_answer_from_memory_is_a_final_one():
    """An interim answer is for a reader, which looks for the next head."""
    memory = HeadMemory(Limits())
    assert memory.response(b"HTTP/1.1 100 Continue\r\n\r\n") is None
    for length in (3, 4):
        head, rest = memory.response(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nabc" % length)
        assert (head.status, head.length, rest) == (200, length, b"abc")
