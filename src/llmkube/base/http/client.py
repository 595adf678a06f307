"""A pooled HTTP/1.1 client on Trio, plain http only: engines, probes and the gateway's upstream side.

No timeouts inside: a caller who will not wait for ever says `trio.fail_after`. A connection goes back to the pool only
when an answer was read to its clean end; in every other case, cancellation too, it is closed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.http.bodies import BodyDecoder, response_body
from llmkube.base.http.errors import (
    BodyTooLargeError,
    BrokenOffError,
    ConnectError,
    MalformedError,
    ProtocolError,
)
from llmkube.base.http.heads import FinalHeadReader, ResponseHead
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import NO_HEADERS, Headers, Response, encode_request_head

Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a connection to a host and port, or raises OSError."""

_LIMITS = Limits(max_headers=256)
_RECEIVE_BYTES = 64 * 1024
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


async def _connect_tcp(host: str, port: int) -> trio.abc.Stream:
    return await trio.open_tcp_stream(host, port)


@attrs.frozen
class _Origin:
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@attrs.frozen(eq=False)
class _Idle:
    origin: _Origin
    stream: trio.abc.Stream
    since: float  # by `trio.current_time`


class _StaleError(BrokenOffError):
    """The connection ended before a byte of the answer: when it came from the pool, nothing is known to be lost."""


class StreamedResponse:
    """An answer whose head has come and whose body is coming.

    Attributes:
        status: The status code.
        headers: The headers as sent.
        stream: The connection, which the client that made this object manages.
    """

    def __init__(
        self, head: ResponseHead, decoder: BodyDecoder, stream: trio.abc.Stream, early: bytes, peer: str
    ) -> None:
        self.status = head.status
        self.headers = head.headers
        self._keep_alive = head.keep_alive
        self._decoder = decoder
        self.stream = stream
        self._early = early
        self._peer = peer

    async def receive_some(self) -> bytes:
        """Return the next piece of the body as soon as it comes, or b"" at its clean end.

        Raises:
            BrokenOffError: The peer broke off before the end.
            ProtocolError: The peer's framing is wrong.
        """
        while self._decoder.rest is None or self._early:
            data, self._early = self._early, b""
            if not data:
                data = await _receive(self.stream, self._peer)
                if not data:
                    self._end()
                    return b""
            try:
                payload = self._decoder.feed(data)
            except MalformedError as exc:
                raise ProtocolError(f"{self._peer} sent a {exc}") from exc
            if payload:
                return payload
        await trio.lowlevel.checkpoint()
        return b""

    @property
    def reusable(self) -> bool:
        """The body was read to its end, nothing came after it, and the peer keeps the connection."""
        return self._keep_alive and self._decoder.rest == b"" and not self._early

    def _end(self) -> None:
        self._keep_alive = False
        try:
            self._decoder.feed_eof()
        except MalformedError as exc:
            raise BrokenOffError(f"{self._peer} broke off: {exc}") from exc


