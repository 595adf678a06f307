"""One door from an API server's refusals to our error nouns: each says who is at fault.

```
ApiError
├── user's fault   BadRequestError 400, InvalidError 422, SchemaMismatchError 400 or 500
└── world's fault  UnauthorizedError 401, ForbiddenError 403, NotFoundError 404, ConflictError 409,
                   AlreadyExistsError 409, GoneError 410, TooManyRequestsError 429, ServerError 5xx,
                   TransportError (WatchDataError, WatchSilentError), CredentialsError
```

`except ApiError` therefore catches every way in which a call can fail. A plain `ApiError` is a code that none of these
covers (405, 406, 413, 415).

An error that changes what we believe about an object (404, 409, 410, 422) is believed only in the server's own words, a
`Status` object: a proxy or a captive portal that answers 404 with a page says nothing about our objects, and is a
`TransportError`.

One answer is not taken at its code: a server-side apply that names a field which the installed schema does not have is
a 500 without a reason (seen with Kubernetes 1.36), although asking again cannot help. It is a `SchemaMismatchError`.
"""

import re
from collections.abc import Mapping
from typing import Any

from llmkube.base import json_text
from llmkube.base.errors import ExternalError, LLMKubeError, UserError

_EXCERPT_CHARACTERS = 160

# apimachinery's prefix, then structured-merge-diff's words: one `.path: why`, or "errors:" and one such on each line.
_UNTYPED_APPLY = re.compile(
    r"failed to create typed patch object \([^)]*\): (?:errors:\s*)?"
    r"(?P<path>\.(?:\[[^\]]*\]|[^:\s\[])+): (?P<why>[^\n]*)"
)


class ApiError(LLMKubeError):
    """A call to the API server failed.

    Attributes:
        code: The HTTP status, or 0 when no answer came.
        reason: The machine-readable reason of the server's `Status` ("NotFound"), or empty.
        message: The server's sentence.
        status: The whole `Status` object, or empty.
        retry_after_seconds: When the server wants to be asked again, or None when it did not say.
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
    """The request makes no sense to the server (400), for example an unknown field under strict validation."""


class InvalidError(ApiError, UserError):
    """The object breaks its schema or a rule (422); `field` is the path of the first offence."""


class SchemaMismatchError(ApiError, UserError):
    """An apply does not fit the schema that the server has; `field` is the path, such as `status.newField`."""


class UnauthorizedError(ApiError, ExternalError):
    """The credentials were refused (401), also after they were renewed."""


class ForbiddenError(ApiError, ExternalError):
    """These credentials may not do this (403); the message names the verb and the resource."""


class NotFoundError(ApiError, ExternalError):
    """The server says that there is no such object (404)."""


class ConflictError(ApiError, ExternalError):
    """Another client wrote first or owns the field, or a precondition failed (409)."""


class AlreadyExistsError(ApiError, ExternalError):
    """The name is taken (409, reason AlreadyExists)."""


class GoneError(ApiError, ExternalError):
    """The resourceVersion or the `continue` token is too old (410): list again."""


class TooManyRequestsError(ApiError, ExternalError):
    """The server sheds load (429); `retry_after_seconds` says for how long."""


class ServerError(ApiError, ExternalError):
    """The server, or a proxy before it, broke (5xx)."""


class TransportError(ApiError, ExternalError):
    """No answer of an API server came: refused, reset, silent, TLS, or bytes that are not what was asked for."""


class WatchDataError(TransportError):
    """A watch sent something that no API server sends; asking again from the same place would meet it again."""


class WatchSilentError(TransportError):
    """A watch fell silent for longer than a server that honours its promise of bookmarks ever is."""


class CredentialsError(ApiError, ExternalError):
    """Our own credentials cannot be had now: an exec plugin failed, a token file cannot be read."""


class NameTakenError(UserError):
    """An object of this name exists and is not ours to change; the API server would not have minded.

    Attributes:
        passing: It goes by itself: a predecessor of the owner's name had it, or it is being deleted.
    """

    reason = "NameTaken"
    passing = False


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
        call: What was asked, for messages ("GET /api/v1/pods").
        code: The HTTP status.
        body: The whole body.
        retry_after: The Retry-After header; its date form is not used by API servers and reads as absent.
    """
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    status = _parse_status(body)
    if status is not None:
        return error_from_status(status, code=code, retry_after_seconds=seconds)
    message = f"{call}: answered {code} without a Kubernetes Status: {excerpt(body)}"
    if code == 404:  # kube-apiserver says "404 page not found" in plain text for a path that it does not serve
        message = (
            f"{call}: not served here (404 without a Kubernetes Status): wrong server, or is the CRD not installed?"
        )
    cls = TransportError if code < 400 or code in _NEEDS_STATUS_BODY else _class_for(code, "")
    return cls(message, code=code, retry_after_seconds=seconds)


def excerpt(body: bytes) -> str:
    """Return the beginning of a foreign body, printable and on one line."""
    text = " ".join(body[: 4 * _EXCERPT_CHARACTERS].decode("utf-8", errors="replace").split())
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return repr(printable[:_EXCERPT_CHARACTERS] + ("…" if len(printable) > _EXCERPT_CHARACTERS else ""))


def root_cause_text(error: BaseException) -> str:
    """Return what first went wrong, in the words of the error that knew: wrappers often have no text at all."""
    texts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        # A group's text also counts its members, which says nothing to a reader.
        text = current.message if isinstance(current, BaseExceptionGroup) else str(current)
        if text and text not in texts:
            texts.append(text)
        if isinstance(current, BaseExceptionGroup) and current.exceptions:
            current = current.exceptions[0]
        else:
            current = current.__cause__ or current.__context__
    return ": ".join(texts) or type(error).__name__


def _mismatch_message(mismatch: re.Match[str]) -> str:
    """Say what does not fit, and why that may be no typo."""
    problem = f"{mismatch['path'].removeprefix('.')}: {mismatch['why']}"
    return f"{problem}; the field is misspelled, or the CRDs that are installed are older than this program"


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
