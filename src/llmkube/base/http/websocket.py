"""WebSocket client (RFC 6455) over one of our connections. No extensions, no background task, no pings.

```
 connect_websocket ─ upgrade    a client that requests the switch of protocols, under one deadline
                ├ send          one task at a time; waits while the connection is full
                ├ receive       one task at a time; answers pings, and reads no more than requested
                └ aclose        the close handshake, with a time limit; the connection is closed in any case
```

`wsproto` parses and writes frames; the handshake is a head like any other, and is checked here. Pings would not help
the only user: a kubelet whose pod does not read for a while is healthy and answers none. The kernel probes silent
connections (`base.http.dial.with_tcp_keepalive`).
"""

import base64
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

import attrs
import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from llmkube.base.http.client import UpgradedConnection
from llmkube.base.http.errors import ConnectError, ConnectionLostError, HttpError, PeerClosedError, ProtocolError
from llmkube.base.http.message import Headers
from llmkube.base.http.tls import RECEIVE_BYTES

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""A longer message closes the WebSocket."""

HANDSHAKE_SECONDS: Final = 30.0
"""From the first packet to the check of the response."""

CLOSE_SECONDS: Final = 2.0
"""For the close frames of both sides."""

_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3

_CLEAN_CLOSES: Final = frozenset({CloseReason.NORMAL_CLOSURE, CloseReason.GOING_AWAY, CloseReason.NO_STATUS_RCVD})
"""Close codes that report no error."""


@attrs.frozen
class Offer:
    """A client's opening handshake.

    Attributes:
        nonce: Sixteen random bytes; the response has to prove that the peer has received them.
        protocol: Subprotocol that the client offers, and the peer has to choose.
    """

    nonce: bytes
    protocol: str

    @property
    def _key(self) -> bytes:
        return base64.b64encode(self.nonce)

    @property
    def headers(self) -> Headers:
        """Header lines that request the switch of protocols."""
        return Headers(
            (
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", self._key.decode("ascii")),
                ("Sec-WebSocket-Protocol", self.protocol),
            )
        )

    def check_response(self, answer: Headers, peer: str) -> None:
        """Check the headers of the peer's 101.

        Raises:
            ProtocolError: They do not match this offer.
        """
        accept = base64.b64encode(hashlib.sha1(self._key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())
        chosen = answer.get_all("sec-websocket-protocol")
        problem = ""
        if answer.tokens("upgrade") != {"websocket"} or "upgrade" not in answer.tokens("connection"):
            problem = "it does not switch to WebSocket"
        elif answer.get_all("sec-websocket-accept") != (accept.decode("ascii"),):
            problem = "its Sec-WebSocket-Accept does not match the request"
        elif "sec-websocket-extensions" in answer:
            problem = "it uses an extension that was not offered"
        elif not chosen:
            problem = f"it does not support the subprotocol {self.protocol}"
        elif chosen != (self.protocol,):
            problem = f"it chose the subprotocol {', '.join(chosen)!r}, which was not offered"
        if problem:
            raise ProtocolError(f"{peer} failed the WebSocket handshake: {problem}")


Upgrade = Callable[[Headers], Awaitable[UpgradedConnection]]
"""Sends a GET with these headers and returns the connection after the peer's switch; raises on any failure."""


