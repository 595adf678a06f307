"""Connections over scripted streams; tests/k8s/auth covers TLS itself."""

import ast
import base64
import errno
from pathlib import Path

import pytest
import trio
import trio.testing

import llmkube
from http_lab import always, receive_until
from llmkube.base.http.dial import ProxyDialer, ProxyError, connect_failure, dial

SOURCES = Path(llmkube.__file__).parent
ASKED = b"CONNECT api.example:6443 HTTP/1.1\r\nHost: api.example:6443\r\n"


async def tunnel(answer, url="http://proxy:3128", *, pieces=1):
    """Return the request to the proxy, and the stream after its response."""
    mine, proxy = trio.testing.memory_stream_pair()
    asked = b""

    async def play_proxy():
        nonlocal asked
        asked = await receive_until(proxy, b"\r\n\r\n")
        step = -(-len(answer) // pieces) or 1
        for at in range(0, len(answer), step):
            await proxy.send_all(answer[at : at + step])
        if not answer:
            await proxy.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(play_proxy)
        stream = await ProxyDialer(url, always(mine))("api.example", 6443)
        await trio.testing.wait_all_tasks_blocked()
    return asked, stream, proxy


@pytest.mark.parametrize("pieces", [1, 20])
async def test_a_tunnel_through_a_proxy(pieces):
    """After the proxy's response the stream is the server's."""
    asked, stream, proxy = await tunnel(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n", pieces=pieces)
    assert asked == ASKED + b"\r\n"
    await proxy.send_all(b"hello")
    assert await stream.receive_some() == b"hello"


async def test_a_proxy_gets_the_credentials():
    """User and password of its URL are sent to the proxy, with their escapes decoded."""
    asked, _, _ = await tunnel(b"HTTP/1.1 200 OK\r\n\r\n", "http://me:p%40ss@proxy")
    assert asked == ASKED + b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "answered 407 to CONNECT"),
        (b"HTTP/1.1 200 OK\r\n\r\nearly", "sent data before the server could"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer like a proxy"),
        (b"", "closed the connection"),
    ],
)
async def test_a_proxy_that_refuses(answer, why):
    """The error names the proxy and no password, and the connection is closed."""

    def names_the_proxy(error):
        return why in str(error) and "the proxy proxy:3128" in str(error) and "hunter2" not in str(error)

    with pytest.RaisesGroup(pytest.RaisesExc(ProxyError, check=names_the_proxy)):
        await tunnel(answer, "http://me:hunter2@proxy:3128")


def test_one_module_dials():
    """Every connection of a program starts in `dial`; a proxy, a hub or a test replaces it there."""
    dialling = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in {"open_tcp_stream", "open_ssl_over_tcp_stream"}:
                dialling.add(path.relative_to(SOURCES).as_posix())
    assert dialling == {"base/http/dial.py"}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ECONNREFUSED, "connection refused: nothing listens there"),
        (errno.ETIMEDOUT, "no answer: it is off, or a firewall drops the packets"),
        (errno.EHOSTUNREACH, "unreachable: this machine has no route to it"),
        (errno.ENETUNREACH, "unreachable: this machine has no route to it"),
    ],
)
def test_each_address_has_its_reason(number, reason):
    """The message names each address with its own reason, and not only that all attempts have failed."""
    tried = [OSError(number, f"Error connecting to ('{address}', 1): x") for address in ("192.0.2.1", "192.0.2.2")]
    error = OSError("all attempts to connect failed")
    error.__cause__ = ExceptionGroup("tried", tried)
    assert connect_failure(error) == f"192.0.2.1: {reason}; 192.0.2.2: {reason}"


async def test_a_port_where_nothing_listens_is_named():
    """A real refusal: the address and the reason, with the error number in the cause."""
    with pytest.raises(OSError, match=r"^127\.0\.0\.1: connection refused: nothing listens there$") as caught:
        await dial("127.0.0.1", 1)
    assert isinstance(caught.value.__cause__, ExceptionGroup)


def test_an_error_without_addresses_stays_as_it_is():
    """A name that does not resolve has no address."""
    assert connect_failure(OSError("no such name")) == "no such name"
