"""Open connections: plain or under TLS, direct or through a proxy. The only module that dials."""

import base64
import errno
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs
import trio

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.heads import FinalHeadReader
from llmkube.base.http.limits import Limits
from llmkube.base.http.tls import TlsStream

_MAX_SESSIONS: Final = 16

Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a connection to a host and port, or raises OSError."""


_UNREACHABLE: Final = "unreachable: this machine has no route to it"
_REASONS: Final[Mapping[int, str]] = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ETIMEDOUT: "no answer: it is off, or a firewall drops the packets",
    errno.EHOSTUNREACH: _UNREACHABLE,
    errno.ENETUNREACH: _UNREACHABLE,
}
_FAILED_ADDRESS: Final = re.compile(r"Error connecting to \('([^']+)'")
"""Trio gives the address only in the text of an error."""


async def dial(host: str, port: int) -> trio.SocketStream:
    """Open a plain connection to whichever address of the host answers first.

    Raises:
        OSError: No address answered; the message has the reason for each, and the cause is the group of Trio's errors.
    """
    try:
        return await trio.open_tcp_stream(host, port)
    except OSError as error:
        if error.__cause__ is None:
            raise
        raise OSError(connect_failure(error)) from error.__cause__


def connect_failure(error: OSError) -> str:
    """Return the reason of the failure for each address; Trio's own message has no reasons."""
    attempts = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else ()
    return "; ".join(_attempt_failure(each) for each in attempts) or str(error)


def _attempt_failure(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = _REASONS.get(number or 0)
    address = _FAILED_ADDRESS.search(str(error))
    return f"{address[1]}: {reason}" if address and reason else str(error)


class ProxyError(OSError):
    """A proxy failed or rejected the connection."""


@attrs.define(eq=False)
class TlsDialer:
    """Open connections under TLS; the session of one shortens the handshake of the next to the same server.

    Attributes:
        context: Trusted CAs and the client certificate.
        server_name: Name to expect in the server's certificate; "" for the name of the host.
        connect: Opens the underlying connection.
    """

    context: ssl.SSLContext
    server_name: str = ""
    connect: Connect = dial
    # A session replaces the check of the server's certificate, so it is never offered to another server.
    _newest: dict[tuple[str, int], TlsStream] = attrs.field(factory=dict)

    async def __call__(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError, of which `ssl.SSLError` is one."""
        return await self.wrap(await self.connect(host, port), host, port)

    async def wrap(self, transport: trio.abc.Stream, host: str, port: int) -> trio.abc.Stream:
        """Perform the handshake over a connection to this server; on failure the connection is closed.

        Raises:
            ssl.SSLError: The server's certificate is not trusted, or the server rejects ours.
            trio.BrokenResourceError: The server closed the connection.
        """
        done = False
        try:
            previous = self._newest.pop((host, port), None)
            session = previous.session if previous else None  # TLS 1.3 sends it after the handshake
            stream = TlsStream(transport, self.context, self.server_name or host, session)
            await stream.do_handshake()
            done = True
        finally:
            if not done:
                await trio.aclose_forcefully(transport)
        if len(self._newest) >= _MAX_SESSIONS:
            del self._newest[next(iter(self._newest))]  # of the least recently dialled server
        self._newest[host, port] = stream
        return stream


@attrs.define(eq=False)
class ProxyDialer:
    """Open connections through an HTTP proxy, by CONNECT (RFC 9110, 9.3.6).

    Attributes:
        url: URL of the proxy, `http://` or `https://`; a user and a password in it are sent to the proxy only.
        connect: Opens the connection to the proxy.
        context: Returns the certificates to trust for an `https` proxy; may block.
    """

    url: str = attrs.field(repr=False)
    connect: Connect = dial
    context: Callable[[], ssl.SSLContext] = ssl.create_default_context

    async def __call__(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError."""
        stream = await self.connect_to_proxy()
        done = False
        try:
            await _open_tunnel(stream, self.url, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            done = True
        finally:
            if not done:
                await trio.aclose_forcefully(stream)
        return stream

    async def connect_to_proxy(self) -> trio.abc.Stream:
        """Open a connection to the proxy itself; raises OSError."""
        proxy = urlsplit(self.url)
        secure = proxy.scheme == "https"
        context = await trio.to_thread.run_sync(self.context) if secure else None
        dialer = TlsDialer(context, connect=self.connect) if context else self.connect
        return await dialer(proxy.hostname or "", proxy.port or (443 if secure else 80))


def proxy_credentials(url: str) -> tuple[str, ...]:
    """Return the header line with the user and password in the URL of a proxy, if it has them."""
    proxy = urlsplit(url)
    if proxy.username is None:
        return ()
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return (f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}",)


CREDENTIALS_HINT: Final = "write its user and password into its URL, as http://USER:PASSWORD@HOST:PORT"


async def _open_tunnel(stream: trio.abc.Stream, url: str, target: str) -> None:
    proxy = urlsplit(url)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *proxy_credentials(url)]
    proxy_name = f"the proxy {proxy.hostname}:{proxy.port}" if proxy.port else f"the proxy {proxy.hostname}"
    reader, found = FinalHeadReader(Limits()), None
    try:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1"))
        while found is None:
            data = bytes(await stream.receive_some())
            if not data:
                raise ProxyError(f"{proxy_name} closed the connection")
            found = reader.feed(data)
    except (trio.BrokenResourceError, MalformedError) as error:
        raise ProxyError(f"{proxy_name} does not answer like a proxy: {error}") from error
    head, rest = found
    if not 200 <= head.status < 300:
        hint = f"; {CREDENTIALS_HINT}" if head.status == 407 else ""
        raise ProxyError(f"{proxy_name} answered {head.status} to CONNECT {target}{hint}")
    if rest:
        raise ProxyError(f"{proxy_name} sent data before the server could")


def with_tcp_keepalive(connect: Connect) -> Connect:
    """Return a `Connect` with TCP keep-alive, for connections that may be silent for long, such as those of watches."""

    async def connect_with_keepalive(host: str, port: int) -> trio.abc.Stream:
        stream = await connect(host, port)
        if isinstance(stream, trio.SocketStream):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return stream

    return connect_with_keepalive
