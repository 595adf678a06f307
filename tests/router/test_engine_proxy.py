"""Who is let in at a published engine, and with which key the engine is asked."""

import ipaddress
from functools import partial

import pytest
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.heads import HeadReader
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.router.engine_proxy import proxy_handler, proxy_judge

KEY = "k" * 43
PODS = (ipaddress.ip_network("10.42.0.0/16"), ipaddress.ip_network("fd00::/8"))
CHAT, POD, STRANGER = "/v1/chat/completions", "10.42.3.4", "192.168.1.7"
BEARER = f"Authorization: Bearer {KEY}\r\n"


def head_of(path, lines="", method="GET"):
    reader = HeadReader.of_requests(Limits())
    reader.feed_whole(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    return reader.request()


@pytest.mark.parametrize(
    ("path", "lines", "peer", "let_in"),
    [
        (CHAT, "", POD, True),
        (CHAT, "", "::ffff:10.42.3.4", True),
        (CHAT, "", "fd00::1%eth0", True),
        (CHAT, "", STRANGER, False),
        (CHAT, "", "", False),
        (CHAT, BEARER, STRANGER, True),
        (CHAT, BEARER.replace("Bearer", "bearer"), STRANGER, True),
        (CHAT, f"X-Api-Key: {KEY}\r\n", STRANGER, True),
        (CHAT, BEARER.replace(KEY, KEY[:-1]), STRANGER, False),
        (CHAT, BEARER.replace(KEY, ""), STRANGER, False),
        (CHAT, "Authorization: Bearer é\r\n", STRANGER, False),
        (CHAT, f"Authorization: Basic {KEY}\r\n", STRANGER, False),
        ("/health", "", STRANGER, True),
        ("/v1/models", "", STRANGER, True),
        ("/v1/models?x=1", "", STRANGER, True),
        ("/v1/models/../chat/completions", "", STRANGER, False),
        ("/metrics", "", POD, True),
        ("/metrics", "", STRANGER, False),
        ("/slots", "", POD, False),
        ("/slots/0?action=save", "", POD, False),
        ("/%73lots", "", POD, False),
        ("//slots", "", POD, False),
        ("/slots#a", "", POD, False),
        ("/slots;a", "", POD, False),
        ("/slots%00", "", POD, False),
        ("/v1%2f..%2fSLOTS", "", POD, False),
        ("http://x/slots", "", POD, False),
        (CHAT, "X-Forwarded-For: 10.42.3.4\r\nForwarded: for=10.42.3.4\r\n", STRANGER, False),
        ("/slots", BEARER, POD, True),
        (CHAT, "Origin: https://evil.example\r\n", POD, False),
        (CHAT, "Origin: null\r\n", POD, False),
        ("/metrics", "Origin: http://evil.example:8000\r\n", POD, False),
        (CHAT, f"Origin: https://evil.example\r\n{BEARER}", POD, True),
        (CHAT, "Origin: http://10.42.3.9\r\n", POD, True),
    ],
)
def test_the_network_or_the_key_lets_a_request_in(path, lines, peer, let_in):
    """A pod needs no key but for other clients' prompts; strangers and foreign pages need one but for probes."""
    refusal = proxy_judge(KEY, PODS)(head_of(path, lines), peer)
    assert (refusal is None) == let_in
    if refusal is not None:
        assert refusal.status == 401
        assert refusal.headers.get("www-authenticate") == "Bearer"
        assert KEY.encode() not in refusal.body


@pytest.mark.parametrize(
    ("method", "lines", "let_in"),
    [
        ("HEAD", "", True),
        ("GET", "Content-Length: 0\r\n", True),
        ("GET", "Content-Length: 5\r\n", False),
        ("GET", "Transfer-Encoding: chunked\r\n", False),
        ("POST", "", False),
        ("POST", "Content-Length: 5\r\n", False),
        ("POST", BEARER, True),
    ],
)
def test_what_is_open_to_all_is_open_to_be_read(method, lines, let_in):
    """A stranger's body at /health would take of the room that all bodies share."""
    refusal = proxy_judge(KEY, PODS)(head_of("/health", lines, method), STRANGER)
    assert (refusal is None) == let_in


def test_without_networks_every_request_needs_the_key():
    """An agent that was told of no network lets nothing in but probes: also not from its own host."""
    judge = proxy_judge(KEY, ())
    assert judge(head_of(CHAT), "127.0.0.1") is not None
    assert judge(head_of("/health"), STRANGER) is None


async def test_the_engine_sees_our_key_and_no_other(nursery):
    """What a client shows in order to be let in stays with the proxy; every other header and the body pass."""
    asked = []

    async def engine(exchange):
        asked.append(exchange.request)
        await exchange.respond(Response.text(200, "yes"))

    inner, outer = MemoryListener(), MemoryListener()
    await nursery.start(run_server, engine, [inner])
    async with open_http_client(inner.connect) as upstream, open_http_client(outer.connect) as client:
        handler = proxy_handler(("127.0.0.1", 1), KEY, upstream)
        await nursery.start(partial(run_server, handler, [outer]))
        sent = Headers.of({"Authorization": "Bearer theirs", "X-Api-Key": "theirs", "X-Other": "kept"})
        for _ in range(2):  # the second head is remembered
            answer = await client.request("POST", f"http://proxy{CHAT}", headers=sent, body=b'{"a": 1}')
            assert (answer.status, answer.body) == (200, b"yes")
    for request in asked:
        assert request.headers.get_all("authorization") == (f"Bearer {KEY}",)
        assert "x-api-key" not in request.headers
        assert request.headers.get("x-other") == "kept"
        assert request.body == b'{"a": 1}'


async def test_an_engine_that_is_gone_is_a_502_without_an_address(nursery):
    """The answer says that the engine did not answer, and not where it would be."""

    async def refuse(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "Connection refused")

    outer = MemoryListener()
    async with open_http_client(refuse) as upstream, open_http_client(outer.connect) as client:
        await nursery.start(partial(run_server, proxy_handler(("127.0.0.1", 4711), KEY, upstream), [outer]))
        answer = await client.request("GET", "http://proxy/v1/x")
    assert answer.status == 502
    assert b"4711" not in answer.body
