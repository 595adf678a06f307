"""Allow-lists of the headers that the router forwards in either direction. Pure.

A client's credentials, cookies and data class are not forwarded to backends; a backend's cookies, server name and
location are not forwarded to clients.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from llmkube import __version__
from llmkube.base.http.message import Headers, encode_lines
from llmkube.router.config.routing_config import Backend
from llmkube.router.dialects.messages_backend import VERSION

_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""W3C trace context, version 00, and later versions, which may append fields."""

_TRACE_STATE: Final = re.compile(r"[\x20-\x7e]{1,512}")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ANSWER_NAMES: Final = frozenset({"retry-after", "openai-model", "openai-processing-ms"})
_ANSWER_PREFIXES: Final = ("x-ratelimit-",)


def request_id_of(headers: Mapping[str, str], fresh: str) -> str:
    """Return the client's request ID if it is safe to log, else a fresh one."""
    named = headers.get("x-request-id", "")
    return named if named and _REQUEST_ID.fullmatch(named) else fresh


def trace_of(headers: Mapping[str, str], fresh: str) -> Mapping[str, str]:
    """Return the trace headers of a request; start a new trace if it has none.

    Args:
        headers: Headers of the client, names in lower case.
        fresh: 48 hexadecimal digits for a trace ID and a span ID.
    """
    parent = headers.get("traceparent", "")
    if (
        not parent
        or not _TRACE_PARENT.fullmatch(parent)
        or parent.startswith("ff")
        or (parent.startswith("00") and len(parent) > 55)
    ):
        return {"traceparent": f"00-{fresh[:32]}-{fresh[32:48]}-01"}
    state = headers.get("tracestate", "")
    return {"traceparent": parent} | ({"tracestate": state} if _TRACE_STATE.fullmatch(state) else {})


def request_lines(backend: Backend, key: str, request_id: str, trace: Mapping[str, str]) -> bytes:
    """Return the header lines of one attempt, with the credentials of this backend.

    Request ID and trace are those of `request_id_of` and `trace_of`, which are printable.

    Raises:
        ValueError: The key contains a line break.
    """
    lines = b"%bX-Request-Id: %b\r\n" % (_lines_for(backend.dialect), request_id.encode("ascii"))
    for name, value in trace.items():
        lines += f"{name}: {value}\r\n".encode("ascii")
    if key:
        lines += encode_lines(
            [("X-Api-Key", key) if backend.dialect == "anthropic" else ("Authorization", f"Bearer {key}")]
        )
    return lines


@lru_cache(maxsize=16)
def _lines_for(dialect: str) -> bytes:
    """Return the constant header lines for backends of a dialect."""
    lines = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": "identity",
        "User-Agent": f"llmkube/{__version__}",
    }
    if dialect == "anthropic":
        lines["Anthropic-Version"] = VERSION
    return encode_lines(lines.items())


def answer_lines(received: Headers, request_id: str, backend: str, more: str = "") -> bytes:
    """Return the header lines of a response for the client; `more` are further ones that the router adds."""
    return b"%bX-Request-Id: %b\r\n%b%b" % (
        received.derived(_forwarded_lines),
        request_id.encode("ascii"),
        _backend_line(backend),
        more.encode("ascii"),
    )


def _forwarded_lines(received: Headers) -> bytes:
    """Return the lines of a backend's response that are forwarded."""
    return encode_lines(received.lines_of(_ANSWER_NAMES, _ANSWER_PREFIXES))


@lru_cache(maxsize=256)
def _backend_line(name: str) -> bytes:
    return encode_lines([("X-LLMKube-Backend", name)])
