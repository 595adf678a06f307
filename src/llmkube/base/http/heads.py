"""Bytes in, heads out, no I/O: llhttp judges the grammar, this module knows where each head ends.

llhttp alone does not tell where in its input a message ended, skips bodies after `Upgrade`, and cannot be told that an
answer belongs to HEAD. So each head gets a parser of its own that is fed line by line (a head can only end at a line
feed), and a body is decoded separately (`bodies`). The result never depends on how the network cut the bytes.
"""

import attrs
import httptools

from llmkube.base.http.errors import MalformedError
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers

_Parser = httptools.HttpRequestParser | httptools.HttpResponseParser


@attrs.frozen
class RequestHead:
    """Request line and headers, checked; `keep_alive` is what the client wishes."""

    method: str
    target: str
    headers: Headers
    version: str
    keep_alive: bool


@attrs.frozen
class ResponseHead:
    """Status line and headers, checked; `keep_alive` tells whether the connection may carry another exchange."""

    status: int
    headers: Headers
    keep_alive: bool


class _Collector:
    """The callbacks that llhttp makes while it reads a head."""

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
    """Feed one head to an llhttp parser of its own and stop exactly behind it."""

    def __init__(self, parser: type[_Parser], limits: Limits) -> None:
        self._seen = _Collector()
        self._parser = parser(self._seen)
        self._limits = limits
        self._room = limits.max_head_bytes

    def feed(self, data: bytes) -> bytes | None:
        """Take the next bytes; None while the head is incomplete, then the bytes that came after it.

        Raises:
            MalformedError: Refused, with the status to answer.
        """
        position = 0
        while position < len(data):
            if self._room == 0:
                raise MalformedError(431, f"the head is longer than {self._limits.max_head_bytes} bytes")
            end = data.find(b"\n", position) + 1 or len(data)
            line = data[position : min(end, position + self._room)]
            position += len(line)
            self._room -= len(line)
            try:
                self._parser.feed_data(line)
            except httptools.HttpParserUpgrade:
                pass  # a wish to change the protocol, which a server may ignore (RFC 9110, 7.8)
            except httptools.HttpParserError as exc:
                raise MalformedError(400, f"malformed head: {exc}") from exc
            if len(self._seen.lines) > self._limits.max_headers:
                raise MalformedError(431, f"more than {self._limits.max_headers} headers")
            if self._seen.complete:
                return data[position:]
        return None

    def request(self) -> RequestHead:
        """Return the complete head of a request, checked beyond what llhttp checks.

        Raises:
            MalformedError: Refused, with the status to answer.
        """
        assert isinstance(self._parser, httptools.HttpRequestParser)
        method, headers = self._parser.get_method().decode("ascii"), Headers(self._seen.lines)
        version = self._checked_version()
        if method == "CONNECT":
            raise MalformedError(501, "CONNECT is for proxies, and this server is none")
        hosts = len(headers.get_all("host"))
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise MalformedError(400, f"a request needs exactly one Host header, this one has {hosts}")
        if version == "1.0" and "transfer-encoding" in headers:
            raise MalformedError(400, "HTTP/1.0 has no Transfer-Encoding")
        keep_alive = version == "1.1" and "close" not in headers.tokens("connection")
        return RequestHead(method, self._seen.target.decode("ascii"), headers, version, keep_alive)

    def response(self) -> ResponseHead:
        """Return the complete head of an answer, checked beyond what llhttp checks.

        Raises:
            MalformedError: Not an answer that this client understands.
        """
        assert isinstance(self._parser, httptools.HttpResponseParser)
        headers = Headers(self._seen.lines)
        version, connection = self._checked_version(), headers.tokens("connection")
        keep_alive = "close" not in connection if version == "1.1" else "keep-alive" in connection
        return ResponseHead(self._parser.get_status_code(), headers, keep_alive)

    def _checked_version(self) -> str:
        version: str = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise MalformedError(505, f"HTTP/{version} is not spoken here, HTTP/1.1 is")
        return version


class FinalHeadReader:
    """Feed the heads of one exchange's answers and stop behind the final one; interim answers (1xx) are skipped."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reader = HeadReader(httptools.HttpResponseParser, limits)

    def feed(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Take the next bytes; None while the final head is incomplete, then that head and the bytes after it.

        Raises:
            MalformedError: Not an answer that this client understands, or one that leaves HTTP/1.1 (101).
        """
        while (rest := self._reader.feed(data)) is not None:
            head = self._reader.response()
            if head.status >= 200:
                return head, rest
            if head.status == 101:
                raise MalformedError(400, "the answer switches to a protocol that the request did not ask for")
            data, self._reader = rest, HeadReader(httptools.HttpResponseParser, self._limits)
        return None
