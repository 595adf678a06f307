"""Bytes in, messages out, no I/O: the opening handshake of a WebSocket's client, and its frames (RFC 6455).

`wsproto` judges and writes frames; the handshake is a head like any other, and is judged here.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode, ParseFailed

from llmkube.base.http.errors import ProtocolError
from llmkube.base.http.message import Headers

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
        max_message_bytes: A longer message is refused before more of it is kept.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._frames = FrameProtocol(client=True, extensions=[])
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


class FrameWriter:
    """Makes a client's frames, each masked with random bytes of its own."""

    def __init__(self) -> None:
        self._frames = FrameProtocol(client=True, extensions=[])

    def message(self, message: bytes | str) -> Iterator[bytes]:
        """Yield the frames of a message: one, unless it is long."""
        pieces: Sequence[bytes | str] = [
            message[at : at + FRAME_BYTES] for at in range(0, len(message), FRAME_BYTES)
        ] or [message]
        for number, piece in enumerate(pieces, start=1):
            yield bytes(self._frames.send_data(piece, fin=number == len(pieces)))

    def pong(self, payload: bytes) -> bytes:
        """Return the answer to a ping."""
        return bytes(self._frames.pong(payload))

    def ping(self) -> bytes:
        """Return a ping."""
        return bytes(self._frames.ping())

    def close(self, code: int, reason: str = "") -> bytes:
        """Return the last frame; wsproto cuts a reason that is too long."""
        return bytes(self._frames.close(code, reason or None))
