"""The answer's side of one request: a whole response, or a stream that is either complete or visibly broken."""

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
"""A small answer leaves in one packet; a large one is not copied."""

_FRAMING: Final = frozenset({"transfer-encoding", "connection"})
"""What the exchange says of its own answer; a handler's words do not count."""

_FRAMING_AND_LENGTH: Final = _FRAMING | {"content-length"}


class Exchange(Protocol):
    """One request and the one answer that it gets."""

    @property
    def request(self) -> Request:
        """What the client asked."""
        ...

    async def respond(self, response: Response) -> None:
        """Answer at once; a second answer is a bug and raises RuntimeError."""
        ...

    def stream(self, status: int, headers: Headers) -> AbstractAsyncContextManager[SendChunk]:
        """Answer piece by piece: the head is sent on entry, each chunk as it comes, the clean end on exit.

        An exception in the body breaks the connection off, so that a client never takes half an answer for a whole one.
        With a Content-Length among `headers` the body is sent plain and must have exactly that length.
        """
        ...


Handler = Callable[[Exchange], Awaitable[None]]
"""Answers one request; cancelled when the client goes away (half-closing counts)."""


@attrs.define(eq=False, slots=False)  # a cached property keeps its value in the instance's dict
class StreamExchange:
    """The `Exchange` of one request on a real stream.

    Attributes:
        head: The request's head.
        body: Its body.
        scope: The handler's cancel scope; a write to a client that is gone cancels it.
        begun: Bytes of the answer may be on the wire.
        complete: The answer is on the wire, to its clean end.
        keep_alive: The client may send another request after this answer.
        stamp: Header lines that the answer carries beside its own.
        peer: The address that the request comes from; "" when there is none.
    """

    head: RequestHead
    body: bytes
    _stream: trio.abc.SendStream
    _limits: Limits
    scope: trio.CancelScope = attrs.field(kw_only=True)
    keep_alive: bool = attrs.field(kw_only=True)
    stamp: bytes = attrs.field(default=b"", kw_only=True)
    peer: str = attrs.field(default="", kw_only=True)
    begun: bool = attrs.field(default=False, init=False)
    complete: bool = attrs.field(default=False, init=False)
    _hub_stream: HubStream | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._hub_stream = self._stream if isinstance(self._stream, HubStream) else None

    @cached_property
    def request(self) -> Request:
        """What the client asked, as a value; a proxy needs none."""
        return Request(self.head.method, self.head.target, self.head.headers, self.body)

    @property
    def chunks_allowed(self) -> bool:
        """Whether the client understands chunks."""
        return self.head.version == "1.1"

    async def respond(self, response: Response) -> None:
        """Answer at once."""
        headers, body, no_body = response.headers, response.body, self.head.method == "HEAD"
        if not status_allows_body(response.status):
            lines, body = headers.lines_without(_FRAMING_AND_LENGTH), b""
        elif no_body and "content-length" in headers:
            lines, body = headers.lines_without(_FRAMING), b""
        else:
            lines = headers.lines_without(_FRAMING_AND_LENGTH)
            lines.append(("Content-Length", str(len(body))))
            body = b"" if no_body else body
        head = self.begin(response.status, encode_lines(lines))
        if len(body) < _JOIN_BELOW_BYTES:
            await self.send(head + body)
        else:
            await self.send(head)
            await self.send(body)
        self.complete = True

    @asynccontextmanager
    async def stream(self, status: int, headers: Headers) -> AsyncIterator[SendChunk]:
        """Answer piece by piece."""
        no_body = self.head.method == "HEAD" or not status_allows_body(status)
        length = headers.get("content-length")
        chunked = length is None and not no_body and self.chunks_allowed
        if length is None and not no_body and not chunked:
            self.keep_alive = False  # the end of the connection is the end of the body
        lines = encode_lines(headers.lines_without(_FRAMING))
        await self.send(self.begin(status, lines + b"Transfer-Encoding: chunked\r\n" if chunked else lines))
        sent_bytes = 0

        async def send_chunk(data: bytes) -> None:
            nonlocal sent_bytes
            sent_bytes += len(data)
            if not data or no_body:  # an empty chunk would be the end
                await trio.lowlevel.checkpoint()
            elif chunked:
                await self.send(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                await self.send(data)

        yield send_chunk
        if length is not None and not no_body and sent_bytes != int(length):
            raise RuntimeError(f"the answer promised {length} bytes and has {sent_bytes}")
        if chunked:
            await self.send(b"0\r\n\r\n")
        self.complete = True

    def begin(self, status: int, lines: bytes) -> bytes:
        """Return the head of the answer, to be sent before anything else; `lines` frame the body.

        Raises:
            RuntimeError: There is an answer already.
        """
        if self.begun:
            raise RuntimeError(f"{self.head.method} {self.head.target} is answered twice")
        self.begun = True
        close = b"" if self.keep_alive else b"Connection: close\r\n"
        return b"%b%b%b%b\r\n" % (status_line(status), lines, self.stamp, close)

    async def send(self, data: bytes) -> None:
        """Send bytes of the answer as they are.

        Raises:
            ClientGoneError: The client is gone, and this task is shielded: without a shield it is cancelled instead.
        """
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
        """The client is gone, or reads so slowly that it may as well be: one behaviour for both."""
        self.scope.cancel(reason="the client has gone, or does not read")
        await trio.lowlevel.checkpoint()
        raise ClientGoneError("the client closed the connection during its answer")  # only a shielded handler gets here
