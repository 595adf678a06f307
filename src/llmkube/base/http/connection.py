"""One client's connection: requests are handled strictly one after the other.

```
 run ─ scope                     cancelled to close the connection, such as one that is idle for too long
       ├ head                    `judge` may reject it before a byte of the body is read
       ├ body                    limited in size, in time (by its length), and in memory together with all others
       └ handler                 the client's disconnect cancels the scope
```

A `HubStream` reports the client's disconnect. With any other stream a task reads ahead while the handler runs.
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
from llmkube.base.http.limits import PROBE_PATHS, Limits
from llmkube.base.http.listen import peer_uid
from llmkube.base.http.message import Response, encode_lines, status_line
from llmkube.base.http.tls import RECEIVE_BYTES
from llmkube.base.loop_shares import current_client

StreamHandler = Callable[[StreamExchange], Awaitable[None]]
"""A `Handler` that may use features of a real connection."""

RequestFilter = Callable[[RequestHead, str], Response | None]
"""Rejects a request by its head and its peer's address, by returning the response to send; None accepts it."""

Stamp = Callable[[RequestHead], bytes]
"""Returns header lines to add to every response to a request: a handler's, a rejection, an error of the server."""

MalformedHandler = Callable[[RequestHead | None, str, int, str], Awaitable[Response]]
"""Returns the response to a malformed request.

Its arguments are the head (None if it is malformed itself), the peer's address, the status and the message.
"""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def accept_all(head: RequestHead, peer: str) -> None:
    """Accept every request."""


async def plain_text_error(  # noqa: ASYNC124 (a MalformedHandler)
    head: RequestHead | None, peer: str, status: int, message: str
) -> Response:
    """Return the error as a line of text."""
    return Response.text(status, f"{message}\n")


def no_common_lines(head: RequestHead) -> bytes:
    """Add no header lines."""
    return b""


@attrs.define(eq=False)
class IdleConnections:
    """Idle connections of one server, each closed after `seconds`.

    One task handles all of them: a Trio deadline that is set and cleared for each request costs more than reading its
    head.
    """

    seconds: float
    _since: dict["Connection", float] = attrs.field(factory=dict)  # the longest waiting first

    def begin(self, connection: "Connection") -> None:
        """Record that a connection is idle from now on."""
        self._since[connection] = trio.current_time()

    def end(self, connection: "Connection") -> None:
        """Record that a connection is no longer idle."""
        self._since.pop(connection, None)

    async def run(self) -> NoReturn:
        """Close each connection when its time is over, until cancelled."""
        while True:
            now = trio.current_time()
            # Connections that become idle from here on expire later than this.
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
    """State shared by the connections of one server.

    Attributes:
        handler: Answers requests.
        limits: Limits on what clients can cost.
        judge: Rejects requests by their heads.
        stamp: Returns header lines to add to every response.
        unread: Returns the response to a malformed request.
        heads: Cache of parsed heads.
        idle: Closes idle connections; the owner of the connections runs it as a task.
        body_bytes: Bytes of request bodies in memory.
        answering: Number of requests that handlers answer.
    """

    handler: StreamHandler
    limits: Limits
    judge: RequestFilter = accept_all
    stamp: Stamp = no_common_lines
    unread: MalformedHandler = plain_text_error
    heads: HeadCache[RequestHead] = attrs.field(init=False)
    idle: IdleConnections = attrs.field(init=False)
    body_bytes: int = 0
    answering: int = 0

    def __attrs_post_init__(self) -> None:
        self.heads = HeadCache(self.limits, read_request)
        self.idle = IdleConnections(self.limits.idle_seconds)


class Phase(Enum):
    """Phases of a connection, by what it waits for."""

    IDLE = "the next request"
    RECEIVING = "the rest of a request"
    ANSWERING = "its handler"


