"""An HTTP/1.1 server on Trio: one task per connection, one request at a time, every wait bounded.

```
run_server                       cancelled by its owner
├ accept loops                   end at once; the listeners close
└ connections, shielded          idle ones end at once, requests in flight get `drain_seconds`
   └ connection                  reads a request, answers it, reads the next
      ├ handler                  in the scope that the client's disconnect cancels
      └ watch                    reads ahead while the handler works: that is how a disconnect shows
```
"""

from collections.abc import Sequence
from typing import NoReturn

import httptools
import structlog
import trio

from llmkube.base.errors import OUT_OF_RESOURCES, WorldError
from llmkube.base.http.bodies import request_body
from llmkube.base.http.errors import ClientGoneError, MalformedError
from llmkube.base.http.exchange import Handler, StreamExchange
from llmkube.base.http.heads import HeadReader, RequestHead
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Request, Response, encode_response_head

_RECEIVE_BYTES = 64 * 1024
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)
_log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def run_server(
    handler: Handler,
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    *,
    limits: Limits = Limits(),  # noqa: B008 (a frozen value)
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve until cancelled, then stop in order: listeners close, idle connections close, requests in flight drain.

    Takes ownership of the listeners (any Trio listener, `trio.SSLListener` too). `started()` is called when connections
    are being accepted. After a cancel this lasts up to `limits.drain_seconds`, and no longer.

    Args:
        handler: Answers each request; an exception from it costs that request only.
        listeners: At least one.
        limits: What clients may cost.
        task_status: For `nursery.start`.
    """
    if not listeners:
        raise ValueError("a server needs a listener")
    slots = trio.Semaphore(limits.max_connections)
    arrivals_in, arrivals_out = trio.open_memory_channel[trio.abc.Stream](limits.max_connections)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_connections, handler, arrivals_out, slots, limits)
        with arrivals_in:  # its closing, after the listeners', is what tells the connections to stop
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(_run_accept, listener, arrivals_in, slots)
                task_status.started()
    raise AssertionError("accepting ends by cancellation only")


async def serve_connection(
    handler: Handler,
    stream: trio.abc.Stream,
    limits: Limits = Limits(),  # noqa: B008 (a frozen value)
) -> None:
    """Serve one connection until either side ends it; no client can make this raise, and the stream ends closed."""
    await _Connection(handler, stream, limits).run()


async def _run_accept(
    listener: trio.abc.Listener[trio.abc.Stream],
    arrivals: trio.MemorySendChannel[trio.abc.Stream],
    slots: trio.Semaphore,
) -> NoReturn:
    async with listener:
        while True:
            await slots.acquire()
            try:
                stream = await listener.accept()
            except OSError as exc:
                if exc.errno not in OUT_OF_RESOURCES:
                    raise
                slots.release()
                _log.warning("cannot accept a connection", error=str(exc))
                await trio.sleep(0.1)  # it would fail again at once; connections that end give resources back
            else:
                arrivals.send_nowait(stream)  # never full: there is a place for every slot


async def _run_connections(
    handler: Handler,
    arrivals: trio.MemoryReceiveChannel[trio.abc.Stream],
    slots: trio.Semaphore,
    limits: Limits,
) -> None:
    """Serve what arrives; when arrivals end, give the requests in flight their time."""
    live: set[_Connection] = set()

    async def serve(connection: _Connection) -> None:
        try:
            await connection.run()
        finally:
            live.discard(connection)
            slots.release()

    # The shield outlives the server's cancel until its deadline, which is set the moment that arrivals end.
    with trio.CancelScope(shield=True) as shield:
        async with trio.open_nursery() as nursery:
            async for stream in arrivals:
                connection = _Connection(handler, stream, limits)
                live.add(connection)
                nursery.start_soon(serve, connection)
            shield.deadline = trio.current_time() + limits.drain_seconds
            for connection in live:
                connection.stop_nowait()
            in_flight = len(live)
    if shield.cancelled_caught:
        _log.warning("requests cut off after the drain time", connections=in_flight, seconds=limits.drain_seconds)


class _Connection:
    """One client's connection: requests are taken and answered strictly one after the other."""

    def __init__(self, handler: Handler, stream: trio.abc.Stream, limits: Limits) -> None:
        self._handler = handler
        self._stream = stream
        self._limits = limits
        self._early = b""  # received, and belongs to the next request
        self._stopping = False
        self._idle = trio.CancelScope()
        self._answer: StreamExchange | None = None

    def stop_nowait(self) -> None:
        """End the connection: at once when it is idle, else after the answer in progress."""
        self._stopping = True
        self._idle.cancel()
        if self._answer is not None:
            self._answer.keep_alive = False

    async def run(self) -> None:
        try:
            if await self._converse():
                await self._linger()
        except _BROKEN:
            pass  # the client is gone
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _converse(self) -> bool:
        """Answer requests until one is the last; True when the client should get the time to read that answer."""
        try:
            while not self._stopping:
                head = await self._receive_head()
                if head is None:
                    return False
                request = await self._receive_body(head)
                answer = await self._serve(request, head)
                if not answer.complete:
                    return False  # broken off: the client must not see a clean end
                if not answer.keep_alive:
                    return True
        except MalformedError as exc:
            await self._refuse(exc)
            return True
        return False

    async def _receive(self) -> bytes:
        return bytes(await self._stream.receive_some(_RECEIVE_BYTES))

    async def _receive_head(self) -> RequestHead | None:
        """Wait for the next request's head; None when the client has no more requests, or dawdles between them."""
        data, self._early = self._early, b""
        if not data:
            with trio.move_on_after(self._limits.idle_seconds) as self._idle:
                data = await self._receive()
        reader = HeadReader(httptools.HttpRequestParser, self._limits)
        with trio.move_on_after(self._limits.head_seconds):
            while data:
                rest = reader.feed(data)
                if rest is not None:
                    self._early = rest
                    return reader.request()
                data = await self._receive()
            return None
        raise MalformedError(408, f"the request head took longer than {self._limits.head_seconds:g} seconds")

    async def _receive_body(self, head: RequestHead) -> Request:
        limits = self._limits
        decoder = request_body(head, limits.max_body_bytes)
        expectations = head.headers.tokens("expect") if head.version == "1.1" else frozenset()
        if expectations - {"100-continue"}:
            raise MalformedError(417, "the only expectation met here is 100-continue")
        if expectations and decoder.rest is None and not self._early:
            await self._stream.send_all(encode_response_head(100, Headers()))
        data, self._early = self._early, b""
        body = bytearray(decoder.feed(data))
        while decoder.rest is None and len(body) <= limits.max_body_bytes:
            with trio.move_on_after(limits.body_stall_seconds) as patience:
                data = await self._receive()
            if patience.cancelled_caught:
                raise MalformedError(408, f"no more of the body came for {limits.body_stall_seconds:g} seconds")
            if not data:
                decoder.feed_eof()
            body += decoder.feed(data)
        if len(body) > limits.max_body_bytes:
            raise MalformedError(413, f"the body is larger than {limits.max_body_bytes} bytes")
        self._early = decoder.rest or b""
        return Request(head.method, head.target, head.headers, bytes(body))

    async def _serve(self, request: Request, head: RequestHead) -> StreamExchange:
        """Run the handler while watching the client; ends in every case, with what became of the answer."""
        async with trio.open_nursery() as nursery:
            answer = self._answer = StreamExchange(
                request,
                self._stream,
                self._limits,
                scope=nursery.cancel_scope,
                keep_alive=head.keep_alive and not self._stopping,
                chunks_allowed=head.version == "1.1",
            )
            nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._handle(answer)
            nursery.cancel_scope.cancel()
        self._answer = None
        return answer

    async def _watch(self, handling: trio.CancelScope) -> None:
        """Cancel the handler when the client goes away; what it sends ahead is kept, up to a bound."""
        while len(self._early) < self._limits.max_early_bytes:
            try:
                data = await self._receive()
            except _BROKEN:
                data = b""
            if not data:
                handling.cancel()
                return
            self._early += data

    async def _handle(self, answer: StreamExchange) -> None:
        """Contain a failing handler: it costs its own request and nothing else.

        This is the server's one broad catch. A request is a unit of failure: a bug that one client can trigger must not
        take every other client's connection with it. `except*` takes the errors out of a group and leaves a `Cancelled`
        in it to travel on.
        """
        request = answer.request
        log = _log.bind(method=request.method, path=request.raw_path)
        try:
            await self._handler(answer)
            if not answer.begun:
                raise RuntimeError("the handler returned without an answer")
        except* ClientGoneError:
            log.debug("the client went away")
        except* WorldError as errors:
            answer.keep_alive = False
            log.warning("request failed", error="; ".join(map(str, _leaves(errors))))
        except* Exception:
            answer.keep_alive = False
            log.exception("request handler crashed")
        if not answer.begun:
            await answer.respond(Response.text(500, "internal error; the server's log has the details\n"))

    async def _refuse(self, error: MalformedError) -> None:
        response = Response.text(error.status, f"{error}\n")
        headers = response.headers.with_("Content-Length", str(len(response.body))).with_("Connection", "close")
        with trio.move_on_after(self._limits.send_stall_seconds):
            await self._stream.send_all(encode_response_head(error.status, headers) + response.body)

    async def _linger(self) -> None:
        """Let the client read the last answer: a socket closed with unread input sends a reset that can destroy it."""
        with trio.move_on_after(self._limits.linger_seconds):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
                while await self._receive():
                    pass
            else:  # TLS says goodbye in its own words
                await self._stream.aclose()


def _leaves(group: BaseExceptionGroup[WorldError]) -> list[Exception]:
    """Return the errors in a group without their grouping."""
    found: list[Exception] = []
    for member in group.exceptions:
        found.extend(_leaves(member) if isinstance(member, BaseExceptionGroup) else [member])
    return found
