"""Httpx over our own connections: its interface, its timeouts, its errors."""

import gzip
import ssl
import subprocess
import sys

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from http_lab import MemoryListener, Peer, answers
from llmkube.base.http.httpx_transport import HttpxTransport
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server

URL = "http://api:8001"
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def mirror(exchange):
    """Echo the request; `/gzip` in gzip, `/stream` in pieces, `/slow` after a minute, `/stall` half."""
    request = exchange.request
    if request.path == "/stream":
        async with exchange.stream(200, Headers()) as send:
            for piece in (b"one", b"two"):
                await send(piece)
                await trio.sleep(1)
        return
    if request.path == "/stall":
        async with exchange.stream(200, Headers()) as send:
            await send(b"one")
            await trio.sleep_forever()
    if request.path == "/slow":
        await trio.sleep(60)
    lines = f"{request.method} {request.target} {sorted(request.headers)} {request.body!r}".encode()
    packed = request.path == "/gzip"
    headers = Headers.of({"Content-Encoding": "gzip"} if packed else {})
    await exchange.respond(Response(200, headers, gzip.compress(lines) if packed else lines))


@pytest.fixture
async def api(nursery):
    """An httpx client, and the listener that it dials."""
    listener = MemoryListener()
    await nursery.start(run_server, mirror, [listener])
    transport = HttpxTransport(CONTEXT, connect=listener.connect)
    async with httpx.AsyncClient(transport=transport, base_url=URL, timeout=5) as client:
        client.listener = listener
        yield client


async def test_a_request_on_its_way(api):
    """Method, target, headers and body arrive; the framing is the transport's own."""
    answer = await api.request("PATCH", "/a?b=c%20d", headers={"X-One": "1", "Connection": "close"}, content=b"body")
    assert answer.status_code == 200
    assert answer.text.startswith("PATCH /a?b=c%20d ")
    assert answer.text.endswith(" b'body'")
    assert "('X-One', '1')" in answer.text
    assert "('Content-Length', '4')" in answer.text
    assert "Connection" not in answer.text


@pytest.mark.ci
async def test_answers_share_a_connection(api):
    """One after the other on one connection, or as many as are in use; even after pieces, and compressed."""
    for path in ("/", "/gzip", "/stream", "/"):
        assert (await api.get(path)).status_code == 200
    assert (await api.get("/gzip")).text.startswith("GET /gzip ")
    assert (await api.get("/stream")).content == b"onetwo"
    assert len(api.listener.dialled) == 1
    async with api.stream("GET", "/stream"), api.stream("GET", "/stream"):
        assert len(api.listener.dialled) == 2


@pytest.mark.parametrize(("rest", "connections"), [(b"", 1), (b"more", 3)])
async def test_bytes_after_a_whole_response_close_its_connection(nursery, rest, connections):
    """Extra bytes would be taken for the next response."""
    peer = Peer(*[answers(*[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + rest] * 3)] * 3)
    await nursery.start(peer.run)
    async with httpx.AsyncClient(transport=HttpxTransport(CONTEXT, connect=peer.connect)) as client:
        assert [(await client.get(URL)).text for _ in range(3)] == ["ok"] * 3
    assert peer.connections == connections
    nursery.cancel_scope.cancel()


async def test_a_stream_that_is_left_closes_its_connection(api):
    """A watch ends by leaving early: the next request has another connection."""
    async with api.stream("GET", "/stall"):
        pass
    assert (await api.get("/")).status_code == 200
    assert len(api.listener.dialled) == 2


@pytest.mark.parametrize(("path", "error"), [("/slow", httpx.ReadTimeout), ("/stall", httpx.ReadTimeout)])
async def test_deadlines(api, autojump_clock, path, error):
    """No response in time, and none between two pieces of a body, are timeouts; the connection is closed."""
    with pytest.raises(error):
        await api.get(path)
    assert (await api.get("/")).status_code == 200
    assert len(api.listener.dialled) == 2


async def test_a_call_that_is_cancelled_leaves_no_connection_behind(nursery):
    """For a cancellation at any point, each connection is closed, or kept until the transport closes."""
    listener, opened = MemoryListener(), []

    async def connect(host, port):
        opened.append(await listener.connect(host, port))
        return opened[-1]

    await nursery.start(run_server, mirror, [listener])
    transport, answered = HttpxTransport(CONTEXT, connect=connect), 0
    for checkpoints in range(40):
        async with trio.open_nursery() as call:

            async def cancel(scope=call.cancel_scope, checkpoints=checkpoints):
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            call.start_soon(cancel)
            answer = await transport.handle_async_request(httpx.Request("GET", URL))
            await answer.aread()
            await answer.aclose()
            answered += 1
    assert 0 < answered < 40
    await transport.aclose()
    for stream in opened:
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.ReadError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", httpx.ReadError),
        (b"SSH-2.0-OpenSSH_9.2\r\n", httpx.RemoteProtocolError),
        (None, httpx.ConnectError),
    ],
)
async def test_errors_are_those_of_httpx(nursery, answer, error):
    """A caller catches httpx's exceptions."""
    peer = Peer(None if answer is None else answers(answer))
    await nursery.start(peer.run)
    async with httpx.AsyncClient(transport=HttpxTransport(CONTEXT, connect=peer.connect)) as client:
        with pytest.raises(error, match="api:8001"):
            await client.get(URL)


async def test_a_header_cannot_break_out_of_its_line(api):
    """A value with a line end is refused."""
    with pytest.raises(httpx.LocalProtocolError):
        await api.get("/", headers={"Authorization": "a\r\nX-Two: 2"})
    assert api.listener.dialled == []


async def test_other_schemes_are_refused(api):
    """Only http and https are supported."""
    with pytest.raises(httpx.UnsupportedProtocol):
        await api.get("ftp://api/")


@pytest.mark.ci
@pytest.mark.parametrize("program", ["agent", "controller", "up"])
def test_no_program_loads_httpcore(program):
    """The package httpx works without it as long as none of its own transports is created."""
    module = f"llmkube.cli.commands.programs.{program}"
    script = f"import sys, {module}; print('httpcore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
