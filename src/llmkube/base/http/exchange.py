"""The answer's side of one request: a whole response, or a stream that is either complete or visibly broken."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio

from llmkube.base.http.errors import ClientGoneError
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Request, Response, encode_response_head, status_allows_body

SendChunk = Callable[[bytes], Awaitable[None]]
_JOIN_BELOW_BYTES = 64 * 1024  # a small answer leaves in one packet; a large one is not copied


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
"""Answers one request, in a cancel scope of its own: cancelled when the client goes away (half-closing counts)."""


class StreamExchange:
    """The `Exchange` of one request on a real stream.

    Attributes:
        scope: The handler's cancel scope; a write to a client that is gone cancels it.
        begun: Bytes of the answer may be on the wire.
        complete: The answer is on the wire, to its clean end.
        keep_alive: The client may send another request after this answer.
    """

    def __init__(
        self,
        request: Request,
        stream: trio.abc.SendStream,
        limits: Limits,
        *,
        scope: trio.CancelScope,
        keep_alive: bool,
        chunks_allowed: bool,
    ) -> None:
        self.scope = scope
        self.begun = False
        self.complete = False
        self.keep_alive = keep_alive
        self._request = request
        self._stream = stream
        self._limits = limits
        self._chunks_allowed = chunks_allowed

    @property
    def request(self) -> Request:
        """What the client asked."""
        return self._request

    async def respond(self, response: Response) -> None:
        """Answer at once."""
        headers, body = response.headers.without("transfer-encoding", "connection"), response.body
        if not status_allows_body(response.status):
            headers, body = headers.without("content-length"), b""
        elif self._request.method == "HEAD":
            headers = headers if "content-length" in headers else headers.with_("Content-Length", str(len(body)))
            body = b""
        else:
            headers = headers.with_("Content-Length", str(len(body)))
        head = self._begin(response.status, headers)
        if len(body) < _JOIN_BELOW_BYTES:
            await self._send(head + body)
        else:
            await self._send(head)
            await self._send(body)
        self.complete = True

    @asynccontextmanager
    async def stream(self, status: int, headers: Headers) -> AsyncIterator[SendChunk]:
        """Answer piece by piece."""
        headers = headers.without("transfer-encoding", "connection")
        silent = self._request.method == "HEAD" or not status_allows_body(status)
        length = headers.get("content-length")
        chunked = length is None and not silent and self._chunks_allowed
        if chunked:
            headers = headers.with_("Transfer-Encoding", "chunked")
        elif length is None and not silent:
            self.keep_alive = False  # the end of the connection is the end of the body
        await self._send(self._begin(status, headers))
        sent_bytes = 0

        async def send_chunk(data: bytes) -> None:
            nonlocal sent_bytes
            sent_bytes += len(data)
            if not data or silent:  # an empty chunk would be the end
                await trio.lowlevel.checkpoint()
            elif chunked:
                await self._send(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                await self._send(data)

        yield send_chunk
        if length is not None and not silent and sent_bytes != int(length):
            raise RuntimeError(f"the answer promised {length} bytes and has {sent_bytes}")
        if chunked:
            await self._send(b"0\r\n\r\n")
        self.complete = True

    def _begin(self, status: int, headers: Headers) -> bytes:
        if self.begun:
            raise RuntimeError(f"{self._request.method} {self._request.target} is answered twice")
        head = encode_response_head(status, headers if self.keep_alive else headers.with_("Connection", "close"))
        self.begun = True
        return head

    async def _send(self, data: bytes) -> None:
        with trio.move_on_after(self._limits.send_stall_seconds):
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            else:
                return
        # The client is gone, or reads so slowly that it may as well be: one behaviour for both, the scope is cancelled.
        self.scope.cancel()
        await trio.lowlevel.checkpoint()
        raise ClientGoneError("the client closed the connection during its answer")  # only a shielded handler gets here
