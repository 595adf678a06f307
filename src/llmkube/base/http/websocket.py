"""The client's side of a WebSocket (RFC 6455) over a connection of ours. No extensions, no background task.

```
 connect_websocket ─ upgrade    any client of ours that asks for the switch, under one deadline
                ├ send          one task at a time; a full connection makes it wait
                ├ receive       one task at a time; answers pings, and reads no more than it is asked for
                └ aclose        the close handshake, bounded; the connection is gone afterwards in any case
```

`wsproto` judges and writes frames; the handshake is a head like any other, and is judged here.
"""

import base64
import hashlib
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Final

import attrs
import trio
from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode, ParseFailed

from llmkube.base.http.client import Upgraded
from llmkube.base.http.errors import BrokenOffError, ConnectError, HttpError, PeerClosedError, ProtocolError
from llmkube.base.http.message import Headers
from llmkube.base.http.tls import RECEIVE_BYTES

FRAME_BYTES: Final = 256 * 1024
"""The longest frame that is sent; a longer message goes in several, between which other work is done."""

_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3

CLEAN_CLOSE: Final = int(CloseReason.NORMAL_CLOSURE)

CLEAN_CLOSES: Final = frozenset({CloseReason.NORMAL_CLOSURE, CloseReason.GOING_AWAY, CloseReason.NO_STATUS_RCVD})
"""With these a peer says that it has said everything, or says nothing."""