class Connection:
    """One client's connection.

    Attributes:
        phase: The event that it waits for.
        peer_host: Address of the peer; "" if it has none, or is disconnected.
        owner: The same with the peer's user, for the limit of connections per peer and its share of the event loop.
    """

    def __init__(self, context: ServerContext, stream: trio.abc.Stream) -> None:
        self.phase = Phase.IDLE
        with_user = context.limits.max_connections_per_peer is not None
        self.peer_host, self.owner = _peer_of(stream, with_user=with_user)
        self._context = context
        self._limits = context.limits
        self._stream = stream
        self._early = b""  # received, and belongs to the next request
        self._body_bytes = 0  # of this request, in memory
        self._stopping = False
        self._stamp = b""  # of the request that is read or answered
        self._scope = trio.CancelScope()
        self._answer: StreamExchange | None = None

    def stop_nowait(self) -> None:
        """Close the connection: at once when it is idle, else after the response in progress."""
        self._stopping = True
        if self.phase is Phase.IDLE:
            self._scope.cancel(reason="the server is stopping")
        if self._answer is not None:
            self._answer.keep_alive = False

    def close_waiting(self) -> None:
        """Close the connection, which has waited too long for its client, or has to make room for another one."""
        self._stopping = True
        self._scope.cancel(reason="idle for too long, or closed for another connection")

    async def run(self) -> None:
        """Serve until either side closes the connection; no client can make this raise, and the stream ends closed."""
        if isinstance(connection := below_tls(self._stream), HubStream):
            connection.on_end = self._scope.cancel
        current_client.set(self.owner)
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
        """Answer requests until the last; return True if the client should get time to read the last response."""
        head: RequestHead | None = None
        try:
            while not self._stopping:
                head = None  # not that of the previous request
                head = await self._receive_head()
                if head is None:
                    return False
                self._stamp = self._context.stamp(head)
                refusal = self._context.judge(head, self.peer_host)
                if refusal is not None:
                    await self._respond_last(refusal)
                    return True
                if self._context.answering >= self._limits.max_requests and head.path not in PROBE_PATHS:
                    raise MalformedError(503, f"{self._context.answering} requests are being answered; try again")
                try:
                    body = await self._receive_body(head)
                    if self._stopping and self._scope.cancel_called:
                        return False  # closed just as the request arrived: its handler has not started
                    answer = await self._serve(head, body)
                finally:
                    self._release_body()
                if not answer.complete:
                    return False  # cut off: the client must not see a clean end
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
        """Wait for the next request's head; None when the client has closed the connection."""
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
        else:
            await trio.lowlevel.checkpoint()  # requests that are sent ahead do not delay other clients
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
            raise MalformedError(417, "100-continue is the only expectation supported")
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
        """Account for a piece of a body that did not arrive together with its head."""
        context, limit = self._context, self._limits.max_bodies_bytes
        self._body_bytes += size
        context.body_bytes += size
        left = limit - context.body_bytes  # no large body takes more: a few of them leave room for small ones
        if left < 0 or self._body_bytes > max(left, RECEIVE_BYTES):
            raise MalformedError(503, f"the bodies of all requests together exceed {limit} bytes; try again")

    def _release_body(self) -> None:
        self._context.body_bytes -= self._body_bytes
        self._body_bytes = 0

    # -- the response -------------------------------------------------------------------------------------------------

    async def _serve(self, head: RequestHead, body: bytes) -> StreamExchange:
        """Run the handler while watching the client; return the exchange, however it ended."""
        self.phase = Phase.ANSWERING
        self._context.answering += 1
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
            owner=self.owner,
        )
        try:
            if isinstance(below_tls(self._stream), HubStream):
                await self._handle(answer)
            else:
                async with trio.open_nursery() as nursery:
                    answer.scope = nursery.cancel_scope
                    nursery.start_soon(self._watch, nursery.cancel_scope)
                    await self._handle(answer)
                    nursery.cancel_scope.cancel(reason="the response is complete")
        finally:
            self._context.answering -= 1
        self._answer = None
        return answer

    async def _watch(self, handling: trio.CancelScope) -> None:
        """Cancel the handler when the client disconnects; store what it sends ahead, up to a limit."""
        while len(self._early) < self._limits.max_early_bytes:
            try:
                data = await self._receive()
            except BROKEN:
                data = b""
            if not data:
                handling.cancel(reason="the client has disconnected")
                return
            self._early += data

    async def _handle(self, answer: StreamExchange) -> None:
        """Run the handler and contain its failure, which costs its own request and nothing else.

        This is the server's only broad catch: a bug that one client can trigger must not close the connections of all
        others. `except*` takes the errors out of a group, and lets a `Cancelled` in it propagate.
        """
        try:
            await self._context.handler(answer)
            if not answer.begun:
                raise RuntimeError("the handler returned without a response")
        except* ClientGoneError:
            _log_of(answer).debug("client disconnected")
        except* ExternalError as errors:
            answer.keep_alive = False
            _log_of(answer).warning("request failed", error="; ".join(map(str, leaves(errors))))
        except* Exception:
            answer.keep_alive = False
            log = _log_of(answer)
            log.exception("request handler crashed")
        if not answer.begun:
            await answer.respond(Response.text(500, "internal error; see the server's log\n"))

    async def _respond_last(self, response: Response) -> None:
        """Respond to a request of which nothing more is read."""
        headers = response.headers.with_("Content-Length", str(len(response.body))).with_("Connection", "close")
        with trio.move_on_after(self._limits.send_stall_seconds):
            lines = encode_lines(headers) + self._stamp
            await self._stream.send_all(b"%b%b\r\n%b" % (status_line(response.status), lines, response.body))

    async def _linger(self) -> None:
        """Give the client time to read the last response, which a reset could destroy.

        Closing a socket with unread input sends a reset.
        """
        with trio.move_on_after(self._limits.linger_seconds):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
                while await self._receive():
                    pass
            else:  # TLS has its own closing message
                await self._stream.aclose()


def _log_of(answer: StreamExchange) -> structlog.stdlib.BoundLogger:
    bound: structlog.stdlib.BoundLogger = _log.bind(method=answer.head.method, path=answer.head.path)
    return bound


def _peer_of(stream: trio.abc.Stream, *, with_user: bool) -> tuple[str, str]:
    """Return the address of a peer, and the same with its user if that is known; "" twice if it has disconnected."""
    connection = below_tls(stream)
    sock = connection.sock if isinstance(connection, HubStream) else getattr(connection, "socket", None)
    try:
        peer = sock.getpeername() if sock is not None else ("",)
        uid = peer_uid(peer, sock.getsockname()) if with_user and sock is not None else None
    except OSError:
        return "", ""  # already disconnected
    return str(peer[0]), str(peer[0]) if uid is None else f"{peer[0]} {uid}"
