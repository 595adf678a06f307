"""Bodies of requests and their answers, in memory only, while the owner of the page has turned that on.

Headers are not kept; keys in bodies are redacted when they are shown.
"""

import re
from collections import deque
from contextvars import ContextVar
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange

CAPTURE_SECONDS: Final = 3600
"""Longest time for which captures are on."""
KEPT_BODIES: Final = 64
"""Requests whose bodies are kept: the last ones."""
BODY_BYTES: Final = 64 << 10
"""Bytes of each body that are kept: the first ones."""
REDACTED: Final = "[redacted]"

_KEYS: Final = (
    (re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\b(?:sk|pk|hf|ghp|xox[abp]|lk)[-_][\w-]{12,}"), REDACTED),
    (re.compile(r"(?<=://)[^/?#@\s\"]+(?=@)"), REDACTED),
    (  # a member such as "api_key": "…", also in a string that is JSON itself
        re.compile(
            r'(\\*"[\w-]*(?:authorization|api[-_]?key|token|password|passwd|secret|cookie)\\*"\s*:\s*\\*")(?:[^"\\]|\\.)*',
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
)


@attrs.define(eq=False)
class Capture:
    """The bodies of one request.

    Attributes:
        request: Start of its body.
        request_bytes: Length of its body.
        key: The client's credentials, which are redacted.
        number: Number of the request in the list of requests; 0 while it is not in it.
    """

    request: bytes
    request_bytes: int
    key: str = attrs.field(repr=False)
    number: int = 0
    _answer: bytearray = attrs.field(factory=bytearray, repr=False)

    def see(self, piece: bytes) -> None:
        """Take the next bytes of the response, with its head and framing."""
        self._answer += piece[: BODY_BYTES - len(self._answer)]

    def texts(self) -> dict[str, str]:
        """Return both bodies as text, without keys; takes a few milliseconds."""
        cut = f"\n[{self.request_bytes - BODY_BYTES} more bytes]" if self.request_bytes > BODY_BYTES else ""
        more = "\n[cut off]" if len(self._answer) == BODY_BYTES else ""
        return {
            "request": self._without_keys(self.request) + cut,
            "answer": self._without_keys(body_of(bytes(self._answer))) + more,
        }

    def _without_keys(self, body: bytes) -> str:
        text = body.decode("utf-8", "replace")
        text = text.replace(self.key, REDACTED) if self.key else text
        for pattern, replacement in _KEYS:
            text = pattern.sub(replacement, text)
        return text


_current: ContextVar[Capture | None] = ContextVar("capture", default=None)


@attrs.define(eq=False)
class Captures:
    """The bodies of the last requests; they are dropped when captures end."""

    _ends_at: float = 0.0
    _kept: deque[Capture] = attrs.field(factory=lambda: deque(maxlen=KEPT_BODIES))

    @property
    def seconds_left(self) -> float:
        """Time until captures end; 0 while they are off."""
        return max(0.0, self._ends_at - trio.current_time())

    def turn_on(self, seconds: float) -> None:
        """Capture for this time, `CAPTURE_SECONDS` at most; 0 turns captures off."""
        self._ends_at = trio.current_time() + min(seconds, CAPTURE_SECONDS)
        self.expire()

    def expire(self) -> None:
        """Drop all bodies if captures have ended."""
        if not self.seconds_left:
            self._kept.clear()

    def watch(self, exchange: StreamExchange) -> None:
        """Capture a request of the current task, if captures are on."""
        if not self.seconds_left:
            _current.set(None)
            return
        lines, body = exchange.head.lines, exchange.body
        key = (lines.get("authorization") or lines.get("x-api-key") or "").rpartition(" ")[2]
        capture = Capture(body[:BODY_BYTES], len(body), key)
        _current.set(capture)
        exchange.observer = capture.see

    def keep(self, number: int) -> bool:
        """Keep the bodies of the current task's request under its number; return whether there are any."""
        capture = _current.get()
        if capture is None or not self.seconds_left:
            return False
        capture.number = number
        self._kept.append(capture)
        return True

    def of(self, number: int) -> Capture | None:
        """Return the bodies of a request; None if they are not kept."""
        return next((each for each in self._kept if each.number == number), None)


def body_of(response: bytes) -> bytes:
    """Return the body of an HTTP response, or its start, without chunks."""
    head, _, rest = response.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    pieces = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16) if re.fullmatch(rb"[0-9a-fA-F]{1,8}", size) else 0  # the end, or an unusual chunk
        if not length:
            break
        pieces.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(pieces)