@attrs.frozen
class Offer:
    """What a client says in its opening handshake.

    Attributes:
        nonce: Sixteen random bytes, which an answer has to prove that it has seen.
        protocols: The subprotocols that the client speaks, the preferred first.
    """

    nonce: bytes
    protocols: tuple[str, ...] = ()

    @property
    def _key(self) -> bytes:
        return base64.b64encode(self.nonce)

    @property
    def headers(self) -> Headers:
        """The header lines that ask for the switch."""
        lines = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", self._key.decode("ascii")),
        ]
        if self.protocols:
            lines.append(("Sec-WebSocket-Protocol", ", ".join(self.protocols)))
        return Headers(lines)

    def judge(self, answer: Headers, peer: str) -> str:
        """Return the subprotocol that the peer chose, "" for none, from the headers of its 101.

        Raises:
            ProtocolError: The answer is none to this offer.
        """
        accept = base64.b64encode(hashlib.sha1(self._key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())
        chosen = answer.get_all("sec-websocket-protocol")
        wrong = ""
        if answer.tokens("upgrade") != {"websocket"} or "upgrade" not in answer.tokens("connection"):
            wrong = "it does not switch to WebSocket"
        elif answer.get_all("sec-websocket-accept") != (accept.decode("ascii"),):
            wrong = "its Sec-WebSocket-Accept does not fit the request"
        elif "sec-websocket-extensions" in answer:
            wrong = "it uses an extension that was not offered"
        elif len(chosen) > 1 or any(each not in self.protocols for each in chosen):
            wrong = f"it chose the subprotocol {', '.join(chosen)!r}, which was not offered"
        elif self.protocols and not chosen:
            wrong = f"it speaks none of the subprotocols {', '.join(self.protocols)}"
        if wrong:
            raise ProtocolError(f"{peer} answers the WebSocket handshake wrongly: {wrong}")
        return chosen[0] if chosen else ""


@attrs.frozen
class Ping:
    """The peer wants this back."""

    payload: bytes


@attrs.frozen
class Close:
    """The peer has said its last word."""

    code: int
    reason: str

    @property
    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        return self.code in CLEAN_CLOSES


@attrs.frozen
class Part:
    """A frame that ends nothing: a piece of a message, or a pong."""


@attrs.frozen
class Violation:
    """What the peer sent is refused, with the status code to say so."""

    code: int
    message: str


Event = bytes | str | Ping | Close | Part | Violation
PART: Final = Part()


class FrameReader:
    """Makes messages of the bytes that a server sends, one frame at a time.

    Args:
        frames: Takes them apart.
        max_message_bytes: A longer message is refused before more of it is kept.
    """

    def __init__(self, frames: FrameProtocol, max_message_bytes: int) -> None:
        self._frames = frames
        self._max_message_bytes = max_message_bytes
        self._message = bytearray()
        self._starved = True

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._frames.receive_bytes(data)
        self._starved = False

    def take(self) -> Event | None:
        """Return what the next frame is, or None when more bytes are needed; nothing follows a violation."""
        if self._starved:
            return None
        try:
            frame = next(self._frames.received_frames(), None)
        except ParseFailed as error:
            return Violation(int(error.code), str(error))
        if frame is None:
            self._starved = True
            return None
        payload = frame.payload
        if frame.opcode is Opcode.CLOSE:
            assert isinstance(payload, tuple)
            return Close(int(payload[0]), payload[1] or "")
        assert not isinstance(payload, tuple)
        if frame.opcode is Opcode.PING:
            assert isinstance(payload, bytes)
            return Ping(payload)
        if frame.opcode is Opcode.PONG:
            return PART
        self._message += payload.encode() if isinstance(payload, str) else payload
        if len(self._message) > self._max_message_bytes:
            return Violation(CloseReason.MESSAGE_TOO_BIG, f"a message of more than {self._max_message_bytes} bytes")
        if not frame.message_finished:
            return PART
        message, self._message = self._message, bytearray()
        return message.decode() if frame.opcode is Opcode.TEXT else bytes(message)


def frames_of(message: bytes | str, frames: FrameProtocol) -> Iterator[bytes]:
    """Yield the frames of a message: one, unless it is long."""
    for at in range(0, max(len(message), 1), FRAME_BYTES):
        yield bytes(frames.send_data(message[at : at + FRAME_BYTES], fin=at + FRAME_BYTES >= len(message)))


Upgrade = Callable[[Headers], Awaitable[Upgraded]]
"""Sends a GET with these headers and returns the connection that the peer has switched; any failure is an exception."""


@attrs.frozen
class Bounds:
    """What a peer may cost.

    Attributes:
        max_message_bytes: A longer message ends the connection.
        handshake_seconds: From the first packet to the judgement of the answer.
        idle_seconds: After this much silence a ping is sent while a task receives, and after as much again without a
            byte the connection is given up; None leaves silence alone.
        close_seconds: For the last frames of both sides.
    """

    max_message_bytes: int = 1024 * 1024
    handshake_seconds: float = 30.0
    idle_seconds: float | None = None
    close_seconds: float = 2.0


DEFAULT_BOUNDS = Bounds()


class WebSocket(trio.abc.Channel[bytes | str]):
    """A WebSocket that is open: binary messages are bytes, text messages are str.

    Iteration ends when the peer closes without a complaint. A cancelled `receive` loses nothing; a cancelled `send`
    leaves half a message on the wire, so that nothing more can be sent.

    Attributes:
        protocol: The subprotocol that the peer chose, or "".
    """

    def __init__(self, connection: Upgraded, protocol: str, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.protocol = protocol
        self._connection = connection
        self._bounds = bounds
        self._frames = FrameProtocol(client=True, extensions=[])
        self._reader = FrameReader(self._frames, bounds.max_message_bytes)
        self._reader.feed(connection.early)
        self._sending = trio.Lock()
        self._ping: bytes | None = None  # the last that is not answered yet (RFC 6455, 5.5.3)
        self._receiving = False
        self._torn = False  # half a frame was sent
        self._farewell_sent = False
        self._closed = False
        self._end: Close | HttpError | None = None
        self._ended = trio.Event()

    async def send(self, value: bytes | str) -> None:
        """Send a message; returns when the connection has taken it.

        Raises:
            BrokenOffError: The peer is gone, or has closed.
            trio.ClosedResourceError: This side has closed, or a cancelled `send` has left half a message.
        """
        async with self._sending:
            if self._end is not None and not self._closed:
                raise BrokenOffError(f"{self._connection.peer} has ended the WebSocket")
            if self._farewell_sent or self._torn:
                raise trio.ClosedResourceError("nothing more can be sent on this WebSocket")
            self._torn = True
            for frame in frames_of(value, self._frames):
                await self._put(frame)
            self._torn = False
            await self._answer_ping()

    async def receive(self) -> bytes | str:
        """Return the next message.

        Raises:
            trio.EndOfChannel: The peer has closed, and nothing is wrong.
            PeerClosedError: The peer has closed, and says that something is wrong.
            BrokenOffError: The peer broke off, or is silent.
            ProtocolError: The peer sent no proper frame, or a message that is too long.
            trio.ClosedResourceError: This side has closed.
        """
        if self._closed:
            raise trio.ClosedResourceError("this WebSocket is closed")
        return await self._receive()

    async def wait_send_all_might_not_block(self) -> None:
        """Return when the peer has read something."""
        await self._connection.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Say goodbye, wait for the peer's, and close the connection; when cancelled, close it at once."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        async with aclosing(self._connection):
            if self._end is None and not self._torn:
                with trio.move_on_after(self._bounds.close_seconds):
                    await self._say_farewell(CLEAN_CLOSE)
                    await self._hear_farewell()

    async def _receive(self) -> bytes | str:
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this WebSocket")
        self._receiving = True
        try:
            while True:
                await trio.lowlevel.checkpoint()  # a peer that sends many small frames keeps no other task waiting
                self._raise_end()
                event = self._reader.take()
                if isinstance(event, bytes | str):
                    return event
                if event is None:
                    await self._read_more()
                elif not isinstance(event, Part):
                    await self._handle(event)
        finally:
            self._receiving = False

    async def _handle(self, event: Ping | Close | Violation) -> None:
        peer = self._connection.peer
        if isinstance(event, Ping):
            self._ping = event.payload
            if not self._sending.locked():  # else the task that sends takes it along
                async with self._sending:
                    await self._answer_ping()
        elif isinstance(event, Close):
            self._note_end(event)
            await self._say_farewell(event.code)
        else:
            self._note_end(ProtocolError(f"{peer} breaks the WebSocket's rules: {event.message}"))
            await self._say_farewell(event.code)

    async def _read_more(self) -> None:
        """Take the next bytes; what the peer does not send in time it will not send at all."""
        pinged = False
        while True:
            with trio.move_on_after(self._bounds.idle_seconds or math.inf):
                try:
                    data = bytes(await self._connection.stream.receive_some(RECEIVE_BYTES))
                except trio.BrokenResourceError as error:
                    self._note_end(self._broken_off(error.__cause__ or error))
                    return
                if data:
                    self._reader.feed(data)
                else:
                    self._note_end(self._broken_off("the connection ends without a close frame"))
                return
            if pinged:
                self._note_end(self._broken_off(f"no answer to a ping in {self._bounds.idle_seconds:g} s"))
                return
            pinged = await self._send_ping()

    async def _send_ping(self) -> bool:
        """Send a ping, and say so; a connection that is busy sending shows by that whether the peer lives."""
        if self._sending.locked() or self._torn or self._farewell_sent:
            return self._torn or self._farewell_sent
        async with self._sending:
            self._torn = True
            with trio.move_on_after(self._bounds.idle_seconds or 0):
                await self._put(bytes(self._frames.ping()))
                self._torn = False
        return True

    async def _answer_ping(self) -> None:
        """Send the pong that is due; the lock is held."""
        while self._ping is not None and not self._torn and not self._farewell_sent:
            pong, self._ping = bytes(self._frames.pong(self._ping)), None
            self._torn = True
            await self._put(pong)
            self._torn = False

    async def _say_farewell(self, code: int) -> None:
        """Send the last frame, if the connection still takes it within the time that there is."""
        with trio.move_on_after(self._bounds.close_seconds), suppress(BrokenOffError):
            async with self._sending:
                if not self._farewell_sent and not self._torn:
                    self._farewell_sent = self._torn = True
                    await self._put(bytes(self._frames.close(code)))
                    self._torn = False

    async def _hear_farewell(self) -> None:
        """Read until the peer's last frame, or its end."""
        if self._receiving:
            await self._ended.wait()
            return
        with suppress(trio.EndOfChannel, HttpError):
            while True:
                await self._receive()

    async def _put(self, data: bytes) -> None:
        try:
            await self._connection.stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise self._broken_off(error.__cause__ or error) from error

    def _note_end(self, end: Close | HttpError) -> None:
        self._end = end
        self._ended.set()

    def _raise_end(self) -> None:
        end, peer = self._end, self._connection.peer
        if isinstance(end, HttpError):
            raise end
        if end is not None and end.is_clean:
            raise trio.EndOfChannel
        if end is not None:
            words = f"{peer} closed the WebSocket with code {end.code}"
            raise PeerClosedError(f"{words}: {end.reason}" if end.reason else words, end.code, end.reason)

    def _broken_off(self, why: object) -> BrokenOffError:
        return BrokenOffError(f"{self._connection.peer} broke off: {why}")


async def connect_websocket(
    upgrade: Upgrade, protocols: Sequence[str] = (), bounds: Bounds = DEFAULT_BOUNDS
) -> WebSocket:
    """Open a WebSocket, which the caller closes.

    Args:
        upgrade: Asks a peer for the switch.
        protocols: The subprotocols to offer, the preferred first; if there are any, the peer has to choose one.
        bounds: What the peer may cost.

    Raises:
        ConnectError: The handshake took too long.
        ProtocolError: The peer's answer is none to ours.
        Exception: Whatever `upgrade` raises when the peer refuses.
    """
    offer = Offer(secrets.token_bytes(16), tuple(protocols))
    with trio.move_on_after(bounds.handshake_seconds):
        connection = await upgrade(offer.headers)
        try:
            return WebSocket(connection, offer.judge(connection.headers, connection.peer), bounds)
        except ProtocolError:
            await connection.aclose()
            raise
    raise ConnectError(f"the WebSocket handshake was not over within {bounds.handshake_seconds:g} s")