class HttpClient:
    """Exchange requests with any number of origins, keeping idle connections for the next one.

    Args:
        connect: Opens connections; a simulation passes its own.
        max_idle_per_origin: Idle connections kept to one host and port.
        max_idle: Idle connections kept in all, so that engines that came and went leave few behind.
        max_idle_seconds: An idle connection older than this, by Trio's clock, is not used again.
    """

    def __init__(
        self,
        connect: Connect = _connect_tcp,
        *,
        max_idle_per_origin: int = 16,
        max_idle: int = 64,
        max_idle_seconds: float = 30.0,
    ) -> None:
        self._connect = connect
        self._max_idle_per_origin = max_idle_per_origin
        self._max_idle = max_idle
        self._max_idle_seconds = max_idle_seconds
        self._idle: list[_Idle] = []  # oldest first

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = NO_HEADERS,
        body: bytes = b"",
        max_body_bytes: int = 16 * 1024 * 1024,
    ) -> Response:
        """Exchange one request for one whole answer, whatever its status.

        Raises:
            ConnectError: No connection.
            BrokenOffError: The peer broke off.
            ProtocolError: The peer does not speak HTTP/1.1.
            BodyTooLargeError: The answer's body is above `max_body_bytes`.
        """
        async with self.open_stream(method, url, headers=headers, body=body) as answer:
            received = bytearray()
            while piece := await answer.receive_some():
                received += piece
                if len(received) > max_body_bytes:
                    raise BodyTooLargeError(f"{method} {url}: the answer is larger than {max_body_bytes} bytes")
        return Response(answer.status, answer.headers, bytes(received))

    @asynccontextmanager
    async def open_stream(
        self, method: str, url: str, *, headers: Headers = NO_HEADERS, body: bytes = b""
    ) -> AsyncIterator[StreamedResponse]:
        """Send a request; the body of the `with` block starts when the head of its answer has come.

        Leaving the block early closes the connection, which tells the peer to stop sending.
        A pooled connection that the peer has closed meanwhile is replaced by a fresh one, once.

        Raises:
            ConnectError: No connection.
            BrokenOffError: The peer broke off.
            ProtocolError: The peer does not speak HTTP/1.1.
            ValueError: Not a plain http URL, or a header that would break out of its line.
        """
        origin, target = _split(url)
        head = encode_request_head(method, target, _framed(method, headers, origin, body))
        answer = await self._start(origin, method, head, body)
        try:
            yield answer
        finally:
            if not (answer.reusable and self._keep_nowait(origin, answer.stream)):
                await trio.aclose_forcefully(answer.stream)

    async def aclose(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        await _close_all(idle)

    async def _start(self, origin: _Origin, method: str, head: bytes, body: bytes) -> StreamedResponse:
        pooled = await self._take(origin)
        if pooled is not None:
            with suppress(_StaleError):
                return await _exchange(pooled, origin, method, head, body)
        try:
            fresh = await self._connect(origin.host, origin.port)
        except (OSError, *_BROKEN) as exc:
            raise ConnectError(f"cannot connect to {origin}: {exc}") from exc
        return await _exchange(fresh, origin, method, head, body)

    async def _take(self, origin: _Origin) -> trio.abc.Stream | None:
        """Return the idle connection to this origin that was used last; close those that are of no use any more."""
        oldest = trio.current_time() - self._max_idle_seconds
        aged = [idle for idle in self._idle if idle.since < oldest]
        self._idle = [idle for idle in self._idle if idle.since >= oldest]
        await _close_all(aged)
        while (mine := next((idle for idle in reversed(self._idle) if idle.origin == origin), None)) is not None:
            self._idle.remove(mine)
            if _is_quiet(mine.stream):
                return mine.stream
            await trio.aclose_forcefully(mine.stream)
        return None

    def _keep_nowait(self, origin: _Origin, stream: trio.abc.Stream) -> bool:
        """Take a connection into the pool, unless there are enough."""
        to_origin = sum(idle.origin == origin for idle in self._idle)
        if to_origin >= self._max_idle_per_origin or len(self._idle) >= self._max_idle:
            return False
        self._idle.append(_Idle(origin, stream, trio.current_time()))
        return True


@asynccontextmanager
async def open_http_client(connect: Connect = _connect_tcp) -> AsyncIterator[HttpClient]:
    """Hold a client; its idle connections are closed at the end."""
    client = HttpClient(connect)
    try:
        yield client
    finally:
        await client.aclose()


async def _exchange(
    stream: trio.abc.Stream, origin: _Origin, method: str, head: bytes, body: bytes
) -> StreamedResponse:
    """Send a request and receive the head of its answer; closes the stream unless that succeeds."""
    async with AsyncExitStack() as on_failure:
        on_failure.push_async_callback(trio.aclose_forcefully, stream)
        sent = True
        try:
            await stream.send_all(head + body)
        except _BROKEN:
            sent = False  # the peer may have refused a large body half-way, and then its answer is waiting
        try:
            answer, early = await _receive_head(stream, str(origin))
            decoder = response_body(method, answer)
        except MalformedError as exc:
            raise ProtocolError(f"{origin} does not speak HTTP/1.1 as expected: {exc}") from exc
        on_failure.pop_all()
        answer = attrs.evolve(answer, keep_alive=answer.keep_alive and sent)
        return StreamedResponse(answer, decoder, stream, early, str(origin))


async def _receive_head(stream: trio.abc.Stream, peer: str) -> tuple[ResponseHead, bytes]:
    reader = FinalHeadReader(_LIMITS)
    data = await _receive_first(stream, peer)
    while (found := reader.feed(data)) is None:
        data = await _receive(stream, peer)
        if not data:
            raise BrokenOffError(f"{peer} closed the connection in the head of its answer")
    return found


async def _receive_first(stream: trio.abc.Stream, peer: str) -> bytes:
    try:
        data = await _receive(stream, peer)
    except BrokenOffError as exc:
        raise _StaleError(str(exc)) from exc
    if not data:
        raise _StaleError(f"{peer} closed the connection without an answer")
    return data


async def _receive(stream: trio.abc.Stream, peer: str) -> bytes:
    try:
        return bytes(await stream.receive_some(_RECEIVE_BYTES))
    except _BROKEN as exc:
        raise BrokenOffError(f"{peer} broke off: {exc.__cause__ or exc}") from exc


def _is_quiet(stream: trio.abc.Stream) -> bool:
    """Tell whether nothing came on an idle connection: not its end, and no late words that would pass for an answer."""
    return not (isinstance(stream, trio.SocketStream) and stream.socket.is_readable())


async def _close_all(idle: Iterable[_Idle]) -> None:
    async with AsyncExitStack() as stack:  # closes every one, even when the first close is cancelled
        for each in idle:
            stack.push_async_callback(trio.aclose_forcefully, each.stream)


def _split(url: str) -> tuple[_Origin, str]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.username is not None:
        raise ValueError(f"not a plain http URL: {url!r}")
    target = parts.path or "/"
    return _Origin(parts.hostname, parts.port or 80), f"{target}?{parts.query}" if parts.query else target


def _framed(method: str, headers: Headers, origin: _Origin, body: bytes) -> Headers:
    """Return the headers with the framing that this client really uses."""
    framed = headers.without("content-length", "transfer-encoding", "connection")
    if "host" not in framed:
        framed = Headers((("Host", str(origin)), *framed))
    if body or method in ("POST", "PUT", "PATCH"):
        framed = framed.with_("Content-Length", str(len(body)))
    return framed
