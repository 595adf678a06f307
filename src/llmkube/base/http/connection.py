"""One client's connection: requests are taken and answered strictly one after the other.

```
 run ─ scope                     its end is the connection's: between two requests after a time
       ├ head                    the `judge` may refuse it before a byte of the body is read
       ├ body                    bounded in size, in time by its length, and in memory together with all others
       └ handler                 the client's end cancels the scope
```

A stream of a hub tells of its client's end. With any other stream a task reads ahead while the handler works.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import ExternalError, leaves
from llmkube.base.http.bodies import request_body
from llmkube.base.http.errors import ClientGoneError, MalformedError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import HeadCache, HeadReader, RequestHead, read_request
from llmkube.base.http.hub import BROKEN, HubStream, below_tls
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Response, encode_lines, status_line
from llmkube.base.http.tls import RECEIVE_BYTES

StreamHandler = Callable[[StreamExchange], Awaitable[None]]
"""A `Handler` that may use what only a real connection has."""

RequestFilter = Callable[[RequestHead, str], Response | None]
"""Refuses a request by its head and its peer's address alone, with the answer to give; None lets it in."""

Stamp = Callable[[RequestHead], bytes]
"""Returns the header lines that every answer to a request carries: a handler's, a refusal, an error of the server."""

MalformedHandler = Callable[[RequestHead | None, str, int, str], Awaitable[Response]]
"""Returns what the client of a request is told that cannot be read.

It gets the head where that came, the peer's address, the status and the words.
"""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def accept_all(head: RequestHead, peer: str) -> None:
    """Refuse no request."""


async def plain_text_error(  # noqa: ASYNC124 (an Unread)
    head: RequestHead | None, peer: str, status: int, message: str
) -> Response:
    """Tell why a request cannot be read, in a line of text."""
    return Response.text(status, f"{message}\n")


def no_common_lines(head: RequestHead) -> bytes:
    """Add no lines to any answer."""
    return b""


@attrs.define(eq=False)
class IdleConnections:
    """The idle connections of one server: each is ended once it has waited too long, the longest waiting first.

    One task looks after all. To set a deadline of Trio's for each request, and to take it back, costs more than to read
    the request's head.

    Attributes:
        seconds: How long one may be idle.
    """

    seconds: float
    _since: dict["Connection", float] = attrs.field(factory=dict)  # the longest waiting first

    def begin(self, connection: "Connection") -> None:
        """Note that a connection waits from now on."""
        self._since[connection] = trio.current_time()

    def end(self, connection: "Connection") -> None:
        """Note that it waits no more."""
        self._since.pop(connection, None)

    async def run(self) -> NoReturn:
        """End each connection at the moment when its time is over, until cancelled."""
        while True:
            now = trio.current_time()
            # What begins to wait from here on is over later than this.
            wake_at = now + self.seconds
            for connection, since in list(self._since.items()):
                if since + self.seconds > now:
                    wake_at = since + self.seconds
                    break
                self.end(connection)
                connection.close_waiting()
            await trio.sleep_until(wake_at)


@attrs.define(eq=False)
class ServerContext:
    """What the connections of one server share.

    Attributes:
        handler: Answers requests.
        limits: What clients may cost.
        judge: Refuses requests by their heads.
        stamp: What every answer carries.
        unread: What is told of a request that cannot be read.
        heads: What was made of the last heads.
        idle: Ends those that wait too long for a request; whoever opens connections runs it as a task.
        body_bytes: How much of requests' bodies is in memory now.
    """

    handler: StreamHandler
    limits: Limits
    judge: RequestFilter = accept_all
    stamp: Stamp = no_common_lines
    unread: MalformedHandler = plain_text_error
    heads: HeadCache[RequestHead] = attrs.field(init=False)
    idle: IdleConnections = attrs.field(init=False)
    body_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        self.heads = HeadCache(self.limits, read_request)
        self.idle = IdleConnections(self.limits.idle_seconds)


class Phase(Enum):
    """What a connection waits for."""

    IDLE = "the next request"
    RECEIVING = "the rest of a request"
    ANSWERING = "its handler"


