"""One GET on one connection: the head is judged byte by byte, a body of known length goes straight into a buffer.

A download is all body. An HTTP library that parses and copies each piece of it, into memory that was never touched
before, costs more processor time than receiving and hashing do.
"""

from collections.abc import Mapping
from typing import Final

import attrs
import trio

from llmkube.base.http.bodies import BodyDecoder, LengthBody, response_body
from llmkube.base.http.errors import BrokenOffError, MalformedError, ProtocolError
from llmkube.base.http.heads import FinalHeadReader, ResponseHead
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, encode_request_head

_LIMITS: Final = Limits(max_headers=256)
_PIECE_BYTES: Final = 64 * 1024
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.define(eq=False)
class Body:
    """The body of an answer as it comes: into buffers, or as pieces when iterated over.

    Both raise `BrokenOffError` when it ends early, and `ProtocolError` when its framing is wrong.
    """

    _stream: trio.abc.Stream
    _decoder: BodyDecoder
    _left_bytes: int | None  # until the end, if the length is known: then there is nothing to decode
    _held: memoryview  # what has come and was not asked for yet

    async def receive_into(self, room: memoryview) -> int:
        """Fill the beginning of a buffer, and return how far; 0 at the clean end of the body."""
        if self._held or self._left_bytes is None:
            await self._decode()
            count = min(len(room), len(self._held))
            room[:count], self._held = self._held[:count], self._held[count:]
        elif self._left_bytes:
            count = await _receive_into(self._stream, room[: self._left_bytes])
            if not count:
                raise BrokenOffError(f"the connection ended {self._left_bytes} bytes early")
        else:
            count = 0
        if self._left_bytes is not None:
            self._left_bytes -= count
        return count

    def __aiter__(self) -> "Body":
        return self

    async def __anext__(self) -> bytes:
        piece = bytearray(_PIECE_BYTES)
        count = await self.receive_into(memoryview(piece))
        if not count:
            raise StopAsyncIteration
        return bytes(piece[:count])

    async def _decode(self) -> None:
        """Wait until something is held, or the body has ended."""
        await trio.lowlevel.checkpoint()
        while not self._held and self._decoder.rest is None:
            data = await _receive(self._stream)
            try:
                if data:
                    self._held = memoryview(self._decoder.feed(data))
                else:
                    self._decoder.feed_eof()
            except MalformedError as exc:
                kind = ProtocolError if data else BrokenOffError
                raise kind(str(exc)) from exc


@attrs.frozen
class GetResponse:
    """The head of an answer, and its body to come.

    Attributes:
        status: The HTTP status.
        headers: By lower-case name; lines of the same name are joined by commas (RFC 9110, 5.3).
        body: See `Body`.
    """

    status: int
    headers: Mapping[str, str]
    body: Body


async def get(stream: trio.abc.Stream, target: str, headers: Mapping[str, str]) -> GetResponse:
    """Ask for a target, and return when the head of the answer has come; the connection is of no use afterwards.

    Raises:
        BrokenOffError: The connection broke.
        ProtocolError: The peer does not speak HTTP/1.1.
    """
    request = Headers.of({**headers, "Connection": "close"})
    try:
        try:
            await stream.send_all(encode_request_head("GET", target, request))
        except _BROKEN as exc:
            raise BrokenOffError(f"the connection broke: {describe_error(exc)}") from exc
        head, early = await _receive_head(stream)
        decoder = response_body("GET", head)
        held = memoryview(decoder.feed(early))
    except MalformedError as exc:
        raise ProtocolError(str(exc)) from exc
    names = dict.fromkeys(name.lower() for name, _ in head.headers)
    joined = {name: ", ".join(head.headers.get_all(name)) for name in names}
    length = joined.get("content-length") if isinstance(decoder, LengthBody) else None
    return GetResponse(head.status, joined, Body(stream, decoder, None if length is None else int(length), held))


def describe_error(exc: BaseException) -> str:
    """Return what went wrong at the bottom: Trio's own words only point there."""
    while not isinstance(exc, OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc) or type(exc).__name__


async def _receive_head(stream: trio.abc.Stream) -> tuple[ResponseHead, bytes]:
    reader, data = FinalHeadReader(_LIMITS), b""
    while (found := reader.feed(data)) is None:
        data = await _receive(stream)
        if not data:
            raise BrokenOffError("the server closed the connection before its answer was complete")
    return found


async def _receive(stream: trio.abc.Stream) -> bytes:
    try:
        return bytes(await stream.receive_some(_PIECE_BYTES))
    except _BROKEN as exc:
        raise BrokenOffError(f"the connection broke: {describe_error(exc)}") from exc


async def _receive_into(stream: trio.abc.Stream, room: memoryview) -> int:
    if isinstance(stream, trio.SocketStream):
        try:
            return await stream.socket.recv_into(room)
        except OSError as exc:
            raise BrokenOffError(f"the connection broke: {describe_error(exc)}") from exc
    try:
        data = await stream.receive_some(len(room))
    except _BROKEN as exc:
        raise BrokenOffError(f"the connection broke: {describe_error(exc)}") from exc
    room[: len(data)] = data
    return len(data)
