"""How connections are made: plain or under TLS, straight or through a proxy. The one module that dials."""

import base64
import errno
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
import trio

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.heads import FinalHeadReader
from llmkube.base.http.limits import Limits
from llmkube.base.http.tls import TlsStream

_MAX_SESSIONS: Final = 16

Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a connection to a host and port, or raises OSError."""


_UNREACHABLE: Final = "unreachable: no route leads there from this machine"
_REASONS: Final[Mapping[int, str]] = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ETIMEDOUT: "no answer: it is off, or a firewall drops what is sent to it",
    errno.EHOSTUNREACH: _UNREACHABLE,
    errno.ENETUNREACH: _UNREACHABLE,
}
_FAILED_ADDRESS: Final = re.compile(r"Error connecting to \('([^']+)'")
"""How Trio names the address in an error's text, where it is not to be had otherwise."""


async def dial(host: str, port: int) -> trio.SocketStream:
    """Open a plain connection, to whichever address of the host answers first.

    Raises:
        OSError: None did; it says of each address why, and Trio's errors of all attempts are its cause.
    """
    try:
        return await trio.open_tcp_stream(host, port)
    except OSError as error:
        if error.__cause__ is None:
            raise
        raise OSError(connect_failure(error)) from error.__cause__


def connect_failure(error: OSError) -> str:
    """Return why each address did not answer; Trio's own words only say that all attempts have failed."""
    attempts = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else ()
    return "; ".join(_attempt_failure(each) for each in attempts) or str(error)


def _attempt_failure(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = _REASONS.get(number or 0)
    address = _FAILED_ADDRESS.search(str(error))
    return f"{address[1]}: {reason}" if address and reason else str(error)


class ProxyError(OSError):
    """A proxy does not let us through."""


@attrs.define(eq=False)
class TlsDialer:
    """Opens connections under TLS; a session of one shortens the handshake of the next one to the same server.

    Attributes:
        context: Whom to trust, and who we are.
        server_name: The name to expect in the server's certificate instead of the host's; "" for the host's.
        connect: Opens what is below.
    """

    context: ssl.SSLContext
    server_name: str = ""
    connect: Connect = dial
    # A session proves who a server is without its certificate: it is never offered to another one.
    _newest: dict[tuple[str, int], TlsStream] = attrs.field(factory=dict)

    async def __call__(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError, and `ssl.SSLError` among them."""
        return await self.wrap(await self.connect(host, port), host, port)

    async def wrap(self, transport: trio.abc.Stream, host: str, port: int) -> trio.abc.Stream:
        """Shake hands over a connection to this server; if that fails, it is closed.

        Raises:
            ssl.SSLError: The server's certificate is not to be trusted, or it refuses ours.
            trio.BrokenResourceError: The server went away.
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
            del self._newest[next(iter(self._newest))]  # of the server that was dialled least lately
        self._newest[host, port] = stream
        return stream


@attrs.define(eq=False)
class ProxyDialer:
    """Opens connections through an HTTP proxy, by CONNECT (RFC 9110, 9.3.6).

    Attributes:
        url: The proxy's, `http://` or `https://`; a user and a password in it are sent to the proxy, and no one else.
        connect: Opens the connection to the proxy.
    """

    url: str = attrs.field(repr=False)
    connect: Connect = dial

    async def __call__(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError."""
        proxy = urlsplit(self.url)
        secure = proxy.scheme == "https"
        dialer = TlsDialer(ssl.create_default_context(), connect=self.connect) if secure else self.connect
        stream = await dialer(proxy.hostname or "", proxy.port or (443 if secure else 80))
        done = False
        try:
            await _open_tunnel(stream, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            done = True
        finally:
            if not done:
                await trio.aclose_forcefully(stream)
        return stream


async def _open_tunnel(stream: trio.abc.Stream, proxy: SplitResult, target: str) -> None:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
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
        raise ProxyError(f"{proxy_name} does not answer as a proxy does: {error}") from error
    head, rest = found
    if not 200 <= head.status < 300:
        raise ProxyError(f"{proxy_name} answers {head.status} to CONNECT {target}")
    if rest:
        raise ProxyError(f"{proxy_name} sent data before the server could")


def with_tcp_keepalive(connect: Connect) -> Connect:
    """Return a way to connect whose connections the kernel probes while they are silent, as those of watches are."""

    async def connect_with_keepalive(host: str, port: int) -> trio.abc.Stream:
        stream = await connect(host, port)
        if isinstance(stream, trio.SocketStream):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return stream

    return connect_with_keepalive
