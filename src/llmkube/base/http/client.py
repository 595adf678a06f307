"""Pooled HTTP/1.1 client on Trio, plain http only: engines, probes and the gateway's upstream side.

It has no timeouts: callers use `trio.fail_after`. A connection returns to the pool only when a response was read to its
clean end; otherwise, even on cancellation, it is closed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.errors import BodyTooLargeError, ConnectError, ConnectionLostError, MalformedError, ProtocolError
from llmkube.base.http.heads import FinalHeadReader, HeadCache, ResponseHead, read_final_response
from llmkube.base.http.hub import BROKEN, HubStream, below_tls
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import NO_HEADERS, Headers, Origin, Response, encode_request_head, netloc
from llmkube.base.http.streamed_response import StreamedResponse, receive_from


@attrs.frozen(eq=False)
class _IdleConnection:
    stream: trio.abc.Stream
    since: float  # by `trio.current_time`


@attrs.define(eq=False)
class Pool:
    """Idle connections of one client.

    Attributes:
        max_per_origin: Connections kept per host and port.
        max_total: Connections kept in all, so that few remain to engines that are gone.
        max_seconds: A connection that is idle for longer, by Trio's clock, is not reused.
    """

    max_per_origin: int
    max_total: int
    max_seconds: float
    _idle: dict[Origin, list[_IdleConnection]] = attrs.field(factory=dict)  # per origin the oldest first
    _count: int = 0

    def __iter__(self) -> Iterator[Origin]:
        """Yield the origin of each idle connection."""
        return (origin for origin, idle in self._idle.items() for _ in idle)

    async def take(self, origin: Origin) -> trio.abc.Stream | None:
        """Remove and return the most recently used connection to this origin; close those that are unusable."""
        oldest = trio.current_time() - self.max_seconds
        if self._count >= self.max_total:
            await self._close_older(oldest)
        while (idle := self._idle.get(origin)) is not None:
            newest = idle.pop()
            self._count -= 1
            if not idle:
                del self._idle[origin]
            if newest.since >= oldest and _is_idle(newest.stream):
                return newest.stream
            await trio.aclose_forcefully(newest.stream)
        return None

    def release_nowait(self, origin: Origin, stream: trio.abc.Stream) -> bool:
        """Put a connection back into the pool; return False if the pool is full."""
        if self._count >= self.max_total or len(self._idle.get(origin, ())) >= self.max_per_origin:
            return False
        self._idle.setdefault(origin, []).append(_IdleConnection(stream, trio.current_time()))
        self._count += 1
        return True

    async def aclose(self) -> None:
        """Close all connections."""
        idle, self._idle, self._count = self._idle, {}, 0
        await _close_all(one for each in idle.values() for one in each)

    async def _close_older(self, oldest: float) -> None:
        everything = [(origin, one) for origin, each in self._idle.items() for one in each]
        young = [(origin, one) for origin, one in everything if one.since >= oldest]
        self._idle, self._count = {}, len(young)
        for origin, one in young:
            self._idle.setdefault(origin, []).append(one)
        await _close_all(one for _, one in everything if one.since < oldest)


def _is_idle(stream: trio.abc.Stream) -> bool:
    """Return whether nothing has arrived on an idle connection: neither its end nor data that looks like a response."""
    stream = below_tls(stream)
    if isinstance(stream, HubStream):
        return stream.is_idle
    return not (isinstance(stream, trio.SocketStream) and stream.socket.is_readable())


async def _close_all(idle: Iterable[_IdleConnection]) -> None:
    async with AsyncExitStack() as stack:  # closes every one, even when the first close is cancelled
        for each in idle:
            stack.push_async_callback(trio.aclose_forcefully, each.stream)


SendBytes = Callable[[bytes], Awaitable[None]]

OnSent = Callable[[], None]
"""Called once all of a request was sent, before the wait for the response."""

_LIMITS = Limits(max_headers=256)


class _StaleError(ConnectionLostError):
    """The connection ended before the first byte of a response; a request on a pooled connection is then sent again."""


@attrs.frozen
class UpgradedConnection:
    """A connection that has switched to another protocol, because the peer answered 101.

    Attributes:
        headers: Headers of the response.
        stream: The connection.
        early: Bytes received after the head of the response.
        peer: Name of the peer, for messages.
        close: Closes the owner of the connection; None if the stream has none.
    """

    headers: Headers
    stream: trio.abc.Stream
    early: bytes
    peer: str
    close: Callable[[], Awaitable[None]] | None = None

    async def aclose(self) -> None:
        """Close the connection, even when cancelled."""
        if self.close is None:
            await trio.aclose_forcefully(self.stream)
        else:
            await self.close()


class HttpClient:
    """Send requests to any number of origins, and keep idle connections in `pool` for reuse.

    Args:
        connect: Opens connections; a simulation passes its own.
        max_idle_per_origin: `Pool.max_per_origin`.
        max_idle: `Pool.max_total`.
        max_idle_seconds: `Pool.max_seconds`.
    """

    def __init__(
        self,
        connect: Connect = dial,
        *,
        max_idle_per_origin: int = 16,
        max_idle: int = 64,
        max_idle_seconds: float = 30.0,
    ) -> None:
        self._connect = connect
        self.pool = Pool(max_idle_per_origin, max_idle, max_idle_seconds)
        self._heads = HeadCache(_LIMITS, read_final_response)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = NO_HEADERS,
        body: bytes = b"",
        max_body_bytes: int = 16 * 1024 * 1024,
    ) -> Response:
        """Send one request and return the whole response, whatever its status.

        Raises:
            ConnectError: No connection.
            ConnectionLostError: The connection was lost.
            ProtocolError: The peer does not speak HTTP/1.1.
            BodyTooLargeError: The response's body is larger than `max_body_bytes`.
        """
        async with self.open_stream(method, url, headers=headers, body=body) as answer:
            received = await _read_body(answer, max_body_bytes, f"{method} {url}")
        return Response(answer.status, answer.headers, received)

    @asynccontextmanager
    async def open_stream(
        self, method: str, url: str, *, headers: Headers = NO_HEADERS, body: bytes = b""
    ) -> AsyncIterator[StreamedResponse]:
        """Send a request; the `with` block starts when the head of the response has arrived.

        Leaving the block early closes the connection, so that the peer stops sending.
        If the peer has closed a pooled connection meanwhile, the request is sent again, once, on a new one.

        Raises:
            ConnectError: No connection.
            ConnectionLostError: The connection was lost.
            ProtocolError: The peer does not speak HTTP/1.1.
            ValueError: Not a plain http URL, or an invalid header.
        """
        origin, target = _split_url(url)
        head = encode_request_head(method, target, _with_framing(method, headers, origin, body))
        answer = await self.start(origin, method, head, body)
        try:
            yield answer
        finally:
            if not self.release_nowait(answer):
                await trio.aclose_forcefully(answer.stream)

    async def upload(
        self, url: str, length: int, write: Callable[[SendBytes], Awaitable[None]], *, max_body_bytes: int = 1024 * 1024
    ) -> Response:
        """POST a body that is too large for memory, on its own connection, and return the whole response.

        Args:
            url: The target.
            length: Size of the body in bytes.
            write: Sends exactly `length` bytes with the function that it is given.
            max_body_bytes: Maximum size of the response's body.

        Raises:
            ConnectError: No connection.
            ConnectionLostError: The connection was lost.
            ProtocolError: The peer does not speak HTTP/1.1.
            BodyTooLargeError: The response's body is larger than `max_body_bytes`.
            ValueError: Not a plain http URL.
        """
        origin, target = _split_url(url)
        lines = (("Host", netloc(origin)), ("Content-Length", str(length)), ("Connection", "close"))
        stream = await self._open(origin)
        async with stream:
            with suppress(*BROKEN):  # the peer may have rejected the body half-way: its response is then waiting
                await stream.send_all(encode_request_head("POST", target, Headers(lines)))
                await write(stream.send_all)
            head, early = await self._receive_head(stream, origin, switching=False)
            answer = StreamedResponse(head, "POST", stream, early, origin)
            received = await _read_body(answer, max_body_bytes, f"POST {url}")
        return Response(head.status, head.headers, received)

    async def start(
        self,
        origin: Origin,
        method: str,
        head: bytes,
        body: bytes,
        *,
        switching: bool = False,
        on_sent: OnSent | None = None,
    ) -> StreamedResponse:
        """Send a request with an encoded head, and return when the head of the response has arrived.

        The caller has to call `release_nowait`, and to close the connection if that returns False. With `switching`,
        the request has an `Upgrade` header, which 101 accepts.

        Raises:
            ConnectError: No connection.
            ConnectionLostError: The connection was lost.
            ProtocolError: The peer does not speak HTTP/1.1.
        """
        pooled = await self.pool.take(origin)
        if pooled is not None:
            with suppress(_StaleError):
                return await self._exchange(pooled, origin, method, head, body, switching=switching, on_sent=on_sent)
        fresh = await self._open(origin)
        return await self._exchange(fresh, origin, method, head, body, switching=switching, on_sent=on_sent)

    def release_nowait(self, answer: StreamedResponse) -> bool:
        """Return a response's connection to the pool; if False, the caller has to close it, to stop the peer."""
        return answer.reusable and self.pool.release_nowait(answer.origin, answer.stream)

    async def aclose(self) -> None:
        """Close the idle connections."""
        await self.pool.aclose()

    async def _open(self, origin: Origin) -> trio.abc.Stream:
        try:
            return await self._connect(*origin)
        except (OSError, *BROKEN) as exc:
            raise ConnectError(f"cannot connect to {netloc(origin)}: {exc}") from exc

    async def _exchange(
        self,
        stream: trio.abc.Stream,
        origin: Origin,
        method: str,
        head: bytes,
        body: bytes,
        *,
        switching: bool,
        on_sent: OnSent | None,
    ) -> StreamedResponse:
        """Send a request and receive the head of the response; on failure the stream is closed."""
        succeeded, sent = False, True
        try:
            try:
                await stream.send_all(head + body)
            except BROKEN:
                sent = False  # the peer may have rejected a large body half-way: its response is then waiting
            if sent and on_sent is not None:
                on_sent()
            answer, early = await self._receive_head(stream, origin, switching=switching)
            succeeded = True
        finally:
            if not succeeded:
                await trio.aclose_forcefully(stream)
        if not sent:
            answer = attrs.evolve(answer, keep_alive=False)
        return StreamedResponse(answer, method, stream, early, origin)

    async def _receive_head(
        self, stream: trio.abc.Stream, origin: Origin, *, switching: bool
    ) -> tuple[ResponseHead, bytes]:
        try:
            data = await receive_from(stream, origin)
        except ConnectionLostError as exc:
            raise _StaleError(str(exc)) from exc
        if not data:
            raise _StaleError(f"{netloc(origin)} closed the connection without a response")
        try:
            found = self._heads.find(data)
            if found is None:
                reader = FinalHeadReader(_LIMITS, switching=switching)
                while (found := reader.feed(data)) is None:
                    data = await receive_from(stream, origin)
                    if not data:
                        raise ConnectionLostError(f"{netloc(origin)} closed the connection in the head of its response")
            if "transfer-encoding" in found[0].lines and not found[0].chunked:
                raise MalformedError(400, "chunked is the only transfer encoding supported")
        except MalformedError as exc:
            raise ProtocolError(f"{netloc(origin)} does not speak HTTP/1.1 as expected: {exc}") from exc
        return found


