"""An answer whose head has come: its body is taken piece by piece, with its framing, or into a buffer."""

import trio

from llmkube.base.http.bodies import BodyDecoder, EofBody, LengthBody, response_body
from llmkube.base.http.errors import ConnectionLostError, MalformedError, ProtocolError
from llmkube.base.http.heads import ResponseHead
from llmkube.base.http.hub import BROKEN
from llmkube.base.http.message import Headers, Origin, netloc
from llmkube.base.http.tls import RECEIVE_BYTES, receive_into


class StreamedResponse:
    """An answer whose head has come and whose body is coming.

    Attributes:
        head: The status and the headers.
        stream: The connection, which the client that made this object manages.
        origin: Where it goes to.
        early: What has come after the head, and was not read yet.
        reusable: Whether the connection can carry another exchange.
    """

    def __init__(self, head: ResponseHead, method: str, stream: trio.abc.Stream, early: bytes, origin: Origin) -> None:
        self.head = head
        self.stream = stream
        self.origin = origin
        self.early = early
        self.reusable = False
        self._method = method
        self._decoder: BodyDecoder | None = None  # a proxy needs none
        self._decoded = memoryview(b"")  # taken out of its framing, for a buffer that was too small

    @property
    def status(self) -> int:
        """The status code."""
        return self.head.status

    @property
    def headers(self) -> Headers:
        """The headers as sent."""
        return self.head.headers

    @property
    def has_full_body(self) -> bool:
        """Whether all of the body has come together with the head."""
        return self.head.length is not None and len(self.early) >= self.head.length

    @property
    def ended(self) -> bool:
        """Whether the body was read to its clean end, so that no more of it comes."""
        return self._decoder is not None and self._decoder.rest is not None and not self.early

    async def receive_raw(self) -> bytes:
        """Return the next bytes of the body with its framing, as soon as they come.

        Raises:
            ConnectionLostError: The peer broke off, or its stream has ended.
        """
        data, self.early = self.early, b""
        if not data:
            data = await receive_from(self.stream, self.origin)
            if not data:
                raise ConnectionLostError(f"{netloc(self.origin)} broke off: the body ends early")
        return data

    async def receive_some(self) -> bytes:
        """Return the next piece of the body as soon as it comes, or b"" at its clean end.

        Raises:
            ConnectionLostError: The peer broke off before the end.
            ProtocolError: The peer's framing is wrong.
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
                raise ProtocolError(f"{netloc(self.origin)} sent a {exc}") from exc
            if payload:
                self._update_reusable(decoder)
                return payload
        self._update_reusable(decoder)
        await trio.lowlevel.checkpoint()
        return b""

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the beginning of a buffer with the next bytes of the body, and return how far; 0 at its clean end.

        A body of known length goes from the connection straight into the buffer. For large ones, and in place of
        `receive_some`, not together with it. Errors are the same.
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
        """Return the body of an answer that `has_full_body`, which nothing has been read of.

        Raises:
            ProtocolError: The peer's framing is wrong.
        """
        data, self.early = self.early, b""
        decoder = self._decoder = response_body(self._method, self.head)
        try:
            payload = decoder.feed(data)
        except MalformedError as exc:
            raise ProtocolError(f"{netloc(self.origin)} sent a {exc}") from exc
        self._update_reusable(decoder)
        return payload

    def _update_reusable(self, decoder: BodyDecoder) -> None:
        """The body was read to its end, nothing came after it, and the peer keeps the connection."""
        self.reusable = decoder.rest == b"" and self.head.keep_alive and not isinstance(decoder, EofBody)

    def _feed_eof(self, decoder: BodyDecoder) -> None:
        try:
            decoder.feed_eof()
        except MalformedError as exc:
            raise ConnectionLostError(f"{netloc(self.origin)} broke off: {exc}") from exc


async def receive_from(stream: trio.abc.Stream, origin: Origin) -> bytes:
    """Return what comes next from a connection, or b"" at its end; ConnectionLostError when it breaks."""
    try:
        return bytes(await stream.receive_some(RECEIVE_BYTES))
    except BROKEN as exc:
        raise connection_lost(exc, origin) from exc


def connection_lost(exc: Exception, origin: Origin) -> ConnectionLostError:
    """Say that the peer broke off, and by what."""
    return ConnectionLostError(f"{netloc(origin)} broke off: {exc.__cause__ or exc}")
