"""Errors of API calls, classified by who can fix them.

```
ApiError
├── UserError      BadRequestError 400, InvalidError 422, SchemaMismatchError 400 or 500
└── ExternalError  UnauthorizedError 401, ForbiddenError 403, NotFoundError 404, ConflictError 409,
                   AlreadyExistsError 409, GoneError 410, TooManyRequestsError 429, ServerError 5xx,
                   TransportError (WatchDataError, WatchSilentError), CredentialsError
```

* `except ApiError` catches every failure of a call. A plain `ApiError` has a code that no subclass covers (405, 406,
  413, 415).
* 404, 409, 410 and 422 are trusted only with a `Status` object as the body: a proxy or a captive portal that answers
  404 with a page knows nothing about our objects. Without a `Status` they are a `TransportError`.
* A server-side apply of a field that the installed schema lacks is answered with a 500 without a reason (seen with
  Kubernetes 1.36), although a retry cannot help. It is a `SchemaMismatchError`.
"""

import re
from collections.abc import Mapping
from typing import Any

from llmkube.base import json_text
from llmkube.base.errors import ExternalError, LLMKubeError, UserError

_EXCERPT_CHARACTERS = 160

# apimachinery's prefix, then structured-merge-diff's text: one `.path: why`, or "errors:" and one such on each line.
_UNTYPED_APPLY = re.compile(
    r"failed to create typed patch object \([^)]*\): (?:errors:\s*)?"
    r"(?P<path>\.(?:\[[^\]]*\]|[^:\s\[])+): (?P<why>[^\n]*)"
)


class ApiError(LLMKubeError):
    """A call to the API server failed.

    Attributes:
        code: The HTTP status, or 0 without a response.
        reason: The machine-readable reason of the server's `Status` ("NotFound"), or empty.
        message: The server's message.
        status: The whole `Status` object, or empty.
        retry_after_seconds: The delay that the server requests, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        status: Mapping[str, Any] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.status: Mapping[str, Any] = status or {}
        self.retry_after_seconds = retry_after_seconds


class BadRequestError(ApiError, UserError):
    """The server does not understand the request (400), for example an unknown field under strict validation."""


class InvalidError(ApiError, UserError):
    """The object violates its schema or a rule (422); `field` is the path of the first violation."""


class SchemaMismatchError(ApiError, UserError):
    """An apply does not match the server's schema; `field` is the path, such as `status.newField`."""


class UnauthorizedError(ApiError, ExternalError):
    """The credentials were refused (401), even after they were renewed."""


class ForbiddenError(ApiError, ExternalError):
    """These credentials may not do this (403); the message names the verb and the resource."""


class NotFoundError(ApiError, ExternalError):
    """The object does not exist, as a `Status` of the server states (404)."""


class ConflictError(ApiError, ExternalError):
    """Another client wrote first or owns the field, or a precondition failed (409)."""


class AlreadyExistsError(ApiError, ExternalError):
    """The name is taken (409, reason AlreadyExists)."""


class GoneError(ApiError, ExternalError):
    """The resourceVersion or the `continue` token is too old (410): list again."""


class TooManyRequestsError(ApiError, ExternalError):
    """The server is shedding load (429); retry after `retry_after_seconds`."""


class ServerError(ApiError, ExternalError):
    """The server, or a proxy in front of it, failed (5xx)."""


class TransportError(ApiError, ExternalError):
    """No valid response of an API server: connection refused or reset, timeout, TLS, or unexpected content."""


class WatchDataError(TransportError):
    """A watch sent data that no API server sends; resuming from the same resourceVersion would meet it again."""


class WatchSilentError(TransportError):
    """A watch was silent for longer than the interval in which a server sends bookmarks."""


class CredentialsError(ApiError, ExternalError):
    """Our credentials are unavailable: an exec plugin failed, or a token file cannot be read."""


