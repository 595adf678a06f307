"""Parse message heads: llhttp checks the grammar, this module finds where each head ends. No I/O.

llhttp alone does not report where in its input a message ended, skips bodies after `Upgrade`, and cannot know that a
response belongs to HEAD. So each head gets its own parser, which is fed line by line (a head can only end at a line
feed), and a body is decoded separately (`bodies`). The result never depends on how the network splits the bytes.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Generic, TypeVar

import attrs
import httptools

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, authority_of, encode_lines, origin_form, path_of

_Parser = httptools.HttpRequestParser | httptools.HttpResponseParser


@attrs.frozen(slots=False)  # cached properties keep their values in the instance's dict
class _Head:
    """Common part of request heads and response heads.

    Attributes:
        lines: Header lines as parsed, of this head or of one that differs from it only in its length.
        keep_alive: Whether the connection may carry another exchange.
        length: Value of Content-Length; None without one.
        chunked: Whether Transfer-Encoding is `chunked`, and nothing else.
    """

    lines: Headers
    keep_alive: bool
    length: int | None = attrs.field(default=None, kw_only=True)
    chunked: bool = attrs.field(default=False, kw_only=True)

    @cached_property
    def headers(self) -> Headers:
        """Header lines as sent."""
        return self.lines if self.length is None else self.lines.with_value("content-length", str(self.length))

    @cached_property
    def joined(self) -> Mapping[str, str]:
        """Values by lower-case name, as in `Headers.joined`."""
        return self.headers.joined()

    @cached_property
    def end_to_end(self) -> bytes:
        """Encoded header lines that a proxy forwards, without those that frame the body or name the host."""
        return encode_lines(_end_to_end(self.lines))


@attrs.frozen(slots=False)
class RequestHead(_Head):
    """Request line and headers, checked; `keep_alive` is the client's request."""

    method: str = attrs.field(kw_only=True)
    target: str = attrs.field(kw_only=True)
    version: str = attrs.field(kw_only=True)

    @cached_property
    def path(self) -> str:
        """Percent-decoded path, without the query."""
        return path_of(self.target)

    @cached_property
    def request_line(self) -> bytes:
        """Request line of a proxy: the method, and the target in origin form."""
        return f"{self.method} {origin_form(self.target)} HTTP/1.1\r\n".encode("ascii")

    @cached_property
    def without_credentials(self) -> bytes:
        """`end_to_end` without the client's credentials, for a proxy that sends its own."""
        return encode_lines(_end_to_end(self.lines).without("authorization", "x-api-key"))

    @cached_property
    def expectations(self) -> frozenset[str]:
        """Expectations to meet before the client sends the body; HTTP/1.0 has none."""
        return self.lines.tokens("expect") if self.version == "1.1" else frozenset()


@attrs.frozen(slots=False)
class ResponseHead(_Head):
    """Status line and headers, checked."""

    status: int = attrs.field(kw_only=True)

    @cached_property
    def without_access_control(self) -> bytes:
        """`end_to_end` without CORS headers, for a proxy that adds its own."""
        return encode_lines(without_access_control(_end_to_end(self.lines)))


def without_access_control(headers: Headers) -> Headers:
    """Return the headers without those for CORS."""
    return headers.without(*(name for name in headers.joined() if name.startswith("access-control-")))


def _end_to_end(headers: Headers) -> Headers:
    return headers.end_to_end().without("host", "content-length", "expect")


