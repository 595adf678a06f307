"""Decides whether the response of a backend is an answer, or a failure that causes a fallback to the next one. Pure.

Only the causes in this module cause a fallback: content refusals and errors in the request itself are answers.
"""

import enum
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import attrs

from llmkube.base.http.message import Headers
from llmkube.router.backends import NOT_FOUND, NOT_READY, will_be_ready
from llmkube.router.config.routing_config import is_local_url
from llmkube.router.dialects.error_shapes import CONTEXT_FULL, error_of, find_words

MAX_RETRY_AFTER_SECONDS: Final = 3600.0
"""Upper limit for the retry delay that a backend requests."""

_ADDRESSES: Final = re.compile(
    r"(?:https?|wss?|grpc|tcp|redis|postgres(?:ql)?)://(?:\[[0-9A-Fa-f:.]+\])?[^\s\"'<>()\[\]{},;]*"  # a URL
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.]*\w)"  # an IPv4 address
    r"|(?<![\w.-])[a-z0-9][\w.-]*\.(?:svc|cluster\.local|internal)(?::\d+)?(?![\w-])"  # a name of the cluster
)


class Cause(enum.Enum):
    """Cause of a failed attempt; the values are labels of a metric."""

    CONNECT = "connect_error"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    RATE_LIMITED = "rate_limited"
    LOADING = "loading"
    BROKEN = "broken_off"
    MALFORMED = "malformed"
    REDIRECT = "redirect"
    CIRCUIT = "circuit_open"
    KEY = "no_key"
    MISSING = "not_available"
    NOT_READY = "not_ready"
    NOT_LOADED = "not_loaded"
    UNSUPPORTED = "unsupported"
    QUEUE = "queue"
    FROZEN = "frozen"
    INTERRUPTED = "interrupted"
    BUDGET = "budget_exhausted"
    BUDGET_STORE = "budget_not_kept"
    CULPRIT = "ended_engines"


