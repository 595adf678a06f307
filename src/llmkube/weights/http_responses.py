"""The meaning of HTTP responses for a download; no I/O, so that tests cover every wrong response in a table."""

import datetime
import re
from collections.abc import Mapping
from typing import Final, Literal

import attrs

from llmkube.base.times import parse_http_date
from llmkube.weights.errors import (
    AccessDeniedError,
    FetchError,
    RangeError,
    SourceNotFoundError,
    SourceRefusedError,
    ThrottledError,
    WrongSizeError,
)

Headers = Mapping[str, str]
"""A response's headers, by lower-case name."""

Server = Literal["web", "hub", "bucket", "registry"]
"""The kind of server: a web server, Hugging Face or a mirror of it, a bucket, a registry of images."""

ACCESS_ADVICE: Final = (
    "put a token that may read it into a Secret under the key HF_TOKEN, and name the Secret in spec.sourceSecretRef "
    "(for a gated model, accept its terms on its page first)"
)

BUCKET_ADVICE: Final = (
    "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may read the object (and AWS_REGION or "
    "AWS_ENDPOINT_URL, if needed) into a Secret, and name the Secret in spec.sourceSecretRef (a host "
    "uses the keys of its own environment only with --s3-env-auth)"
)

REGISTRY_ADVICE: Final = (
    "create a Secret for an account that may read it (`kubectl create secret docker-registry`), and name the Secret in "
    "spec.sourceSecretRef"
)

_REGION: Final = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII)
_RATE_LIMIT: Final = re.compile(r"(?:^|;)\s*t=(\d{1,9})(?:;|,|$)", re.ASCII)
_DIGEST: Final = re.compile(r'"?([0-9a-f]{64})"?', re.ASCII)
_MAX_VALIDATOR: Final = 1024  # characters; longer ones are ignored
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@attrs.frozen
class Validator:
    """The identity of a version of a file: its ETag and modification time."""

    etag: str = ""
    last_modified: str = ""

    @classmethod
    def of(cls, headers: Headers) -> "Validator":
        """Return the validators of a response."""
        values = (headers.get("etag", ""), headers.get("last-modified", ""))
        return cls(*(value if len(value) <= _MAX_VALIDATOR and value.isprintable() else "" for value in values))

    @property
    def if_range(self) -> str:
        """The value for If-Range; empty if nothing proves that two parts belong together (RFC 9110, 13.1.5)."""
        strong = self.etag if self.etag.startswith('"') else ""
        return strong or self.last_modified

    def agrees(self, other: "Validator") -> bool:
        """Return whether both may be of one version: no value that both have differs."""
        return all(
            not (mine and theirs) or mine == theirs
            for mine, theirs in ((self.etag, other.etag), (self.last_modified, other.last_modified))
        )


@attrs.frozen
class RemoteVersion:
    """The size, digest and version of a file on a server."""

    size_bytes: int | None
    sha256: str | None
    validator: Validator


@attrs.frozen
class ReadBody:
    """Read the body into the file at `offset`; 0 discards the bytes that are present.

    Attributes:
        offset: The position of the first byte of the body.
        total_bytes: The size of the whole file; None if the server does not state it.
        validator: Of the version that the server sends.
        framed: Whether the end of the body can be distinguished from a broken connection.
    """

    offset: int
    total_bytes: int | None
    validator: Validator
    framed: bool = True


@attrs.frozen
class Restart:
    """The prefix is invalid: discard it and request the whole file."""

    reason: str


@attrs.frozen
class AlreadyComplete:
    """There is nothing left to read."""


@attrs.frozen
class RangeRequest:
    """The facts of a request that are needed to interpret its response.

    Attributes:
        shown: The source, for messages.
        offset: The first byte of the requested range; 0 for the whole file.
        validator: Of the prefix that is present.
        total_bytes: The size of the whole file, if already known.
        server: The kind of server.
        credential: Whether a token, a password or a signature was sent.
    """

    shown: str
    offset: int = 0
    validator: Validator = Validator()
    total_bytes: int | None = None
    server: Server = "web"
    credential: bool = False


def interpret(
    request: RangeRequest, status: int, headers: Headers, *, redirected: bool, now: datetime.datetime
) -> ReadBody | Restart | AlreadyComplete:
    """Return how to proceed after a response to a request for a file.

    Raises:
        UserError: A retry cannot succeed; see `weights.errors`.
        FetchError: A retry may succeed.
    """
    if status == 200:
        _refuse_encoding(request, headers)
        total = content_length(headers)
        if None not in (total, request.total_bytes) and request.offset == 0 and total != request.total_bytes:
            raise WrongSizeError(f"{request.shown} should have {request.total_bytes} bytes, the server sends {total}")
        framed = total is not None or "chunked" in headers.get("transfer-encoding", "").lower()
        return ReadBody(0, request.total_bytes if total is None else total, Validator.of(headers), framed)
    if status == 206 and request.offset:
        return interpret_part(request, headers)
    if status == 416 and request.offset:
        found, start = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip()), request.offset
        if found and found[1] is None and found[3] == str(start) and request.total_bytes in (None, start):
            return AlreadyComplete()
        return Restart("the server's file is shorter than the part that was downloaded before")
    raise refusal(request, status, headers, redirected=redirected, now=now)