class _Collector:
    """Callbacks for llhttp while it parses a head."""

    def __init__(self) -> None:
        self.target = b""
        self.lines: list[tuple[str, str]] = []
        self.complete = False

    def on_url(self, piece: bytes) -> None:
        self.target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        self.lines.append((name.decode("latin-1"), value.decode("latin-1").rstrip(" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


class HeadReader:
    """Feed one head to its own llhttp parser, and stop exactly at its end."""

    def __init__(self, parser: type[_Parser], limits: Limits) -> None:
        self._collected = _Collector()
        self._parser = parser(self._collected)
        self._limits = limits
        self._remaining = limits.max_head_bytes

    @classmethod
    def for_requests(cls, limits: Limits) -> "HeadReader":
        """Return a reader for a request's head."""
        return cls(httptools.HttpRequestParser, limits)

    def feed(self, data: bytes) -> bytes | None:
        """Consume the next bytes; return None while the head is incomplete, then the bytes after it.

        Raises:
            MalformedError: The head is rejected.
        """
        position = 0
        while position < len(data):
            if self._remaining == 0:
                raise MalformedError(431, f"the head is longer than {self._limits.max_head_bytes} bytes")
            end = data.find(b"\n", position) + 1 or len(data)
            line = data[position : min(end, position + self._remaining)]
            position += len(line)
            self._remaining -= len(line)
            self._feed(line)
            if self._collected.complete:
                return data[position:]
        return None

    def feed_complete(self, head: bytes) -> None:
        """Parse a head whose end is known, with one call of llhttp instead of one per line.

        Raises:
            MalformedError: The head is rejected.
        """
        self._feed(head)
        if not self._collected.complete:
            raise MalformedError(400, "malformed head: it does not end at its empty line")

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # a request to switch protocols, which a server may ignore (RFC 9110, 7.8)
        except httptools.HttpParserError as exc:
            raise MalformedError(400, f"malformed head: {exc}") from exc
        if len(self._collected.lines) > self._limits.max_headers:
            raise MalformedError(431, f"more than {self._limits.max_headers} headers")

    def request(self) -> RequestHead:
        """Return the complete head of a request, checked beyond what llhttp checks.

        Raises:
            MalformedError: The head is rejected.
        """
        assert isinstance(self._parser, httptools.HttpRequestParser)
        method, headers = self._parser.get_method().decode("ascii"), Headers(self._collected.lines)
        version = self._checked_version()
        if method == "CONNECT":
            raise MalformedError(501, "CONNECT is not supported: this server is not a proxy")
        hosts = len(headers.get_all("host"))
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise MalformedError(400, f"a request needs exactly one Host header, this one has {hosts}")
        target = self._collected.target.decode("ascii")
        authority, host = authority_of(target), headers.get("host")
        if authority is not None and host is not None and authority.lower() != host.lower():
            raise MalformedError(400, "the request line and the Host header name different hosts")
        if version == "1.0" and "transfer-encoding" in headers:
            raise MalformedError(400, "HTTP/1.0 has no Transfer-Encoding")
        return RequestHead(
            headers,
            keep_alive=version == "1.1" and "close" not in headers.tokens("connection"),
            length=_length(headers),
            chunked=_is_chunked(headers),
            method=method,
            target=target,
            version=version,
        )

    def response(self) -> ResponseHead:
        """Return the complete head of a response, checked beyond what llhttp checks.

        Raises:
            MalformedError: The response is invalid or not supported.
        """
        assert isinstance(self._parser, httptools.HttpResponseParser)
        headers = Headers(self._collected.lines)
        version, connection = self._checked_version(), headers.tokens("connection")
        return ResponseHead(
            headers,
            keep_alive="close" not in connection if version == "1.1" else "keep-alive" in connection,
            length=_length(headers),
            chunked=_is_chunked(headers),
            status=self._parser.get_status_code(),
        )

    def _checked_version(self) -> str:
        version: str = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise MalformedError(505, f"HTTP/{version} is not supported; use HTTP/1.1")
        return version


class FinalHeadReader:
    """Feed the response heads of one exchange, and stop at the end of the final one; interim ones (1xx) are skipped.

    Args:
        limits: Limits on the size of a head.
        switching: The request has an `Upgrade` header: 101 is a final response.
    """

    def __init__(self, limits: Limits, *, switching: bool = False) -> None:
        self._limits = limits
        self._switching = switching
        self._reader = HeadReader(httptools.HttpResponseParser, limits)

    def feed(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Consume the next bytes; return None while the final head is incomplete, then it and the bytes after it.

        Raises:
            MalformedError: The response is invalid or not supported, or is a 101 that was not requested.
        """
        while (rest := self._reader.feed(data)) is not None:
            head = self._reader.response()
            if head.status >= 200 or (head.status == 101 and self._switching):
                return head, rest
            if head.status == 101:
                raise MalformedError(400, "the response switches to a protocol that was not requested")
            data, self._reader = rest, HeadReader(httptools.HttpResponseParser, self._limits)
        return None


def _length(headers: Headers) -> int | None:
    length = headers.get("content-length")
    return None if length is None else int(length)  # llhttp rejects anything but one number


def _is_chunked(headers: Headers) -> bool:
    return [value.lower() for value in headers.get_all("transfer-encoding")] == ["chunked"]


MAX_CACHED_BYTES: Final = 4096
"""Longest head that is cached."""

MAX_CACHED_HEADS: Final = 1024

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)", re.IGNORECASE)

_H = TypeVar("_H", RequestHead, ResponseHead)


def read_request(head: bytes, limits: Limits) -> RequestHead:
    """Parse the whole head of a request.

    Raises:
        MalformedError: The head is rejected.
    """
    reader = HeadReader.for_requests(limits)
    reader.feed_complete(head)
    return reader.request()


def read_final_response(head: bytes, limits: Limits) -> ResponseHead | None:
    """Parse the whole head of a response; return None for an interim one (1xx).

    Raises:
        MalformedError: The response is invalid or not supported.
    """
    reader = HeadReader(httptools.HttpResponseParser, limits)
    reader.feed_complete(head)
    found = reader.response()
    return found if found.status >= 200 else None


class HeadCache(Generic[_H]):
    """Cache of parsed heads by their bytes, except for the Content-Length, which differs between chats.

    It handles heads that arrive whole and end unambiguously; all others need a reader.
    """

    def __init__(self, limits: Limits, read: Callable[[bytes, Limits], _H | None]) -> None:
        self._limits = limits
        self._read: Callable[[bytes, Limits], _H | None] = read
        self._heads: dict[tuple[bytes, bytes | None], _H] = {}

    def find(self, data: bytes) -> tuple[_H, bytes] | None:
        """Return the head at the beginning of these bytes and the bytes after it; None if it needs a reader.

        Raises:
            MalformedError: The head is rejected.
        """
        raw = self._complete_head(data)
        if raw is None:
            return None
        start, length, rest = _split_length(raw)
        key = (start, rest)
        head = self._heads.get(key)
        if head is None:
            head = self._read(raw, self._limits)
            if head is None:
                return None
            if len(self._heads) >= MAX_CACHED_HEADS:
                self._heads.clear()  # full of heads that do not repeat, which are of no use
            self._heads[key] = head
        elif head.length != length:
            self._heads[key] = head = _with_length(head, length)
        return head, data[len(raw) :]

    def _complete_head(self, data: bytes) -> bytes | None:
        """Return the head if it ends at its first empty line, with line ends that are unambiguous; else None."""
        end = data.find(b"\r\n\r\n")
        if end <= 0 or end + 4 > min(MAX_CACHED_BYTES, self._limits.max_head_bytes):
            return None
        raw = data[: end + 4]
        clear = raw[0] not in b"\r\n" and raw.find(b"\n\n") < 0 and raw.find(b"\n\r\n") == end + 1
        return raw if clear else None


def _split_length(raw: bytes) -> tuple[bytes, int | None, bytes | None]:
    """Return the bytes before the digits of a Content-Length, their value, and the bytes after them.

    Without digits, the value and the rest are None, so that no head with an empty value has the key of one with digits.
    """
    found = _LENGTH.search(raw)
    return (raw, None, None) if found is None else (raw[: found.start(1)], int(found[1]), raw[found.end(1) :])


def _with_length(head: _H, length: int | None) -> _H:
    """Return a copy of a head with another length; cached properties of its other lines are kept."""
    clone: _H = object.__new__(type(head))  # a tenth of the cost of `attrs.evolve`, for almost every chat request
    clone.__dict__.update(head.__dict__, length=length)
    clone.__dict__.pop("headers", None)
    if "joined" in clone.__dict__:
        clone.__dict__["joined"] = {**head.joined, "content-length": str(length)}
    return clone
