"""Server-sent events: an incremental parser of the format that WHATWG's HTML standard defines. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html. It differs in two ways: `end` also returns an event
whose last newline or empty line is missing, because servers omit them, and a field `error`, which older versions of
llama.cpp's server write, is the data of an event `error`.
"""

from typing import Final, NamedTuple

MAX_EVENT_BYTES: Final = 4 << 20
"""A longer event is a fault of the server."""

_BOM: Final = b"\xef\xbb\xbf"


class OversizedEventError(Exception):
    """An event exceeds `MAX_EVENT_BYTES`."""


class ServerEvent(NamedTuple):
    """An event, or a comment.

    Attributes:
        data: Data; None for a comment, and for an event without data, which the standard does not dispatch.
        name: Type of the event, or b"".
        comment: Text of a comment.
    """

    data: bytes | None
    name: bytes = b""
    comment: bytes = b""


class EventParser:
    """Parses a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._line = bytearray()  # the incomplete line
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0  # bytes of the event so far
        self._at_start, self._after_cr = True, False

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Parse the next bytes and return the events and comments that they complete.

        Raises:
            OversizedEventError: An event is too long.
        """
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")  # of a CRLF; the CR has ended the line
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        found: list[ServerEvent] = []
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
            if self._at_start:
                self._at_start = False
                lines[0] = lines[0].removeprefix(_BOM)
            for line in lines:
                self._size += len(line) + 1
                if line.startswith(b"data: "):
                    self._data.append(line[6:])
                elif not line:
                    self._dispatch(found)
                else:
                    self._take_field(line, found)
        self._line += rest
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise OversizedEventError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return found

    def end(self) -> list[ServerEvent]:
        """Return the last event of a stream that ends without its empty line."""
        return self.feed(b"\n\n") if self._line or self._data else []

    def _take_field(self, line: bytes, found: list[ServerEvent]) -> None:
        name, _, value = line.partition(b":")
        if not name:
            found.append(ServerEvent(None, comment=value))
            self._size -= len(line) + 1
            return
        value = value.removeprefix(b" ")
        if name in (b"data", b"error"):
            self._data.append(value)
        if name in (b"event", b"error"):
            self._name = value if name == b"event" else name

    def _dispatch(self, found: list[ServerEvent]) -> None:
        if self._data:
            found.append(ServerEvent(b"\n".join(self._data), self._name))
            self._data = []
        elif self._name:
            found.append(ServerEvent(None, self._name))
        self._name, self._size = b"", 0
