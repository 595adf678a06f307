"""An httpx transport over a handler in memory: no socket and no thread, so virtual time stays exact.

The same handler answers kubectl over TLS and a simulation here. A request is a task of the transport; a client that
goes away (its call cancelled, its stream closed) cancels the task, as a closed connection would.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import httpx
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.http.exchange import Handler, SendChunk
from llmkube.base.http.message import Headers, Request, Response


@asynccontextmanager
async def open_transport(handler: Handler) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """Open an httpx transport over the handler; leaving the block cancels requests in flight."""
    async with trio.open_nursery() as nursery:
        yield _Transport(handler, nursery)
        nursery.cancel_scope.cancel()


class _Transport(httpx.AsyncBaseTransport):
    """Runs each request as a task in the nursery of `open_transport`."""

    def __init__(self, handler: Handler, nursery: trio.Nursery) -> None:
        self._handler = handler
        self._nursery = nursery

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw])
        target = request.url.raw_path.decode("ascii")
        exchange = _MemoryExchange(Request(request.method, target, headers, body))
        self._nursery.start_soon(exchange.run, self._handler)
        try:
            head = await exchange.wait_head()
        except BaseException:  # a cancelled client cancels its request
            exchange.abandon()
            raise
        if head.body is not None:
            return httpx.Response(head.status, headers=list(head.headers), content=head.body)
        return httpx.Response(head.status, headers=list(head.headers), stream=_Body(exchange))


@attrs.frozen
class _Head:
    status: int
    headers: Headers
    body: bytes | None = None  # the whole body; None for a stream


class _MemoryExchange:
    """The server's side of one request, answered over a channel instead of a socket."""

    def __init__(self, request: Request) -> None:
        self._scope = trio.CancelScope()
        self._request = request
        self._head: _Head | None = None
        self._head_ready = trio.Event()
        self._finished = False
        # No buffer: a handler that streams waits for its reader, as it would for a full socket
        self._send, self._receive = trio.open_memory_channel[bytes](0)

    @property
    def request(self) -> Request:
        return self._request

    async def run(self, handler: Handler) -> None:
        """Run the handler to its end; a client that has disconnected is not an error."""
        try:
            with self._scope:
                await handler(self)
        except ExternalError:
            pass  # as when a connection is lost: next_chunk() or wait_head() reports it to the reader
        finally:
            self._head_ready.set()
            self._send.close()

    async def wait_head(self) -> _Head:
        await self._head_ready.wait()
        if self._head is None:
            raise httpx.RemoteProtocolError("the server closed the connection without a response")
        return self._head

    async def respond(self, response: Response) -> None:
        await trio.lowlevel.checkpoint()
        self._begin(_Head(response.status, response.headers, response.body))

    def _begin(self, head: _Head) -> None:
        assert self._head is None, "one response to one request"
        self._head = head
        self._head_ready.set()

    @asynccontextmanager
    async def stream(self, status: int, headers: Headers) -> AsyncIterator[SendChunk]:
        self._begin(_Head(status, headers))
        yield self._send.send
        self._finished = True

    async def next_chunk(self) -> bytes:
        """Return the next chunk; b"" at the clean end."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            if self._finished:
                return b""
            raise httpx.ReadError("the server ended its response early") from None

    def abandon(self) -> None:
        """Cancel the handler, because its reader is gone."""
        self._scope.cancel()


class _Body(httpx.AsyncByteStream):
    """Iterates as itself: the garbage collector would have to finalise an abandoned async generator."""

    def __init__(self, exchange: _MemoryExchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._exchange.next_chunk()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        self._exchange.abandon()
        await trio.lowlevel.checkpoint()