@attrs.frozen
class Failure:
    """A failed attempt.

    Attributes:
        detail: Details for the log and the audit log; clients get them only if no backend supports the request, or for
            budgets.
        status: Status of the backend; 0 without a response. For an error that came with 200 and before any content, the
            status that it should have had.
        retry_after_seconds: Retry delay that the backend requests.
        has_siblings: For `QUEUE`: whether more requests of the same tenant wait.
        reason: Reason of the condition of a service that is not ready; "" for other failures.
        is_stuck: Whether such a service stays unready until a person acts.
    """

    cause: Cause
    detail: str
    status: int = 0
    retry_after_seconds: float | None = None
    has_siblings: bool = False
    reason: str = ""
    is_stuck: bool = False

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault of the backend, which its circuit counts."""
        return self.cause not in _NO_FAULT

    @property
    def is_own(self) -> bool:
        """Whether the request itself may have caused it; other failures are evidence for all requests."""
        return self.cause not in _INDEPENDENT


INTERRUPTED: Final = Failure(Cause.INTERRUPTED, "its engine stopped before the end of the answer", 200)
"""Failure after which another engine can continue the answer."""

FINAL: Final = frozenset({Cause.BUDGET, Cause.BUDGET_STORE, Cause.CULPRIT})
"""Causes after which no other backend is tried."""

_INDEPENDENT: Final = frozenset({Cause.CONNECT, Cause.FROZEN, Cause.REDIRECT})
_NO_FAULT: Final = FINAL | {
    *(Cause.CIRCUIT, Cause.KEY, Cause.MISSING, Cause.NOT_READY, Cause.NOT_LOADED),
    *(Cause.LOADING, Cause.RATE_LIMITED, Cause.UNSUPPORTED, Cause.QUEUE),
}
_CONTENT_CODES: Final = frozenset(
    {
        "content_filter",
        "content_filtered",
        "content_policy_violation",
        "contentpolicyviolationerror",
        "moderation_blocked",
        "responsibleaipolicyviolation",
        "safety",
    }
)
_REQUEST_TYPES: Final = frozenset(
    {
        *("exceed_context_size_error", "invalid_request_error", "not_supported_error", CONTEXT_FULL),
        *("badrequesterror", "validation", "validation_error"),
    }
)
"""Types and codes of errors in the request, which some servers send with status 500."""

_STATUS_OF_TYPE: Final[Mapping[str, int]] = {
    "authentication_error": 401,
    CONTEXT_FULL: 400,
    "insufficient_quota": 429,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
}


def is_content_refusal(error: Mapping[str, Any]) -> bool:
    """Return whether an error refuses the content of the request."""
    inner = error.get("innererror")
    codes = [error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None]
    return any(isinstance(code, str) and code.lower() in _CONTENT_CODES for code in codes)


def error_in(answer: object, *, refused: bool = False) -> Mapping[str, Any] | None:
    """Return the error in a response body or an event; None if it has none; for `refused` see `error_of`."""
    error = error_of(answer, refused=refused)
    if error is None:
        return None
    return {name: redact_addresses(each) if isinstance(each, str) else each for name, each in error.items()}


def redact_addresses(text: str) -> str:
    """Return a message of a backend without addresses of local networks, which clients must not see."""
    return _ADDRESSES.sub(lambda found: "(an address)" if _is_local(found[0]) else found[0], text)


def _is_local(address: str) -> bool:
    try:
        return is_local_url(address if "://" in address else f"http://{address}")
    except ValueError:  # it only looks like a URL
        return False


def status_of_error(error: Mapping[str, Any]) -> int:
    """Return the status that an error with status 200 should have had."""
    if is_content_refusal(error):
        return 400
    for name in ("status", "code"):
        value = error.get(name)
        number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) == 3 else value
        if isinstance(number, int) and 400 <= number <= 599:
            return number
    for name in ("type", "code"):
        if isinstance(value := error.get(name), str) and value in _STATUS_OF_TYPE:
            return _STATUS_OF_TYPE[value]
    return 502


def failure_in(status: int, headers: Headers, error: Mapping[str, Any] | None, *, ours: bool) -> Failure | None:
    """Return the failure that causes a fallback; None if the response is an answer.

    Args:
        status: Status of the response.
        headers: Headers of the response.
        error: Result of `error_in` for its body.
        ours: Whether the backend is a gateway or engine of ours, which returns 503 while it loads.
    """
    if error is not None and is_content_refusal(error):
        return None
    if 300 <= status < 400:
        return Failure(Cause.REDIRECT, f"HTTP {status}: redirects are not followed", status)
    if status == 429:
        return Failure(Cause.RATE_LIMITED, "HTTP 429", status, retry_after(headers) or 1.0)
    if status == 503 and ours and error is not None:
        reason = str(error.get("reason", "")) if error.get("code") == NOT_READY else ""
        if reason and not will_be_ready(reason):
            is_stuck = headers.get("x-should-retry") == "false"
            return Failure(Cause.NOT_READY, str(error.get("message")), status, reason=reason, is_stuck=is_stuck)
        if reason or _is_loading(error):
            return Failure(Cause.LOADING, "it is loading its model", status)
    if status == 404 and ours and error is not None and error.get("code") == NOT_FOUND:
        return Failure(Cause.MISSING, "its gateway has no such model", status)
    if status >= 500 and error is not None and is_request_error(error):
        return Failure(Cause.UNSUPPORTED, str(error.get("message")), status)
    if status >= 500:
        return Failure(Cause.SERVER_ERROR, f"HTTP {status}", status, retry_after(headers))
    return None


def retry_after(headers: Headers) -> float | None:
    """Return the retry delay that a backend requests, in seconds; None if there is none or it is malformed."""
    text = (headers.get("retry-after") or "").strip()
    if not text:
        return None
    if text.isdecimal() and text.isascii():
        return min(float(text[:9]), MAX_RETRY_AFTER_SECONDS)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date") or "")
        return min(max((until - now).total_seconds(), 0.0), MAX_RETRY_AFTER_SECONDS)
    except (TypeError, ValueError):
        return None  # a date is useless without the backend's own clock in `Date`


def is_request_error(error: Mapping[str, Any]) -> bool:
    """Return whether an error with status 500 or higher reports an error in the request, or an unsupported input."""
    kinds = [each.lower() for name in ("type", "code") if isinstance(each := error.get(name), str)]
    words = str(error.get("message", ""))
    return not _REQUEST_TYPES.isdisjoint(kinds) or any(find_words(name, words) for name in ("request", "blind"))


def _is_loading(error: Mapping[str, Any]) -> bool:
    """Return whether llama.cpp's server, which has no code for it, or a gateway without a reason reports loading."""
    return "loading" in str(error.get("message", "")).lower() or error.get("code") == NOT_READY