def refusal(
    request: RangeRequest, status: int, headers: Headers, *, redirected: bool, now: datetime.datetime
) -> SourceNotFoundError | AccessDeniedError | SourceRefusedError | FetchError:
    """Return the error for a status without a file."""
    hub_message = _hub_message(headers) if request.server == "hub" else ""
    message = f"{request.shown}: the server answered {status}{hub_message}"
    if request.server == "bucket" and status == 400 and (region := other_region(headers)):
        return SourceRefusedError(f"{message}: the bucket is in {region}; set AWS_REGION to {region}")
    if status in _RETRYABLE:
        wait = wait_seconds(headers, now)
        when = "" if wait is None else f"; it requests a pause of {wait:.0f} s"
        if status in (429, 503) or wait is not None:
            return ThrottledError(f"{message}{when}", wait_seconds=wait)
        return FetchError(message)
    if redirected:
        # A signed link has expired, or a mirror is broken: the source may return another one.
        return FetchError(f"{message} after a redirect")
    if status in (401, 403):
        return _denied(request, message, status)
    if status in (404, 410):
        return SourceNotFoundError(f"{message}: no such file; check the name and the revision")
    return SourceRefusedError(f"{message}, which is not a file; open the URL in a browser to see the response")


def _denied(request: RangeRequest, message: str, status: int) -> AccessDeniedError | FetchError:
    if request.server == "hub":
        cause = "the token that was sent has no permission to read it" if request.credential else "a token is required"
        return AccessDeniedError(f"{message}: {cause}; {ACCESS_ADVICE}")
    if request.server == "bucket":
        # Without permission to list, a bucket sends the same response for an object that does not exist.
        cause = "the key may not read it, or no such object exists" if request.credential else "a key is required"
        return AccessDeniedError(f"{message}: {cause}; {BUCKET_ADVICE}")
    if request.server == "registry":
        if request.credential and status == 401:
            return FetchError(f"{message}: the registry rejected the token that it had issued")
        return AccessDeniedError(f"{message}: access denied; {REGISTRY_ADVICE}")
    return AccessDeniedError(
        f"{message}: access denied; check the user and password, or the signature, in the URL, "
        "or download the file yourself and use its path"
    )


def wait_seconds(headers: Headers, now: datetime.datetime) -> float | None:
    """Return the pause that the server requests: `Retry-After` in either form, else the `t` of `RateLimit`; or None.

    A date is compared with the response's own Date, if it has one, so that two clocks are not compared.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    until = parse_http_date(text)
    if until is not None:
        return max((until - (parse_http_date(headers.get("date", "")) or now)).total_seconds(), 0.0)
    found = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(found[1]) if found else None


def other_region(headers: Headers) -> str:
    """Return the bucket's region if the request was sent to another one, or ""."""
    region = headers.get("x-amz-bucket-region", "").strip()
    return region if _REGION.fullmatch(region) else ""


def linked_digest(headers: Headers) -> str | None:
    """Return the hub's SHA-256 of a file in LFS, or None."""
    found = _DIGEST.fullmatch(headers.get("x-linked-etag", "").strip())
    return found[1] if found else None


def linked_size(headers: Headers) -> int | None:
    """Return the hub's size of a file in LFS, or None."""
    return _number(headers.get("x-linked-size", ""))


def range_total(headers: Headers) -> int | None:
    """Return the size of the whole file from a 206, or None."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    return _number(found[3]) if found else None


def interpret_part(request: RangeRequest, headers: Headers) -> ReadBody | Restart:
    """Return how to proceed after a 206 for a range, which may begin at 0.

    Raises:
        SourceRefusedError: The part is compressed.
        RangeError: It is not the requested part, or the server does not state which.
    """
    _refuse_encoding(request, headers)
    text = headers.get("content-range", "").strip()
    found = _CONTENT_RANGE.fullmatch(text)
    if found is None or found[1] is None:
        raise RangeError(f"{request.shown}: the server sent a part without a valid Content-Range ({text[:80]!r})")
    start, end, total = int(found[1]), int(found[2]), _number(found[3])
    if start != request.offset or end < start or (total is not None and end >= total):
        raise RangeError(f"{request.shown}: bytes {request.offset}- were requested, the server sent {text[:80]!r}")
    length = content_length(headers)
    if length is not None and length != end - start + 1:
        raise RangeError(f"{request.shown}: the server sent {length} bytes with Content-Range {text[:80]!r}")
    total = request.total_bytes if total is None else total
    if total is None:
        raise RangeError(f"{request.shown}: the server does not state the size of the file ({text[:80]!r})")
    received, known = Validator.of(headers), request.validator
    if not known.agrees(received) or request.total_bytes not in (None, total):
        return Restart("the file on the server has changed since the download began")
    merged = Validator(received.etag or known.etag, received.last_modified or known.last_modified)
    return ReadBody(request.offset, total, merged)


def _refuse_encoding(request: RangeRequest, headers: Headers) -> None:
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise SourceRefusedError(
            f"{request.shown}: the server compresses the file ({encoding[:40]!r}) despite the request's headers; "
            "turn compression off for .gguf files there"
        )


def _hub_message(headers: Headers) -> str:
    code, message = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    text = " ".join(word for word in (code, message) if word)[:200]
    return f" ({text})" if text and text.isprintable() else ""


def content_length(headers: Headers) -> int | None:
    """Return the declared size of a response's body, or None."""
    return _number(headers.get("content-length", ""))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII) else None
