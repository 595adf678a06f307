"""Bytes in, bodies out, no I/O: which framing a body has, and where it ends."""

from typing import Protocol

import httptools

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.heads import RequestHead, ResponseHead
from llmkube.base.http.message import Headers, status_allows_body

_MAX_FRAMING_BYTES = 16 * 1024  # chunk extensions and trailers between two pieces of data


class BodyDecoder(Protocol):
    """Takes a body out of its framing."""

    rest: bytes | None  # None until the body is complete, then the bytes that came after it

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the payload in them."""
        ...

    def feed_eof(self) -> None:
        """Take the end of the stream; raises `MalformedError` unless that ends the body."""
        ...


class LengthBody:
    """A body of a known number of bytes."""

    def __init__(self, length: int) -> None:
        self._missing = length
        self.rest: bytes | None = None if length else b""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the payload in them."""
        if self.rest is not None:
            self.rest += data
            return b""
        payload = data[: self._missing]
        self._missing -= len(payload)
        if self._missing == 0:
            self.rest = data[len(payload) :]
        return payload

    def feed_eof(self) -> None:
        """Refuse the end of the stream while bytes are missing."""
        if self.rest is None:
            raise MalformedError(400, f"the body ends {self._missing} bytes early")


class ChunkedBody:
    """A body in chunks, ended by an empty one; trailers are checked and dropped.

    llhttp decodes it behind a head that we write ourselves. It is fed line by line, since a chunked body can end only
    at a line feed: so the bytes after it are known.
    """

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self._pieces: list[bytes] = []
        self._complete = False
        self._framing_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        """Collect payload (llhttp calls this)."""
        self._pieces.append(piece)
        self._framing_bytes = 0

    def on_message_complete(self) -> None:
        """Note the end (llhttp calls this)."""
        self._complete = True

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the payload in them."""
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
        """Refuse the end of the stream before the last chunk."""
        if self.rest is None:
            raise MalformedError(400, "the body ends before its last chunk")


class EofBody:
    """The body of an answer without a length: it lasts until the stream ends."""

    def __init__(self) -> None:
        self.rest: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Return everything: it is all payload."""
        return data

    def feed_eof(self) -> None:
        """Complete the body."""
        self.rest = b""


def request_body(head: RequestHead, max_body_bytes: int) -> BodyDecoder:
    """Return the decoder for the body that follows a request's head (RFC 9112, 6.3).

    Raises:
        MalformedError: 413 for a declared length above the bound, 501 for an encoding other than chunked.
    """
    if "transfer-encoding" in head.headers:  # llhttp has refused one next to Content-Length
        if not _is_chunked(head.headers):
            raise MalformedError(501, "the only transfer encoding here is chunked")
        return ChunkedBody()
    length = int(head.headers.get("content-length") or 0)  # llhttp has refused anything but one number
    if length > max_body_bytes:
        raise MalformedError(413, f"the body is larger than {max_body_bytes} bytes")
    return LengthBody(length)


def response_body(method: str, head: ResponseHead) -> BodyDecoder:
    """Return the decoder for the body that follows an answer's head, given the request's method (RFC 9112, 6.3).

    Raises:
        MalformedError: An encoding other than chunked.
    """
    if method == "HEAD" or not status_allows_body(head.status):
        return LengthBody(0)
    if "transfer-encoding" in head.headers:
        if not _is_chunked(head.headers):
            raise MalformedError(400, "the only transfer encoding here is chunked")
        return ChunkedBody()
    length = head.headers.get("content-length")
    return EofBody() if length is None else LengthBody(int(length))


def _is_chunked(headers: Headers) -> bool:
    return [value.lower() for value in headers.get_all("transfer-encoding")] == ["chunked"]
