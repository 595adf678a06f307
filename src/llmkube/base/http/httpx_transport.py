"""Transport for httpx over our own connections, with httpx's timeouts and errors, without httpcore."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube.base.http.client import HttpClient, UpgradedConnection
from llmkube.base.http.dial import Connect, ProxyDialer, TlsDialer, dial, with_tcp_keepalive
from llmkube.base.http.errors import ConnectError, ConnectionLostError, HttpError
from llmkube.base.http.message import netloc
from llmkube.base.http.outbound import trusted_context
from llmkube.base.http.streamed_response import StreamedResponse

_OWN_HEADERS: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
MAX_IDLE: Final = 64

UPGRADED: Final = "upgraded"
"""Extension of a response with status 101: its `UpgradedConnection`, which is closed with the response."""


class HttpxTransport(httpx.AsyncBaseTransport):
    """Send httpx requests over pooled connections: HTTP/1.1, plain or under TLS, also through a proxy.

    The number of connections in use is not limited: a watch holds one for minutes. Request bodies are sent whole. A
    request with an `Upgrade` header may be answered with 101, and then owns its connection.

    Args:
        context: For `https` URLs.
        server_name: Name to expect in the server's certificate; "" for the URL's host.
        proxy_url: An `http` or `https` proxy, or "".
        max_idle_seconds: An idle connection older than this is not reused.
        connect: Opens connections; a test passes its own.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_name: str = "",
        proxy_url: str = "",
        max_idle_seconds: float = 60.0,
        connect: Connect = dial,
    ) -> None:
        connect_base = with_tcp_keepalive(connect)
        if proxy_url:
            connect_base = ProxyDialer(proxy_url, connect_base, trusted_context)
        dialers: dict[str, Connect] = {"http": connect_base, "https": TlsDialer(context, server_name, connect_base)}
        self._clients = {
            scheme: HttpClient(
                dialer, max_idle_per_origin=MAX_IDLE, max_idle=MAX_IDLE, max_idle_seconds=max_idle_seconds
            )
            for scheme, dialer in dialers.items()
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the response when its head has arrived.

        Raises:
            httpx.TransportError: No connection, no response, or none in time.
        """
        url = request.url
        client = self._clients.get(url.scheme)
        if client is None:
            raise httpx.UnsupportedProtocol(f"{url.scheme!r} URLs are not supported", request=request)
        stream = request.stream
        body = b"".join(stream) if isinstance(stream, httpx.ByteStream) else await request.aread()
        head = _encode_head(request, len(body))
        origin = (url.host, url.port or _DEFAULT_PORTS[url.scheme])
        timeouts = request.extensions.get("timeout", {})
        # One deadline for the connection, the request and the head of the response, instead of a scope for each.
        seconds = [timeouts.get(name) for name in ("connect", "read", "write")]
        timeout_seconds = sum(each or 0.0 for each in seconds) if all(each is not None for each in seconds) else None
        switching = "upgrade" in request.headers
        with _httpx_errors(request, "no response within", timeout_seconds):
            answer = await client.start(origin, request.method, head, body, switching=switching)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.head.headers]
        rest = _Body(client, answer, timeouts.get("read"), request)
        if answer.status == 101:
            upgraded = UpgradedConnection(answer.headers, answer.stream, answer.early, netloc(origin))
            return httpx.Response(101, headers=headers, stream=rest, extensions={UPGRADED: upgraded})
        if not answer.has_full_body:
            return httpx.Response(answer.status, headers=headers, stream=rest)
        try:
            with _httpx_errors(request):
                content = answer.take_body()
        finally:
            await rest.aclose()
        buffered = httpx.ByteStream(content)  # as `content=`, httpx would read it again
        return httpx.Response(answer.status, headers=headers, stream=buffered)

    async def aclose(self) -> None:
        """Close the idle connections."""
        for client in self._clients.values():
            await client.aclose()


class _Body(httpx.AsyncByteStream):
    """The rest of a response's body; its own iterator, so that no generator is left to the garbage collector."""

    def __init__(
        self, client: HttpClient, answer: StreamedResponse, read_seconds: float | None, request: httpx.Request
    ) -> None:
        self._client = client
        self._answer: StreamedResponse | None = answer
        self._read_seconds = read_seconds
        self._request = request

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._answer is None:
            raise StopAsyncIteration
        seconds = None if self._answer.early else self._read_seconds
        with _httpx_errors(self._request, "no data for", seconds):
            piece = await self._answer.receive_some()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Release the connection if the response was read to its end; otherwise close it."""
        answer, self._answer = self._answer, None
        if answer is not None and not self._client.release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)


def _encode_head(request: httpx.Request, length: int) -> bytes:
    """Return the encoded head, with this transport's framing in place of httpx's.

    Raises:
        httpx.LocalProtocolError: A header contains a line break.
    """
    lines = [b"%b: %b" % line for line in request.headers.raw if line[0].lower() not in _OWN_HEADERS]
    if length or request.method in {"POST", "PUT", "PATCH"}:
        lines.append(b"Content-Length: %d" % length)
    if "upgrade" in request.headers:
        lines.append(b"Connection: Upgrade")
    url = request.url
    start = b"%b %b HTTP/1.1\r\nHost: %b" % (request.method.encode("ascii"), url.raw_path, url.netloc)
    head = b"\r\n".join([start, *lines, b"", b""])
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 3:
        raise httpx.LocalProtocolError("a header contains a line break", request=request)
    return head


@contextmanager
def _httpx_errors(request: httpx.Request, delay: str = "", seconds: float | None = None) -> Iterator[None]:
    """Limit the time of the body, and raise httpx's equivalents of its errors."""
    try:
        with nullcontext() if seconds is None else trio.fail_after(seconds):
            yield
    except trio.TooSlowError as error:
        raise httpx.ReadTimeout(f"{delay} {seconds:g} s", request=request) from error
    except ConnectError as error:
        raise httpx.ConnectError(str(error), request=request) from error
    except ConnectionLostError as error:
        raise httpx.ReadError(str(error), request=request) from error
    except HttpError as error:
        raise httpx.RemoteProtocolError(str(error), request=request) from error
