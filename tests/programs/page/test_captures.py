"""Bodies of requests: only while the owner wants them, few, short, and without keys."""

import json

import pytest
import trio

from http_lab import converse
from llmkube.base.http.message import Headers
from llmkube.programs.page.captures import BODY_BYTES, CAPTURE_SECONDS, KEPT_BODIES, Captures, body_of

ANSWER = b'data: {"content": "hi"}\n\n'


async def request(captures, number, body=b"{}", lines=""):
    async def handle(exchange):
        captures.watch(exchange)
        async with exchange.stream(200, Headers([])) as send:
            await send(ANSWER[:9])
            await send(ANSWER[9:])
        captures.keep(number)

    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\nConnection: close"
    return await converse(handle, f"{head}\r\n\r\n".encode() + body)


async def test_bodies_are_kept_while_captures_are_on_and_dropped_then(autojump_clock):
    """Off at first, on for an hour at most; the answer is without head and chunks, and the client gets it unchanged."""
    captures = Captures()
    plain = await request(captures, 1)
    assert captures.of(1) is None
    captures.turn_on(10 * CAPTURE_SECONDS)
    assert captures.seconds_left == CAPTURE_SECONDS
    assert await request(captures, 2, b'{"model": "chat"}') == plain
    assert captures.of(2).texts() == {"request": '{"model": "chat"}', "answer": ANSWER.decode()}
    await trio.sleep(CAPTURE_SECONDS)
    captures.expire()
    assert captures.of(2) is None
    await request(captures, 3)
    assert captures.of(3) is None
    captures.turn_on(60)
    await request(captures, 4)
    captures.turn_on(0)
    assert captures.of(4) is None


async def test_memory_is_bounded(autojump_clock):
    """By number and by size; what is cut off is shown."""
    captures = Captures()
    captures.turn_on(60)
    for number in range(KEPT_BODIES + 1):
        await request(captures, number, b"x" * (BODY_BYTES + 5))
    assert (captures.of(0), captures.of(1) is None) == (None, False)
    assert captures.of(KEPT_BODIES).texts()["request"].removeprefix("x" * BODY_BYTES) == "\n[5 more bytes]"
    capture = captures.of(1)
    for _ in range(3):
        capture.see(b"y" * BODY_BYTES)
    assert capture.texts()["answer"].endswith("[cut off]")


@pytest.mark.parametrize(
    "body",
    [
        {"content": "use Bearer KEYKEYKEY-1 now"},
        {"content": "sk-KEYKEYKEYKEYKEY and hf_KEYKEYKEYKEYKEY"},
        {"api_key": 'KEY"KEY'},
        {"headers": {"X-Api-Key": "KEY", "Authorization": "Custom KEY"}},
        {"arguments": json.dumps({"password": "KEY", "apiKey": "KEY"})},
        {"url": "https://user:KEY@host/x"},
        {"content": "the client's own: secret-of-client"},
    ],
)
async def test_keys_are_redacted(body, autojump_clock):
    """In headers of a text, members, addresses and JSON in a string, and those that the client has sent."""
    captures = Captures()
    captures.turn_on(60)
    await request(
        captures, 1, json.dumps(body | {"max_tokens": 5}).encode(), "Authorization: Bearer secret-of-client\r\n"
    )
    text = captures.of(1).texts()["request"]
    assert ("KEY" in text, "secret-of-client" in text) == (False, False)
    assert ("[redacted]" in text, '"max_tokens": 5' in text) == (True, True)


def test_unusual_chunks_end_the_body():
    """A size that is not a number ends it, whatever follows."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert body_of(head + b"3\r\nabc\r\n-1\r\nx") == b"abc"
    assert body_of(head + b"5\r\nab") == b"ab"
    assert body_of(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc"