class Connection:
    """One client's connection.

    Attributes:
        phase: What it waits for.
        peer_host: The address at its other end; "" when there is none, or none any more.
    """

    def __init__(self, service: ServerContext, stream: trio.abc.Stream) -> None:
        self.phase = Phase.IDLE
        self.peer_host = _peer_host(stream)
        self._context = service
        self._limits = service.limits
        self._stream = stream
        self._early = b""  # received, and belongs to the next request
        self._body_bytes = 0  # of this request, in memory
        self._stopping = False
        self._stamp = b""  # of the request that is read or answered
        self._scope = trio.CancelScope()
        self._answer: StreamExchange | None = None

    def stop_nowait(self) -> None:
        """End the connection: at once when it is idle, else after the answer in progress."""
        self._stopping = True
        if self.phase is Phase.IDLE:
            self._scope.cancel(reason="the server stops, or makes room")
        if self._answer is not None:
            self._answer.keep_alive = False

    def close_waiting(self) -> None:
        """End the connection, for another one: it waits for its client."""
        self._stopping = True
        self._scope.cancel(reason="it waits while others have something to say")

    async def run(self) -> None:
        """Serve until either side ends the connection; no client can make this raise, and the stream ends closed."""
        if isinstance(connection := below_tls(self._stream), HubStream):
            connection.on_end = self._scope.cancel
        linger = False
        try:
            with self._scope:
                linger = await self._serve_requests()
            if linger:
                await self._linger()
        except BROKEN:
            pass  # the client is gone
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _serve_requests(self) -> bool:
        """Answer requests until one is the last; True when the client should get the time to read that answer."""
        head: RequestHead | None = None
        try:
            while not self._stopping:
                head = None  # of the request before
                head = await self._receive_head()
                if head is None:
                    return False
                self._stamp = self._context.stamp(head)
                refusal = self._context.judge(head, self.peer_host)
                if refusal is not None:
                    await self._respond_last(refusal)
                    return True
                try:
                    body = await self._receive_body(head)
                    if self._stopping and self._scope.cancel_called:
                        return False  # it was ended at the moment when the request came: nothing of it has begun
                    answer = await self._serve(head, body)
                finally:
                    self._release_body()
                if not answer.complete:
                    return False  # broken off: the client must not see a clean end
                if not answer.keep_alive:
                    return True
        except MalformedError as exc:
            await self._respond_last(await self._context.unread(head, self.peer_host, exc.status, str(exc)))
            return True
        return False

    async def _receive(self) -> bytes:
        return bytes(await self._stream.receive_some(RECEIVE_BYTES))

    # -- the request --------------------------------------------------------------------------------------------------

    async def _receive_head(self) -> RequestHead | None:
        """Wait for the next request's head; None when the client has no more requests, or dawdles between them."""
        data, self._early, self._stamp = self._early, b"", b""
        if not data:
            self.phase = Phase.IDLE
            self._context.idle.begin(self)
            try:
                data = await self._receive()
            finally:
                self._context.idle.end(self)
            if not data:
                return None
        found = self._context.heads.find(data)
        if found is not None:
            head, self._early = found
            return head
        self.phase = Phase.RECEIVING
        reader = HeadReader.for_requests(self._limits)
        with trio.move_on_after(self._limits.head_seconds):
            while data:
                rest = reader.feed(data)
                if rest is not None:
                    self._early = rest
                    return reader.request()
                data = await self._receive()
            return None
        raise MalformedError(408, f"the request head took longer than {self._limits.head_seconds:g} seconds")

    async def _receive_body(self, head: RequestHead) -> bytes:
        limits = self._limits
        decoder = request_body(head, limits.max_body_bytes)
        if head.expectations - {"100-continue"}:
            raise MalformedError(417, "the only expectation met here is 100-continue")
        if head.expectations and decoder.rest is None and not self._early:
            await self._stream.send_all(status_line(100) + b"\r\n")
        data, self._early = self._early, b""
        body = decoder.feed(data)
        if decoder.rest is None:
            self.phase, started_at, pieces = Phase.RECEIVING, trio.current_time(), [body]
            self._count_body(len(body))
            with trio.CancelScope() as stall_scope:
                while decoder.rest is None and self._body_bytes <= limits.max_body_bytes:
                    stall_scope.deadline = limits.body_deadline(started_at, trio.current_time(), self._body_bytes)
                    if not (data := await self._receive()):
                        decoder.feed_eof()
                    pieces.append(decoder.feed(data))
                    self._count_body(len(pieces[-1]))
            if stall_scope.cancelled_caught:
                raise MalformedError(408, limits.slow_body_message)
            body = b"".join(pieces)
        if len(body) > limits.max_body_bytes:
            raise MalformedError(413, f"the body is larger than {limits.max_body_bytes} bytes")
        self._early = decoder.rest or b""
        return body

    def _count_body(self, size: int) -> None:
        """Count what came of a body that did not come at once."""
        service, limit = self._context, self._limits.max_bodies_bytes
        self._body_bytes += size
        service.body_bytes += size
        if service.body_bytes > limit:
            raise MalformedError(503, f"the bodies of all requests together are larger than {limit} bytes; try again")

    def _release_body(self) -> None:
        self._context.body_bytes -= self._body_bytes
        self._body_bytes = 0

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def _serve(self, head: RequestHead, body: bytes) -> StreamExchange:
        """Run the handler while watching the client; ends in every case, with what became of the answer."""
        self.phase = Phase.ANSWERING
        keep_alive = head.keep_alive and not self._stopping
        answer = self._answer = StreamExchange(
            head,
            body,
            self._stream,
            self._limits,
            scope=self._scope,
            keep_alive=keep_alive,
            stamp=self._stamp,
            peer=self.peer_host,
        )
        if isinstance(below_tls(self._stream), HubStream):
            await self._handle(answer)
        else:
            async with trio.open_nursery() as nursery:
                answer.scope = nursery.cancel_scope
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._handle(answer)
                nursery.cancel_scope.cancel(reason="the answer is complete")
        self._answer = None
        return answer

    async def _watch(self, handling: trio.CancelScope) -> None:
        """Cancel the handler when the client goes away; what it sends ahead is kept, up to a bound."""
        while len(self._early) < self._limits.max_early_bytes:
            try:
                data = await self._receive()
            except BROKEN:
                data = b""
            if not data:
                handling.cancel(reason="the client has gone")
                return
            self._early += data

    async def _handle(self, answer: StreamExchange) -> None:
        """Contain a failing handler: it costs its own request and nothing else.

        This is the server's one broad catch. A request is a unit of failure: a bug that one client can trigger must not
        take every other client's connection with it. `except*` takes the errors out of a group and leaves a `Cancelled`
        in it to travel on.
        """
        try:
            await self._context.handler(answer)
            if not answer.begun:
                raise RuntimeError("the handler returned without an answer")
        except* ClientGoneError:
            _log_of(answer).debug("the client went away")
        except* ExternalError as errors:
            answer.keep_alive = False
            _log_of(answer).warning("request failed", error="; ".join(map(str, leaves(errors))))
        except* Exception:
            answer.keep_alive = False
            log = _log_of(answer)
            log.exception("request handler crashed")
        if not answer.begun:
            await answer.respond(Response.text(500, "internal error; the server's log has the details\n"))

    async def _respond_last(self, response: Response) -> None:
        """Answer a request of which nothing more is read."""
        headers = response.headers.with_("Content-Length", str(len(response.body))).with_("Connection", "close")
        with trio.move_on_after(self._limits.send_stall_seconds):
            lines = encode_lines(headers) + self._stamp
            await self._stream.send_all(b"%b%b\r\n%b" % (status_line(response.status), lines, response.body))

    async def _linger(self) -> None:
        """Let the client read the last answer: a socket closed with unread input sends a reset that can destroy it."""
        with trio.move_on_after(self._limits.linger_seconds):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
                while await self._receive():
                    pass
            else:  # TLS says goodbye in its own words
                await self._stream.aclose()


def _log_of(answer: StreamExchange) -> structlog.stdlib.BoundLogger:
    bound: structlog.stdlib.BoundLogger = _log.bind(method=answer.head.method, path=answer.head.path)
    return bound


def _peer_host(stream: trio.abc.Stream) -> str:
    connection = below_tls(stream)
    if isinstance(connection, HubStream):
        return connection.peer_host
    try:
        return str(connection.socket.getpeername()[0]) if isinstance(connection, trio.SocketStream) else ""
    except OSError:
        return ""  # it has gone already
