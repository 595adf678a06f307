"""Decode the framing of message bodies, and find where they end. No I/O."""

import re

import httptools

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.heads import RequestHead, ResponseHead
from llmkube.base.http.message import status_allows_body

_MAX_FRAMING_BYTES = 16 * 1024  # chunk extensions and trailers between two pieces of data


class LengthBody:
    """A body of known length, of which `remaining` bytes are still to come."""

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.rest: bytes | None = None if length else b""

    def feed(self, data: bytes) -> bytes:
        """Consume the next bytes and return the payload in them."""
        if self.rest is not None:
            self.rest += data
            return b""
        payload = data[: self.remaining]
        self.remaining -= len(payload)
        if self.remaining == 0:
            self.rest = data[len(payload) :]
        return payload

    def skip_payload(self, count: int) -> None:
        """Account for payload that was received elsewhere, at most `remaining` bytes."""
        self.remaining -= count
        if self.remaining == 0:
            self.rest = b""

    def feed_eof(self) -> None:
        """Reject the end of the stream while bytes are missing."""
        if self.rest is None:
            raise MalformedError(400, f"the body ends {self.remaining} bytes early")


class ChunkedBody:
    """A chunked body, ended by an empty chunk; trailers are checked and dropped.

    llhttp decodes it after a head that we write ourselves. It is fed line by line: a chunked body can end only at a
    line feed, so the bytes after it are known.
    """

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self._pieces: list[bytes] = []
        self._complete = False
        self._framing_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        """Collect payload (called by llhttp)."""
        self._pieces.append(piece)
        self._framing_bytes = 0

    def on_message_complete(self) -> None:
        """Record the end (called by llhttp)."""
        self._complete = True

    def feed(self, data: bytes) -> bytes:
        """Consume the next bytes and return the payload in them."""
        if self.rest is not None:
            self.rest += data
            return b""
        position = 0
        while position < len(data) and not self._complete:
            end = data.find(b"\n", position) + 1 or len(data)
            line = data[position:end]
            position = end
            self._framing_bytes += len(line)
            try:
                self._parser.feed_data(line)
            except httptools.HttpParserError as exc:
                raise MalformedError(400, f"malformed chunk: {exc}") from exc
            if self._framing_bytes > _MAX_FRAMING_BYTES:
                raise MalformedError(400, f"more than {_MAX_FRAMING_BYTES} bytes of framing between two chunks")
        if self._complete:
            self.rest = data[position:]
        payload = b"".join(self._pieces)
        self._pieces.clear()
        return payload

    def feed_eof(self) -> None:
        """Reject the end of the stream before the last chunk."""
        if self.rest is None:
            raise MalformedError(400, "the body ends before its last chunk")


_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 9110, 5.6.2
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;%b(?:=%b)?)*" % (_TOKEN, _TOKEN))
_TRAILER = re.compile(rb"%b:[\t -~\x80-\xff]*" % _TOKEN)


class ChunkedEndFinder:
    """Find the end of a chunked body without decoding it, for a proxy that relays it unchanged.

    It rejects all framing that two readers could interpret differently, and some that they would not.
    """

    def __init__(self) -> None:
        self._payload = 0  # bytes of the chunk that are still to come
        self._after_payload = False
        self._trailers = False
        self._line = b""  # the beginning of a line of framing
        self._framing_bytes = 0

    def feed(self, data: bytes) -> int:
        """Consume the next bytes and return the offset in them at which the body ends, or -1.

        Raises:
            MalformedError: The framing is ambiguous or invalid.
        """
        at, size = 0, len(data)
        while True:
            if self._payload:
                step = min(self._payload, size - at)
                self._payload -= step
                at += step
                if self._payload:
                    return -1
                self._after_payload = True
            end = data.find(b"\n", at) + 1
            self._framing_bytes += (end or size) - at
            if self._framing_bytes > _MAX_FRAMING_BYTES:
                raise MalformedError(400, f"more than {_MAX_FRAMING_BYTES} bytes of framing between two chunks")
            if not end:
                self._line += data[at:]
                return -1
            line, self._line, at = self._line + data[at:end], b"", end
            if line == b"\r\n" and self._trailers:
                return at
            self._read_framing(line)

    def _read_framing(self, line: bytes) -> None:
        text, clear = line[:-2], line.endswith(b"\r\n")
        if self._after_payload and clear and not text:
            self._after_payload = False
        elif self._trailers and clear and _TRAILER.fullmatch(text):
            pass
        elif clear and not self._after_payload and not self._trailers and (head := _CHUNK_HEAD.fullmatch(text)):
            self._payload = int(head[1], 16)
            self._trailers = not self._payload
            self._framing_bytes = 0 if self._payload else self._framing_bytes
        else:
            raise MalformedError(400, f"malformed chunk: {line[:40]!r}")


class LengthEndFinder:
    """Find the end of a body of known length."""

    def __init__(self, length: int) -> None:
        self._remaining = length

    def feed(self, data: bytes) -> int:
        """Consume the next bytes and return the offset in them at which the body ends, or -1."""
        end = self._remaining
        self._remaining -= len(data)
        return end if self._remaining <= 0 else -1


class EofBody:
    """Body of a response without a length: it ends with the stream."""

    def __init__(self) -> None:
        self.rest: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Return all bytes as payload."""
        return data

    def feed_eof(self) -> None:
        """Complete the body."""
        self.rest = b""


BodyDecoder = LengthBody | ChunkedBody | EofBody
"""Decodes the framing of a body; `rest` is None until the body is complete, then the bytes after it."""


def request_body(head: RequestHead, max_body_bytes: int) -> BodyDecoder:
    """Return the decoder for the body that follows a request's head (RFC 9112, 6.3).

    Raises:
        MalformedError: 413 for a declared length above the limit, 501 for an encoding other than chunked.
    """
    if head.chunked:  # llhttp rejects chunked together with Content-Length
        return ChunkedBody()
    if "transfer-encoding" in head.lines:
        raise MalformedError(501, "chunked is the only transfer encoding supported")
    length = head.length or 0
    if length > max_body_bytes:
        raise MalformedError(413, f"the body is larger than {max_body_bytes} bytes")
    return LengthBody(length)


def response_body(method: str, head: ResponseHead) -> BodyDecoder:
    """Return the decoder for the body that follows a response's head, given the request's method (RFC 9112, 6.3).

    Raises:
        MalformedError: An encoding other than chunked.
    """
    if method == "HEAD" or not status_allows_body(head.status):
        return LengthBody(0)
    if head.chunked:
        return ChunkedBody()
    if "transfer-encoding" in head.lines:
        raise MalformedError(400, "chunked is the only transfer encoding supported")
    return EofBody() if head.length is None else LengthBody(head.length)
