"""Access to a published engine, and the key for requests to the engine."""

import ipaddress
from functools import partial

import pytest
import structlog.testing
import trio

from http_lab import MemoryListener, converse, head_of
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.engine_proxy import is_in, key_filter, key_or_peer_filter, proxy_handler

KEY = "k" * 43
PODS = (ipaddress.ip_network("10.42.0.0/16"), ipaddress.ip_network("fd00::/8"))
ADMITS = partial(is_in, networks=PODS)
CHAT, POD, STRANGER = "/v1/chat/completions", "10.42.3.4", "192.168.1.7"
BEARER = f"Authorization: Bearer {KEY}\r\n"


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
def test_the_network_or_the_key_admits_a_request(path, lines, peer, let_in):
    """A pod needs a key only for other clients' prompts; strangers and foreign pages need one except for probes."""
    refusal = key_or_peer_filter(KEY, ADMITS)(head_of(path, lines), peer)
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
    """A stranger's body at /health would use capacity that all bodies share."""
    refusal = key_or_peer_filter(KEY, ADMITS)(head_of("/health", lines, method), STRANGER)
    assert (refusal is None) == let_in


def test_without_networks_every_request_needs_the_key():
    """If no network is admitted, only probes pass, even from this host."""
    judge = key_or_peer_filter(KEY, lambda _: False)
    assert judge(head_of(CHAT), "127.0.0.1") is not None
    assert judge(head_of("/health"), STRANGER) is None


@pytest.mark.parametrize(
    ("path", "lines", "method", "status"),
    [
        (CHAT, "", "POST", 401),
        (CHAT, BEARER, "POST", None),
        (CHAT, BEARER.replace(KEY, "other"), "POST", None),
        (CHAT, f"X-Api-Key: {KEY}\r\n", "POST", None),
        (CHAT, BEARER.replace(KEY, KEY[:-1]), "POST", 401),
        (CHAT, BEARER.replace(KEY, ""), "POST", 401),
        (CHAT, "Authorization: Bearer\r\n", "POST", 401),
        (CHAT, "Authorization: Bearer é\r\n", "POST", 401),
        (CHAT, f"Authorization: Basic {KEY}\r\n", "POST", 401),
        ("/invocations", "", "POST", 401),
        ("/", "", "GET", 401),
        ("/v1/models", "", "GET", 401),
        ("/health", "", "GET", None),
        ("/health?x=1", "", "GET", None),
        ("/health", "", "POST", 401),
        ("/health", "Content-Length: 5\r\n", "GET", 401),
        ("/health/../metrics", "", "GET", 401),
        ("/metrics", "", "GET", None),
        (f"{CHAT}?api_key={KEY}", "", "POST", 401),  # an address appears in logs
        (CHAT, BEARER.replace(KEY, "none") + BEARER, "POST", 401),  # of two header lines the first one is used
        (CHAT, BEARER.replace(KEY, "none") + f"X-Api-Key: {KEY}\r\n", "POST", 401),
        (CHAT, "Connection: Upgrade\r\nUpgrade: websocket\r\n", "GET", 401),
        ("/slots", BEARER, "GET", 403),
        ("/%73lots", BEARER, "GET", 403),
        ("/v1;SLOTS", BEARER, "GET", 403),
    ],
)
def test_only_a_key_of_the_service_admits_a_request(path, lines, method, status):
    """Each of its keys works from any network; paths without prompts are readable by all, and /slots by none."""
    digests = frozenset(map(digest_of_key, (KEY, "other")))
    judge = key_filter(lambda: digests, {"/health", "/metrics"})
    refusal = judge(head_of(path, lines, method), POD)
    assert (refusal.status if refusal is not None else None) == status
    if refusal is not None:
        assert KEY.encode() not in refusal.body
        assert (refusal.headers.get("www-authenticate") == "Bearer") == (status == 401)


def test_without_keys_all_is_refused_and_a_new_key_works_at_once():
    """The digests are read for each request: without one even an empty key is refused."""
    digests = frozenset()
    judge = key_filter(lambda: digests, ())
    for lines in ("", BEARER, "Authorization: Bearer \r\n", "X-Api-Key: \r\n"):
        assert judge(head_of(CHAT, lines), POD).status == 401
    digests = frozenset({digest_of_key(KEY)})
    assert judge(head_of(CHAT, BEARER), POD) is None


def willing_engine():
    """Return a handler that accepts every request, and the received requests."""
    asked = []

    async def engine(exchange):
        asked.append(exchange.request)
        await exchange.respond(Response.text(200, "yes"))

    return engine, asked


