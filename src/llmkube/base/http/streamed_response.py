"""A response whose head has arrived: its body is read piece by piece, with its framing, or into a buffer."""

import trio

from llmkube.base.http.bodies import BodyDecoder, EofBody, LengthBody, response_body
from llmkube.base.http.errors import ConnectionLostError, MalformedError, ProtocolError
from llmkube.base.http.heads import ResponseHead
from llmkube.base.http.hub import BROKEN
from llmkube.base.http.message import Headers, Origin, netloc
from llmkube.base.http.tls import RECEIVE_BYTES, receive_into


class StreamedResponse:
    """A response whose head has arrived.

    Attributes:
        head: Status and headers.
        stream: The connection, managed by the client that created this object.
        origin: The server.
        early: Bytes that arrived after the head and were not read yet.
        reusable: Whether the connection can carry another exchange.
    """

    def __init__(self, head: ResponseHead, method: str, stream: trio.abc.Stream, early: bytes, origin: Origin) -> None:
        self.head = head
        self.stream = stream
        self.origin = origin
        self.early = early
        self.reusable = False
        self._method = method
        self._decoder: BodyDecoder | None = None  # created on first use: a proxy needs none
        self._decoded = memoryview(b"")  # payload that did not fit into the caller's buffer

    @property
    def status(self) -> int:
        """Status code."""
        return self.head.status

    @property
    def headers(self) -> Headers:
        """Headers as sent."""
        return self.head.headers

    @property
    def has_full_body(self) -> bool:
        """Whether the whole body has arrived together with the head."""
        return self.head.length is not None and len(self.early) >= self.head.length

    @property
    def ended(self) -> bool:
        """Whether the body was read to its clean end."""
        return self._decoder is not None and self._decoder.rest is not None and not self.early

    async def receive_raw(self) -> bytes:
        """Return the next bytes of the body with its framing, as soon as they arrive.

        Raises:
            ConnectionLostError: The connection was lost, or has ended.
        """
        data, self.early = self.early, b""
        if not data:
            data = await receive_from(self.stream, self.origin)
            if not data:
                raise ConnectionLostError(f"connection to {netloc(self.origin)} lost: the body ends early")
        return data

    async def receive_some(self) -> bytes:
        """Return the next piece of the body as soon as it arrives, or b"" at its clean end.

        Raises:
            ConnectionLostError: The connection was lost before the end.
            ProtocolError: The framing is invalid.
        """
        decoder = self._decoder = self._decoder or response_body(self._method, self.head)
        while decoder.rest is None or self.early:
            data, self.early = self.early, b""
            if not data:
                data = await receive_from(self.stream, self.origin)
                if not data:
                    self._feed_eof(decoder)
                    return b""
            try:
                payload = decoder.feed(data)
            except MalformedError as exc:
                raise ProtocolError(f"{netloc(self.origin)} sent an invalid body: {exc}") from exc
            if payload:
                self._update_reusable(decoder)
                return payload
        self._update_reusable(decoder)
        await trio.lowlevel.checkpoint()
        return b""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive the next bytes of the body into the beginning of a buffer; return their number, 0 at its clean end.

        A body of known length is received straight into the buffer. For large bodies, instead of `receive_some`, not
        together with it. Raises the same errors.
        """
        decoder = self._decoder = self._decoder or response_body(self._method, self.head)
        if isinstance(decoder, LengthBody) and decoder.remaining and not self.early and not self._decoded:
            try:
                count = await receive_into(self.stream, buffer[: decoder.remaining])
            except BROKEN as exc:
                raise connection_lost(exc, self.origin) from exc
            if count:
                decoder.skip_payload(count)
                self._update_reusable(decoder)
            else:
                self._feed_eof(decoder)
            return count
        if not self._decoded:
            self._decoded = memoryview(await self.receive_some())
        count = min(len(buffer), len(self._decoded))
        buffer[:count], self._decoded = self._decoded[:count], self._decoded[count:]
        return count

    def take_body(self) -> bytes:
        """Return the body of a response that `has_full_body` and was not read yet.

        Raises:
            ProtocolError: The framing is invalid.
        """
        data, self.early = self.early, b""
        decoder = self._decoder = response_body(self._method, self.head)
        try:
            payload = decoder.feed(data)
        except MalformedError as exc:
            raise ProtocolError(f"{netloc(self.origin)} sent an invalid body: {exc}") from exc
        self._update_reusable(decoder)
        return payload

    def _update_reusable(self, decoder: BodyDecoder) -> None:
        """Set `reusable`: the body was read to its end, nothing follows it, and the peer keeps the connection open."""
        self.reusable = decoder.rest == b"" and self.head.keep_alive and not isinstance(decoder, EofBody)

    def _feed_eof(self, decoder: BodyDecoder) -> None:
        try:
            decoder.feed_eof()
        except MalformedError as exc:
            raise ConnectionLostError(f"connection to {netloc(self.origin)} lost: {exc}") from exc


async def receive_from(stream: trio.abc.Stream, origin: Origin) -> bytes:
    """Return the next data from a connection, or b"" at its end; raises ConnectionLostError if it breaks."""
    try:
        return bytes(await stream.receive_some(RECEIVE_BYTES))
    except BROKEN as exc:
        raise connection_lost(exc, origin) from exc


def connection_lost(exc: Exception, origin: Origin) -> ConnectionLostError:
    """Return the error for a connection that broke."""
    return ConnectionLostError(f"connection to {netloc(origin)} lost: {exc.__cause__ or exc}")