@asynccontextmanager
async def open_http_client(
    connect: Connect = dial, *, max_idle_per_origin: int = 16, max_idle: int = 64
) -> AsyncIterator[HttpClient]:
    """Open a client; its idle connections are closed at the end of the block."""
    client = HttpClient(connect, max_idle_per_origin=max_idle_per_origin, max_idle=max_idle)
    try:
        yield client
    finally:
        await client.aclose()


async def _read_body(answer: StreamedResponse, max_bytes: int, call: str) -> bytes:
    received = bytearray()
    while piece := await answer.receive_some():
        received += piece
        if len(received) > max_bytes:
            raise BodyTooLargeError(f"{call}: the response is larger than {max_bytes} bytes")
    return bytes(received)


def _split_url(url: str) -> tuple[Origin, str]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.username is not None:
        raise ValueError(f"not a plain http URL: {url!r}")
    target = parts.path or "/"
    return (parts.hostname, parts.port or 80), f"{target}?{parts.query}" if parts.query else target


def _with_framing(method: str, headers: Headers, origin: Origin, body: bytes) -> Headers:
    """Return the headers with this client's framing in place of the caller's."""
    framed = headers.without("content-length", "transfer-encoding", "connection")
    if "host" not in framed:
        framed = Headers((("Host", netloc(origin)), *framed))
    if body or method in ("POST", "PUT", "PATCH"):
        framed = framed.with_("Content-Length", str(len(body)))
    return framed
