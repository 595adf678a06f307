"""What an issuer's address may answer, and what it may not do."""

import json
from contextlib import suppress

import pytest
import trio

from http_lab import GONE, MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.router.auth.jwks_fetch import FETCH_SECONDS, FetchError, fetch_jwks
from router.auth.token_lab import jwks

SET = jwks("ed-1")


def said(status=200, body=SET, lines=""):
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


async def fetched(script, uri="http://issuer/keys?p=a", most=4096):
    """Fetch from an issuer that answers so, and return what came, and the heads that it was sent, by its name."""
    heads, listener = [], MemoryListener()

    async def serve():
        while True:
            connection = await listener.accept()
            with suppress(*GONE):
                async with connection:
                    heads.append((await connection.receive_some()).decode())
                    if callable(script):
                        await script(connection)
                    else:
                        await connection.send_all(script)

    async def connect(host, port):
        asked.append((host, port))
        return await listener.connect(host, port)

    asked = []
    async with trio.open_nursery() as nursery, open_http_client(connect) as client:
        nursery.start_soon(serve)
        try:
            found = await fetch_jwks(client, client, uri, most)
        except FetchError as exc:
            found = exc
        nursery.cancel_scope.cancel()
    return found, heads, asked


async def test_a_set_is_fetched_from_where_the_config_says(autojump_clock):
    """One GET without credentials, at the port of the scheme or the URL."""
    found, [head], asked = await fetched(said())
    assert (found, asked) == (SET, [("issuer", 80)])
    assert head.startswith("GET /keys?p=a HTTP/1.1\r\n")
    assert "host: issuer\r\n" in head.lower()
    assert "authorization" not in head.lower()
    assert (await fetched(said(), "https://issuer"))[2] == [("issuer", 443)]
    assert (await fetched(said(), "http://[::1]:81/k"))[2] == [("::1", 81)]


async def chatter(connection):
    """One that goes on for ever."""
    await connection.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await connection.send_all(b"3e8\r\n" + b" " * 1000 + b"\r\n")


async def silent(connection):
    await trio.sleep(100)


async def drip(connection):
    await connection.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    for _ in range(100):
        await trio.sleep(1)
        await connection.send_all(b" ")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (said(302, b"", "Location: http://evil/keys\r\n"), "the issuer answers 302; no redirect is followed"),
        (said(404, json.dumps({"secret": 1}).encode()), "the issuer answers 404"),
        (said(503, b""), "the issuer answers 503"),
        (said(body=b" " * 5000), "the issuer's answer has more than 4096 bytes"),
        (chatter, "the issuer's answer has more than 4096 bytes"),
        (drip, "no whole answer of the issuer in 10 seconds"),
        (silent, "no whole answer of the issuer in 10 seconds"),
        (said(lines="Content-Encoding: gzip\r\n"), "the issuer's answer is compressed, and was not asked to be"),
        (said()[:-5], "the issuer broke off, or does not speak HTTP/1.1"),
        (b"SSH-2.0-OpenSSH\r\n", "the issuer broke off, or does not speak HTTP/1.1"),
    ],
)
async def test_what_is_no_answer_is_told_without_an_address(script, words, autojump_clock):
    """In bounded time and room; nothing else is asked for it."""
    start = trio.current_time()
    found, heads, _ = await fetched(script)
    assert isinstance(found, FetchError)
    assert (str(found), len(heads)) == (words, 1)
    assert trio.current_time() - start <= FETCH_SECONDS


async def test_no_way_to_the_issuer_is_told():
    """Also a name that no resolver takes."""

    async def nowhere(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "Connection refused")

    async def no_name(host, port):
        await trio.lowlevel.checkpoint()
        raise UnicodeError("label too long")

    for connect, words in ((nowhere, "no connection"), (no_name, "cannot be asked")):
        async with open_http_client(connect) as client:
            with pytest.raises(FetchError, match=words):
                await fetch_jwks(client, client, "http://issuer/keys", 4096)
