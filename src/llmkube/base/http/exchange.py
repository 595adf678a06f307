"""The response to one request: whole, or a stream that ends either complete or visibly broken."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from typing import Final, Protocol

import attrs
import trio

from llmkube.base.http.errors import ClientGoneError
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.hub import BROKEN, HubStream
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Request, Response, encode_lines, status_allows_body, status_line

SendChunk = Callable[[bytes], Awaitable[None]]

_JOIN_BELOW_BYTES: Final = 64 * 1024
"""A smaller body is sent in one packet with its head; a larger one is not copied."""

_FRAMING: Final = frozenset({"transfer-encoding", "connection"})
"""Headers that the exchange sets itself; those of a handler are ignored."""

_FRAMING_AND_LENGTH: Final = _FRAMING | {"content-length"}


class Exchange(Protocol):
    """One request and its response."""

    @property
    def request(self) -> Request:
        """The client's request."""
        ...

    async def respond(self, response: Response) -> None:
        """Send a whole response; a second response is a bug and raises RuntimeError."""
        ...

    def stream(self, status: int, headers: Headers) -> AbstractAsyncContextManager[SendChunk]:
        """Stream a response: the head is sent on entry, each chunk as it comes, the clean end on exit.

        On an exception the connection is closed, so that a client never takes a truncated response for a complete one.
        With a Content-Length in `headers`, the body is sent without chunks and must have exactly that length.
        """
        ...


Handler = Callable[[Exchange], Awaitable[None]]
"""Answers one request; cancelled when the client disconnects, or half-closes the connection."""


@attrs.define(eq=False, slots=False)  # a cached property keeps its value in the instance's dict
class StreamExchange:
    """The `Exchange` of one request on a real stream.

    Attributes:
        head: Head of the request.
        body: Body of the request.
        scope: Cancel scope of the handler; a write to a disconnected client cancels it.
        begun: Part of the response may have been sent.
        complete: All of the response was sent, to its clean end.
        arrived_at: When the request had been read.
        keep_alive: The client may send another request after this response.
        stamp: Header lines to add to the response.
        peer: Address that the request comes from; "" if it has none.
        owner: The same with the client's user, where the server knows it.
        client: Identity of the client, set by a handler that has authenticated it; None if none has.
        about: Name of the model or object that the request is about, set by a handler for logs.
        status: Status of the response; 0 before it begins.
        observer: Gets the bytes of the response before they are sent; None if nothing observes it.
    """

    head: RequestHead
    body: bytes
    _stream: trio.abc.SendStream
    _limits: Limits
    scope: trio.CancelScope = attrs.field(kw_only=True)
    keep_alive: bool = attrs.field(kw_only=True)
    stamp: bytes = attrs.field(default=b"", kw_only=True)
    peer: str = attrs.field(default="", kw_only=True)
    owner: str = attrs.field(default="", kw_only=True)
    client: object = attrs.field(default=None, init=False)
    about: str = attrs.field(default="", init=False)
    status: int = attrs.field(default=0, init=False)
    observer: Callable[[bytes], None] | None = attrs.field(default=None, init=False)
    begun: bool = attrs.field(default=False, init=False)
    complete: bool = attrs.field(default=False, init=False)
    arrived_at: float = attrs.field(factory=trio.current_time, init=False)
    _hub_stream: HubStream | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._hub_stream = self._stream if isinstance(self._stream, HubStream) else None

    @cached_property
    def request(self) -> Request:
        """The client's request as a value, made on first use: a proxy does not need it."""
        return Request(self.head.method, self.head.target, self.head.headers, self.body)

    @property
    def chunks_allowed(self) -> bool:
        """Whether the client understands chunks."""
        return self.head.version == "1.1"

    async def respond(self, response: Response) -> None:
        """Send a whole response."""
        headers, has_body = response.headers, status_allows_body(response.status)
        if has_body and self.head.method == "HEAD" and "content-length" in headers:
            await self._respond(response.status, encode_lines(headers.lines_without(_FRAMING)), b"")
            return
        respond = self.respond_with if has_body else self._respond
        lines = encode_lines(headers.lines_without(_FRAMING_AND_LENGTH))
        await respond(response.status, lines, response.body if has_body else b"")

    async def respond_with(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole response with a body; `lines` are its encoded header lines, without those for framing."""
        lines = b"%bContent-Length: %d\r\n" % (lines, len(body))
        await self._respond(status, lines, b"" if self.head.method == "HEAD" else body)

    async def _respond(self, status: int, lines: bytes, body: bytes) -> None:
        head = self.begin(status, lines)
        if len(body) < _JOIN_BELOW_BYTES:
            await self.send(head + body)
        else:
            await self.send(head)
            await self.send(body)
        self.complete = True

    @asynccontextmanager
    async def stream(self, status: int, headers: Headers) -> AsyncIterator[SendChunk]:
        """Stream a response."""
        no_body = self.head.method == "HEAD" or not status_allows_body(status)
        length = headers.get("content-length")
        chunked = length is None and not no_body and self.chunks_allowed
        if length is None and not no_body and not chunked:
            self.keep_alive = False  # the body ends with the connection
        lines = encode_lines(headers.lines_without(_FRAMING))
        await self.send(self.begin(status, lines + b"Transfer-Encoding: chunked\r\n" if chunked else lines))
        sent_bytes = 0

        async def send_chunk(data: bytes) -> None:
            nonlocal sent_bytes
            sent_bytes += len(data)
            if not data or no_body:  # an empty chunk would end the body
                await trio.lowlevel.checkpoint()
            elif chunked:
                await self.send(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                await self.send(data)

        yield send_chunk
        if length is not None and not no_body and sent_bytes != int(length):
            raise RuntimeError(f"the response has {sent_bytes} bytes, and its Content-Length is {length}")
        if chunked:
            await self.send(b"0\r\n\r\n")
        self.complete = True

    def begin(self, status: int, lines: bytes) -> bytes:
        """Return the encoded head of the response, to be sent before its body; `lines` include the body's framing.

        Raises:
            RuntimeError: The request has a response already.
        """
        if self.begun:
            raise RuntimeError(f"{self.head.method} {self.head.target} is answered twice")
        self.begun, self.status = True, status
        close = b"" if self.keep_alive else b"Connection: close\r\n"
        return b"%b%b%b%b\r\n" % (status_line(status), lines, self.stamp, close)

    async def send(self, data: bytes) -> None:
        """Send bytes of the response as they are.

        Raises:
            ClientGoneError: The client is gone, and this task is shielded: without a shield it is cancelled instead.
        """
        if self.observer is not None:
            self.observer(data)
        if self._hub_stream is not None:
            try:
                sent = self._hub_stream.send_nowait(data)
            except BROKEN:
                await self._give_up()
                return
            if sent == len(data):
                return
            await self._send_slowly(self._hub_stream.send_rest(memoryview(data)[sent:]))
        else:
            await self._send_slowly(self._stream.send_all(data))

    async def _send_slowly(self, sending: Awaitable[None]) -> None:
        with trio.move_on_after(self._limits.send_stall_seconds):
            try:
                await sending
            except BROKEN:
                pass
            else:
                return
        await self._give_up()

    async def _give_up(self) -> None:
        """Cancel the handler: the client has disconnected, or does not read."""
        self.scope.cancel(reason="the client has disconnected, or does not read")
        await trio.lowlevel.checkpoint()
        raise ClientGoneError("the client disconnected during the response")  # reached only by a shielded handler
