"""A proxy's data path: a request is passed on and its answer passed back, with nothing taken apart that need not be.

Header lines pass as they were parsed, and a body in its own framing, which is followed to find the end. Only what the
other server grants to web pages gives way to what this one grants (`stamp`): a browser refuses two grants.
"""

from collections.abc import Collection
from typing import Final

import trio

from llmkube.base.http.bodies import ChunkedEndFinder, LengthEndFinder
from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectionLostError, MalformedError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import without_access_control
from llmkube.base.http.message import Origin, netloc, status_allows_body
from llmkube.base.http.streamed_response import StreamedResponse

_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


async def forward(
    exchange: StreamExchange,
    client: HttpClient,
    origin: Origin,
    body: bytes,
    *,
    credentials: bytes = b"",
    excluding: Collection[int] = (),
) -> bool:
    """Have another server answer a request, with this body; return whether its answer was passed back.

    The client's disconnect cancels this, which closes the connection to that server: it stops what it does.

    Args:
        exchange: The request, and the way back to its client.
        client: Reaches the server.
        origin: Where it is.
        body: All of the body.
        credentials: Header lines that go in the place of the client's own credentials, which do not pass.
        excluding: Statuses whose answers are not passed back: the caller answers then.

    Raises:
        ConnectError: No connection.
        ConnectionLostError: The server broke off; if `exchange.begun`, in the middle of its answer.
        ProtocolError: It does not speak HTTP/1.1.
    """
    request_head = exchange.head
    passed = request_head.without_credentials + credentials
    lines = (request_head.request_line, netloc(origin).encode("ascii"), passed, len(body))
    head = b"%bHost: %b\r\n%bContent-Length: %d\r\n\r\n" % lines
    answer = await client.start(origin, request_head.method, head, body)
    try:
        if answer.head.status in excluding:
            return False
        await _relay(answer, exchange)
        return True
    finally:
        if not client.release_nowait(answer):
            await trio.aclose_forcefully(answer.stream)


async def _relay(answer: StreamedResponse, exchange: StreamExchange) -> None:
    head = answer.head
    no_body = exchange.head.method == "HEAD" or not status_allows_body(head.status)
    can_pass_through = head.length is not None or (head.chunked and exchange.chunks_allowed)
    if no_body or not can_pass_through:
        await _relay_reframed(answer, exchange)
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
            raise ConnectionLostError(f"{netloc(answer.origin)} sent a {exc}") from exc
        if 0 <= at < len(piece):
            piece = piece[:at]  # what comes after an answer is no part of it, and spoils the connection
        else:
            answer.reusable = at >= 0 and head.keep_alive
        await exchange.send(prefix + piece if prefix else piece)
        if at >= 0:
            exchange.complete = True
            return
        prefix = b""
        piece = await answer.receive_raw()


async def _relay_reframed(answer: StreamedResponse, exchange: StreamExchange) -> None:
    """Pass back an answer that ends with its connection, or is for a client that does not know its framing."""
    headers = answer.headers.end_to_end()
    if exchange.stamp:
        headers = without_access_control(headers)
    async with exchange.stream(answer.status, headers) as send:
        while piece := await answer.receive_some():
            await send(piece)