async def test_an_engine_that_asks_for_nothing_is_shown_nothing(nursery):
    """The client's key ends at the proxy, and no other replaces it."""
    engine, asked = willing_engine()
    inner, outer = MemoryListener(), MemoryListener()
    await nursery.start(run_server, engine, [inner])
    async with open_http_client(inner.connect) as upstream, open_http_client(outer.connect) as client:
        await nursery.start(partial(run_server, proxy_handler(("127.0.0.1", 1), "", upstream), [outer]))
        sent = Headers.of({"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY})
        answer = await client.request("POST", f"http://proxy{CHAT}", headers=sent, body=b"{}")
    assert answer.status == 200
    assert "authorization" not in asked[0].headers
    assert "x-api-key" not in asked[0].headers


async def test_a_client_with_a_key_gets_no_tunnel_to_the_engine(nursery):
    """WebSocket upgrades, a second credential and headers named by `Connection` are not forwarded."""
    engine, asked = willing_engine()
    inner = MemoryListener()
    await nursery.start(run_server, engine, [inner])
    async with open_http_client(inner.connect) as upstream:
        handler = proxy_handler(("127.0.0.1", 1), "", upstream)
        more = "Connection: close, Upgrade, Content-Length, X-Kept\r\nUpgrade: websocket\r\nX-Kept: no\r\n"
        request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{BEARER}{BEARER}{more}Content-Length: 2\r\n\r\n{{}}"
        response = await converse(handler, request.encode())
    assert response.startswith(b"HTTP/1.1 200 ")
    (passed,) = asked
    assert passed.body == b"{}"
    assert not {"authorization", "upgrade", "x-kept"} & {name.lower() for name, _ in passed.headers}


async def test_the_engine_sees_our_key_and_no_other(nursery):
    """The client's credentials are removed; every other header and the body pass."""
    engine, asked = willing_engine()
    inner, outer = MemoryListener(), MemoryListener()
    await nursery.start(run_server, engine, [inner])
    async with open_http_client(inner.connect) as upstream, open_http_client(outer.connect) as client:
        handler = proxy_handler(("127.0.0.1", 1), KEY, upstream)
        await nursery.start(partial(run_server, handler, [outer]))
        sent = Headers.of({"Authorization": "Bearer theirs", "X-Api-Key": "theirs", "X-Other": "kept"})
        for _ in range(2):  # the second head is kept
            answer = await client.request("POST", f"http://proxy{CHAT}", headers=sent, body=b'{"a": 1}')
            assert (answer.status, answer.body) == (200, b"yes")
    for request in asked:
        assert request.headers.get_all("authorization") == (f"Bearer {KEY}",)
        assert "x-api-key" not in request.headers
        assert request.headers.get("x-other") == "kept"
        assert request.body == b'{"a": 1}'


async def test_an_engine_that_is_gone_is_a_502_without_an_address(nursery):
    """The error states that the engine did not answer, without its address."""

    async def refuse(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "Connection refused")

    outer = MemoryListener()
    async with open_http_client(refuse) as upstream, open_http_client(outer.connect) as client:
        await nursery.start(partial(run_server, proxy_handler(("127.0.0.1", 4711), KEY, upstream), [outer]))
        answer = await client.request("GET", "http://proxy/v1/x")
    assert answer.status == 502
    assert b"4711" not in answer.body


async def test_an_engine_that_loads_for_long_is_one_line_of_the_log(nursery):
    """Probes come every second: the failure is logged once, and again only after an answer."""
    inner, outer, running = MemoryListener(), MemoryListener(), [False, False, False, True, False, False]
    expected = [200 if there else 502 for there in running]

    async def engine(exchange):
        await exchange.respond(Response.text(200, "yes"))

    async def connect(host, port):
        if not running.pop(0):
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(111, "Connection refused")
        return await inner.connect(host, port)

    await nursery.start(run_server, engine, [inner])
    async with open_http_client(connect, max_idle_per_origin=0) as upstream, open_http_client(outer.connect) as client:
        await nursery.start(partial(run_server, proxy_handler(("127.0.0.1", 1), "", upstream), [outer]))
        with structlog.testing.capture_logs() as logs:
            answers = [(await client.request("GET", "http://proxy/health")).status for _ in expected]
    assert answers == expected
    assert len(logs) == 2


@pytest.mark.parametrize(("key", "let_in"), [(KEY, True), ("of-a-client", True), ("of-a-clien", False)])
def test_the_proxy_checks_keys_for_an_engine_that_cannot(key, let_in):
    """Keys of the service's clients work as the engine's own does, and no network suffices."""
    judge = key_or_peer_filter(KEY, lambda _: False, ("of-a-client",))
    assert (judge(head_of(CHAT, f"Authorization: Bearer {key}\r\n"), POD) is None) is let_in
    assert judge(head_of(CHAT, ""), POD).status == 401


async def test_requests_in_flight_are_counted(nursery):
    """The metric has the number of waiting requests; with a client's key alone the path is forwarded to the engine."""
    inner, outer, released = MemoryListener(), MemoryListener(), trio.Event()
    begun = trio.Event()

    async def slow(exchange):
        if exchange.request.path == CHAT:
            begun.set()
            await released.wait()
        await exchange.respond(Response.json(200, "engine"))

    await nursery.start(run_server, slow, [inner])
    async with open_http_client(inner.connect) as upstream, open_http_client(outer.connect) as client:
        handler = proxy_handler(("127.0.0.1", 1), KEY, upstream, count_path="/count")
        await nursery.start(partial(run_server, handler, [outer]))

        async def count(key=KEY):
            shown = Headers.of({"Authorization": f"Bearer {key}"})
            return (await client.request("GET", "http://proxy/count", headers=shown)).body

        assert await count() == b"0"
        async with trio.open_nursery() as asking:
            asking.start_soon(partial(client.request, "POST", f"http://proxy{CHAT}", body=b"{}"))
            await begun.wait()
            assert await count() == b"1"
            assert await count("of-a-client") == b'"engine"'
            released.set()
        assert await count() == b"0"