class WebSocket(trio.abc.Channel[bytes | str]):
    """An open WebSocket: binary messages are bytes, text messages are str.

    Iteration ends when the peer closes it without an error. A cancelled `receive` loses nothing; a cancelled `send`
    leaves half a message on the wire, so that nothing more can be sent.
    """

    def __init__(self, connection: UpgradedConnection) -> None:
        self._connection = connection
        self._frames = Connection(ConnectionType.CLIENT, trailing_data=connection.early)
        self._message = bytearray()  # the received part of an incomplete message
        self._sending = trio.Lock()
        self._ping: Ping | None = None  # the last that is not answered yet (RFC 6455, 5.5.3)
        self._receiving = False
        self._frame_cut = False  # half a frame was sent
        self._closed = False
        self._end: CloseConnection | HttpError | None = None
        self._ended = trio.Event()

    async def send(self, value: bytes | str) -> None:
        """Send a message; returns when the connection has accepted it.

        Raises:
            ConnectionLostError: The connection is lost, or the peer has closed the WebSocket.
            trio.ClosedResourceError: This side has closed it, or a cancelled `send` has left half a message.
        """
        async with self._sending:
            if self._end is not None and not self._closed:
                raise ConnectionLostError(f"{self._connection.peer} has closed the WebSocket")
            if not self._is_open:
                raise trio.ClosedResourceError("nothing more can be sent on this WebSocket")
            await self._send_frame(BytesMessage(value) if isinstance(value, bytes) else TextMessage(value))
            await self._answer_ping()

    async def receive(self) -> bytes | str:
        """Return the next message.

        Raises:
            trio.EndOfChannel: The peer has closed the WebSocket without an error.
            PeerClosedError: The peer has closed it with an error.
            ConnectionLostError: The connection is lost.
            ProtocolError: The peer sent an invalid frame, or a message that is too long.
            trio.ClosedResourceError: This side has closed it.
        """
        if self._closed:
            raise trio.ClosedResourceError("this WebSocket is closed")
        return await self._receive()

    async def wait_send_all_might_not_block(self) -> None:
        """Return when sending might no longer block."""
        await self._connection.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Send a close frame, wait for the peer's, and close the connection; if cancelled, close it at once."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        async with aclosing(self._connection):
            if self._end is None and not self._frame_cut:
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._send_close(CloseReason.NORMAL_CLOSURE)
                    await self._wait_for_close()

    @property
    def _is_open(self) -> bool:
        return self._frames.state is ConnectionState.OPEN and not self._frame_cut

    async def _receive(self) -> bytes | str:
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this WebSocket")
        self._receiving = True
        try:
            while True:
                await trio.lowlevel.checkpoint()  # so that many small frames do not starve other tasks
                self._raise_if_closed()
                event = next(self._frames.events(), None)
                if event is None:
                    await self._read_more()
                elif isinstance(event, Message):
                    self._message += event.data.encode() if isinstance(event.data, str) else event.data
                    if len(self._message) > MAX_MESSAGE_BYTES:
                        too_long = f"a message of more than {MAX_MESSAGE_BYTES} bytes"
                        await self._reject(CloseReason.MESSAGE_TOO_BIG, too_long)
                    elif event.message_finished:
                        message, self._message = self._message, bytearray()
                        return message.decode() if isinstance(event.data, str) else bytes(message)
                else:
                    await self._handle(event)
        finally:
            self._receiving = False

    async def _handle(self, event: Event) -> None:
        if isinstance(event, Ping):
            self._ping = event
            if not self._sending.locked():  # else the sending task answers it
                async with self._sending:
                    await self._answer_ping()
        elif isinstance(event, CloseConnection) and self._frames.state in {
            ConnectionState.OPEN,
            ConnectionState.LOCAL_CLOSING,
        }:  # the peer has not closed: wsproto reports an invalid frame in this way
            await self._reject(event.code, event.reason or "")
        elif isinstance(event, CloseConnection):
            self._record_end(event)
            await self._send_close(event.code)

    async def _reject(self, code: int, reason: str) -> None:
        self._record_end(ProtocolError(f"{self._connection.peer} violates the WebSocket protocol: {reason}"))
        await self._send_close(code)

    async def _read_more(self) -> None:
        try:
            data = bytes(await self._connection.stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as error:
            self._record_end(self._connection_lost(error.__cause__ or error))
            return
        if data:
            self._frames.receive_data(data)
        else:
            self._record_end(self._connection_lost("it ended without a close frame"))

    async def _answer_ping(self) -> None:
        """Send the pong that is due; the caller holds the lock."""
        while self._ping is not None and self._is_open:
            ping, self._ping = self._ping, None
            await self._send_frame(ping.response())

    async def _send_close(self, code: int) -> None:
        """Send the close frame, if the connection accepts it in time."""
        with trio.move_on_after(CLOSE_SECONDS), suppress(ConnectionLostError):
            async with self._sending:
                if self._frames.state in {ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING} and not self._frame_cut:
                    await self._send_frame(CloseConnection(code))

    async def _wait_for_close(self) -> None:
        """Read until the peer's close frame, or the end of the connection."""
        if self._receiving:
            await self._ended.wait()
            return
        with suppress(trio.EndOfChannel, HttpError):
            while True:
                await self._receive()

    async def _send_frame(self, event: Event) -> None:
        """Send a frame; the caller holds the lock. Cancellation leaves half a frame on the wire."""
        self._frame_cut = True
        try:
            await self._connection.stream.send_all(self._frames.send(event))
        except trio.BrokenResourceError as error:
            raise self._connection_lost(error.__cause__ or error) from error
        self._frame_cut = False

    def _record_end(self, end: CloseConnection | HttpError) -> None:
        self._end = end
        self._ended.set()

    def _raise_if_closed(self) -> None:
        end, peer = self._end, self._connection.peer
        if isinstance(end, HttpError):
            raise end
        if end is not None and end.code in _CLEAN_CLOSES:
            raise trio.EndOfChannel
        if end is not None:
            text = f"{peer} closed the WebSocket with code {int(end.code)}"
            reason = end.reason or ""
            raise PeerClosedError(f"{text}: {reason}" if reason else text, int(end.code), reason)

    def _connection_lost(self, reason: object) -> ConnectionLostError:
        return ConnectionLostError(f"connection to {self._connection.peer} lost: {reason}")


async def connect_websocket(upgrade: Upgrade, protocol: str) -> WebSocket:
    """Open a WebSocket, which the caller closes.

    Args:
        upgrade: Requests the switch of protocols.
        protocol: The subprotocol to use.

    Raises:
        ConnectError: The handshake took too long.
        ProtocolError: The peer's response does not match the offer.
        Exception: Errors of `upgrade`, such as when the peer rejects the request.
    """
    offer = Offer(secrets.token_bytes(16), protocol)
    with trio.move_on_after(HANDSHAKE_SECONDS):
        connection = await upgrade(offer.headers)
        try:
            offer.check_response(connection.headers, connection.peer)
        except ProtocolError:
            await connection.aclose()
            raise
        return WebSocket(connection)
    raise ConnectError(f"the WebSocket handshake did not complete within {HANDSHAKE_SECONDS:g} s")
