"""A proxy's data path: forward a request and relay its response, decoding no more than necessary.

Header lines are relayed as they were parsed, and a body in its own framing, which is parsed only to find the end. The
other server's CORS headers are left out if this one adds its own (`stamp`): a browser rejects duplicates.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import trio

from llmkube.base.http.bodies import ChunkedEndFinder, LengthEndFinder
from llmkube.base.http.client import HttpClient, OnSent
from llmkube.base.http.errors import ConnectionLostError, MalformedError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import without_access_control
from llmkube.base.http.message import Origin, Response, netloc, status_allows_body
from llmkube.base.http.streamed_response import StreamedResponse

Observer = Callable[[bytes], None]
"""Gets the bytes of a body, with its framing or without, as they are sent."""

BodyEditor = Callable[[bytes], bytes]
"""Returns the bytes to send for the next piece of a body, or for b"" at its end."""

ErrorEditor = Callable[[Response], Response]
"""Returns the response to send in place of one with status 400, or 500 and higher."""

MAX_ERROR_BYTES: Final = 1 << 20

_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


async def forward(
    exchange: StreamExchange,
    client: HttpClient,
    origin: Origin,
    body: bytes,
    *,
    credentials: bytes = b"",
    excluding: Collection[int] = (),
    editor: BodyEditor | None = None,
    edit_error: ErrorEditor | None = None,
    on_sent: OnSent | None = None,
    relay: Callable[[StreamedResponse], Awaitable[None]] | None = None,
    observer: Observer | None = None,
) -> bool:
    """Forward a request with this body to another server; return whether its response was relayed.

    The client's disconnect cancels this, which closes the connection to that server, so that it stops its work.

    Args:
        exchange: The request of the client.
        client: Connects to the server.
        origin: The server.
        body: The whole body.
        credentials: Header lines that replace the client's own credentials, which are not forwarded.
        excluding: Statuses whose responses are not relayed: the caller responds instead.
        editor: Edits the body of the response; None relays it unchanged.
        edit_error: Edits errors; None relays them like other responses.
        on_sent: Called once the whole request has been sent.
        relay: Relays the response; None relays it as it is, or edited.
        observer: Observes the body of the response, unless it is an error or `relay` relays it.

    Raises:
        ConnectError: No connection.
        ConnectionLostError: The connection was lost; if `exchange.begun`, in the middle of the response.
        ProtocolError: The server does not speak HTTP/1.1.
    """
    request_head = exchange.head
    passed = request_head.without_credentials + credentials
    lines = (request_head.request_line, netloc(origin).encode("ascii"), passed, len(body))
    head = b"%bHost: %b\r\n%bContent-Length: %d\r\n\r\n" % lines
    answer = await client.start(origin, request_head.method, head, body, on_sent=on_sent)
    try:
        if answer.head.status in excluding:
            return False
        if relay is not None:
            await relay(answer)
        elif edit_error is not None and (answer.status == 400 or answer.status >= 500):
            await exchange.respond(edit_error(await whole_response(answer)))
        elif editor is None:
            await _relay(answer, exchange, observer)
        else:
            await _relay_reframed(answer, exchange, editor, observer)
        return True
    finally:
        if not client.release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)


async def whole_response(answer: StreamedResponse, most: int = MAX_ERROR_BYTES) -> Response:
    """Return a response with its body, up to about so many bytes."""
    received = bytearray()
    while len(received) < most and (piece := await answer.receive_some()):
        received += piece
    return Response(answer.status, answer.headers.end_to_end().without("content-length"), bytes(received))


async def _relay(answer: StreamedResponse, exchange: StreamExchange, observer: Observer | None) -> None:
    head = answer.head
    no_body = exchange.head.method == "HEAD" or not status_allows_body(head.status)
    can_pass_through = head.length is not None or (head.chunked and exchange.chunks_allowed)
    if no_body or not can_pass_through:
        await _relay_reframed(answer, exchange, None, observer)
        return
    end = ChunkedEndFinder() if head.chunked else LengthEndFinder(head.length or 0)
    framing = _CHUNKED if head.chunked else b"Content-Length: %d\r\n" % (head.length or 0)
    lines = head.without_access_control if exchange.stamp else head.end_to_end
    prefix, piece = exchange.begin(head.status, lines + framing), answer.early
    answer.early = b""
    while True:
        try:
            at = end.feed(piece)
        except MalformedError as exc:
            raise ConnectionLostError(f"{netloc(answer.origin)} sent an invalid body: {exc}") from exc
        if 0 <= at < len(piece):
            piece = piece[:at]  # bytes after a response are not relayed, and the connection is not reused
        else:
            answer.reusable = at >= 0 and head.keep_alive
        if observer is not None:
            observer(piece)
        await exchange.send(prefix + piece if prefix else piece)
        if at >= 0:
            exchange.complete = True
            return
        prefix = b""
        piece = await answer.receive_raw()


async def _relay_reframed(
    answer: StreamedResponse, exchange: StreamExchange, editor: BodyEditor | None, observer: Observer | None
) -> None:
    """Relay a response that is edited, or that ends with its connection, or whose framing the client does not know."""
    headers = answer.headers.end_to_end()
    if exchange.stamp:
        headers = without_access_control(headers)
    if editor is not None and exchange.head.method != "HEAD":
        headers = headers.without("content-length")
    async with exchange.stream(answer.status, headers) as send:
        while piece := await answer.receive_some():
            if observer is not None:
                observer(piece)
            await send(piece if editor is None else editor(piece))
        await send(b"" if editor is None else editor(b""))
