"""One GET on one connection: the head is judged byte by byte, and the body passes through untouched, in large pieces.

A download is all body. An HTTP library that parses, copies and checks each piece of it costs more processor time than
receiving it does; here a piece of a body of known length is what the socket gave.
"""

from collections.abc import Mapping
from typing import Final

import attrs
import httptools
import trio

from llmkube.base.http import BrokenOffError, Headers, Limits, ProtocolError
from llmkube.base.http.message import encode_request_head
from llmkube.base.http.parser import BodyDecoder, HeadReader, MalformedError, ResponseHead, response_body

_LIMITS: Final = Limits(max_headers=256)
_RECEIVE_BYTES: Final = 512 * 1024  # fewer, larger pieces cost less; beyond this they no longer fit into the cache
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.define(eq=False)
class Body:
    """The body of an answer as it comes; iterate once.

    Iterating raises `BrokenOffError` when it ends early, and `ProtocolError` when its framing is wrong.
    """

    stream: trio.abc.Stream
    _decoder: BodyDecoder
    _early: bytes  # what came along with the head

    def __aiter__(self) -> "Body":
        return self

    async def __anext__(self) -> bytes:
        while self._decoder.rest is None:
            data, self._early = self._early, b""
            try:
                if data:
                    await trio.lowlevel.checkpoint()
                else:
                    data = await _receive(self.stream)
                if data:
                    payload = self._decoder.feed(data)
                    if payload:
                        return payload
                else:
                    self._decoder.feed_eof()
            except MalformedError as exc:
                kind = ProtocolError if data else BrokenOffError
                raise kind(str(exc)) from exc
        raise StopAsyncIteration


@attrs.frozen
class Reply:
    """The head of an answer, and its body to come.

    Attributes:
        status: The HTTP status.
        headers: By lower-case name; lines of the same name are joined by commas (RFC 9110, 5.3).
        body: See `Body`.
    """

    status: int
    headers: Mapping[str, str]
    body: Body


async def get(stream: trio.abc.Stream, target: str, headers: Mapping[str, str]) -> Reply:
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
            raise BrokenOffError(f"the connection broke: {words_of(exc)}") from exc
        head, early = await _receive_head(stream)
        decoder = response_body("GET", head)
    except MalformedError as exc:
        raise ProtocolError(str(exc)) from exc
    names = dict.fromkeys(name.lower() for name, _ in head.headers)
    joined = {name: ", ".join(head.headers.get_all(name)) for name in names}
    return Reply(head.status, joined, Body(stream, decoder, early))


def words_of(exc: BaseException) -> str:
    """Return what went wrong at the bottom: Trio's own words only point there."""
    while not isinstance(exc, OSError) and exc.__cause__ is not None:
        exc = exc.__cause__
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    return str(exc) or type(exc).__name__


async def _receive_head(stream: trio.abc.Stream) -> tuple[ResponseHead, bytes]:
    """Receive heads up to the final one: interim answers (1xx) are skipped."""
    data, reader = b"", HeadReader(httptools.HttpResponseParser, _LIMITS)
    while True:
        rest = reader.feed(data)
        if rest is None:
            data = await _receive(stream)
            if not data:
                raise BrokenOffError("the server broke off before its answer was complete")
            continue
        head = reader.response()
        if head.status >= 200:
            return head, rest
        if head.status == 101:
            raise ProtocolError("the server switches to a protocol that nobody asked for")
        data, reader = rest, HeadReader(httptools.HttpResponseParser, _LIMITS)


async def _receive(stream: trio.abc.Stream) -> bytes:
    try:
        return bytes(await stream.receive_some(_RECEIVE_BYTES))
    except _BROKEN as exc:
        raise BrokenOffError(f"the connection broke: {words_of(exc)}") from exc