class NameTakenError(UserError):
    """An object of this name exists and belongs to another owner; the API server would have allowed the write.

    Attributes:
        transient: The object will disappear: it belongs to a predecessor with the owner's name, or is being deleted.
    """

    reason = "NameTaken"
    transient = False


_BY_CODE: Mapping[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}

_NEEDS_STATUS_BODY = frozenset({400, 404, 409, 410, 422})


def error_from_status(
    status: Mapping[str, Any], *, code: int = 0, retry_after_seconds: float | None = None
) -> ApiError:
    """Return the error that a `Status` object describes; `code` is used when the object has none."""
    code = status.get("code") or code
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or reason or f"the API server answered {code} without a message")
    details = status.get("details") or {}
    if retry_after_seconds is None and details.get("retryAfterSeconds"):
        retry_after_seconds = float(details["retryAfterSeconds"])
    mismatch = _UNTYPED_APPLY.match(message) if code in (400, 500) else None
    if mismatch is not None:
        refused = SchemaMismatchError(_mismatch_message(mismatch), code=code, reason=reason, status=status)
        refused.field = mismatch["path"].removeprefix(".")
        return refused
    error = _class_for(code, reason)(
        message, code=code, reason=reason, status=status, retry_after_seconds=retry_after_seconds
    )
    if isinstance(error, UserError):
        causes = details.get("causes") or [{}]
        error.field = str(causes[0].get("field") or "")  # the server's message names it already
    return error


def error_from_response(call: str, code: int, body: bytes, *, retry_after: str = "") -> ApiError:
    """Return the error that an answer with a failing HTTP status describes.

    Args:
        call: The request, for messages ("GET /api/v1/pods").
        code: The HTTP status.
        body: The whole body.
        retry_after: The Retry-After header; API servers do not use its date form, which is ignored.
    """
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    status = _parse_status(body)
    if status is not None:
        return error_from_status(status, code=code, retry_after_seconds=seconds)
    message = f"{call}: status {code} without a Kubernetes Status: {excerpt(body)}"
    if code == 404:  # kube-apiserver answers "404 page not found" in plain text for a path that it does not serve
        message = (
            f"{call}: not served here (404 without a Kubernetes Status): wrong server, or is the CRD not installed?"
        )
    cls = TransportError if code < 400 or code in _NEEDS_STATUS_BODY else _class_for(code, "")
    return cls(message, code=code, retry_after_seconds=seconds)


def excerpt(body: bytes) -> str:
    """Return the beginning of an unexpected body, printable, on one line and in quotes."""
    return repr(printable_line(body[: 4 * _EXCERPT_CHARACTERS], _EXCERPT_CHARACTERS))


def printable_line(text: bytes, most: int) -> str:
    """Return the beginning of a text, printable and on one line."""
    line = " ".join(text.decode("utf-8", errors="replace").split())
    printable = "".join(c if c.isprintable() else "?" for c in line)
    return printable[:most] + ("…" if len(printable) > most else "")


def root_cause_text(error: BaseException) -> str:
    """Return the texts of an error and its causes down to the root; wrappers often have no text at all."""
    texts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        # The text of a group ends with the number of its members, which does not help a reader.
        text = current.message if isinstance(current, BaseExceptionGroup) else str(current)
        if text and text not in texts:
            texts.append(text)
        if isinstance(current, BaseExceptionGroup) and current.exceptions:
            current = current.exceptions[0]
        else:
            current = current.__cause__ or current.__context__
    return ": ".join(texts) or type(error).__name__


def _mismatch_message(mismatch: re.Match[str]) -> str:
    problem = f"{mismatch['path'].removeprefix('.')}: {mismatch['why']}"
    return f"{problem}; the field is misspelled, or the installed CRDs are older than this program"


def _class_for(code: int, reason: str) -> type[ApiError]:
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExistsError
    if reason == "Expired":
        return GoneError
    if code >= 500:
        return ServerError
    return _BY_CODE.get(code, ApiError)


def _parse_status(body: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = json_text.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else None
