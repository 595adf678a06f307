"""What an HTTP answer means for a download: pure, so that every lie a server can tell is a row of a table."""

import datetime
import email.utils
import re
from collections.abc import Mapping
from typing import Final, Literal

import attrs

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
"""An answer's headers; looked up in lower case."""

Server = Literal["web", "hub", "bucket", "registry"]
"""Who has a file: any web server, Hugging Face or a mirror of it, a bucket, a registry of images."""

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
    "make a Secret of an account that may read it with `kubectl create secret docker-registry`, and name the Secret in "
    "spec.sourceSecretRef"
)

_REGION: Final = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII)
_RATE_LIMIT: Final = re.compile(r"(?:^|;)\s*t=(\d{1,9})(?:;|,|$)", re.ASCII)
_DIGEST: Final = re.compile(r'"?([0-9a-f]{64})"?', re.ASCII)
_MAX_VALIDATOR: Final = 1024  # characters; longer ones are not worth keeping
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@attrs.frozen
class Validator:
    """What identifies a version of a file: its ETag, and when it was changed."""

    etag: str = ""
    last_modified: str = ""

    @classmethod
    def of(cls, headers: Headers) -> "Validator":
        """Read the validators of an answer."""
        values = (headers.get("etag", ""), headers.get("last-modified", ""))
        return cls(*(value if len(value) <= _MAX_VALIDATOR and value.isprintable() else "" for value in values))

    @property
    def if_range(self) -> str:
        """What goes into If-Range, or empty when nothing proves that two parts belong together (RFC 9110, 13.1.5)."""
        strong = self.etag if self.etag.startswith('"') else ""
        return strong or self.last_modified

    def agrees(self, other: "Validator") -> bool:
        """Say whether the two may be of one version: nothing that both name differs."""
        return all(
            not (mine and theirs) or mine == theirs
            for mine, theirs in ((self.etag, other.etag), (self.last_modified, other.last_modified))
        )


@attrs.frozen
class RemoteVersion:
    """What a server says of a file without sending it."""

    size_bytes: int | None
    sha256: str | None
    validator: Validator


@attrs.frozen
class ReadBody:
    """Read the body; it goes to `offset` in the file (0: what is there already is void).

    Attributes:
        offset: Where the first byte of the body belongs.
        total_bytes: Size of the whole file; None if the server does not say.
        validator: Of the version that is coming.
        framed: Whether a complete body differs from a cut connection.
    """

    offset: int
    total_bytes: int | None
    validator: Validator
    framed: bool = True


@attrs.frozen
class Restart:
    """The prefix is of no use: drop it, and ask for the whole file."""

    reason: str


@attrs.frozen
class AlreadyComplete:
    """There is nothing left to read."""


@attrs.frozen
class RangeRequest:
    """What was asked for, and by whom.

    Attributes:
        shown: The source, for messages.
        offset: First byte of the range that was asked for; 0 for the whole file.
        validator: Of the prefix that is there.
        total_bytes: Size of the whole file, where it is known before.
        server: What the server is.
        credential: Whether a token, a password or a signature was sent along.
    """

    shown: str
    offset: int = 0
    validator: Validator = Validator()
    total_bytes: int | None = None
    server: Server = "web"
    credential: bool = False


def interpret(
    asked: RangeRequest, status: int, headers: Headers, *, redirected: bool, now: datetime.datetime
) -> ReadBody | Restart | AlreadyComplete:
    """Say what to do with an answer to a request for a file.

    Raises:
        UserError: No later attempt gets a file this way; see `weights.errors`.
        FetchError: Later, perhaps.
    """
    if status == 200:
        _refuse_encoding(asked, headers)
        total = content_length(headers)
        if None not in (total, asked.total_bytes) and asked.offset == 0 and total != asked.total_bytes:
            raise WrongSizeError(f"{asked.shown} should have {asked.total_bytes} bytes, the server sends {total}")
        framed = total is not None or "chunked" in headers.get("transfer-encoding", "").lower()
        return ReadBody(0, asked.total_bytes if total is None else total, Validator.of(headers), framed)
    if status == 206 and asked.offset:
        return interpret_part(asked, headers)
    if status == 416 and asked.offset:
        found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
        if found and found[1] is None and found[3] == str(asked.offset) and asked.total_bytes in (None, asked.offset):
            return AlreadyComplete()
        return Restart("the server's file is shorter than what was downloaded before")
    raise refusal(asked, status, headers, redirected=redirected, now=now)


def refusal(
    asked: RangeRequest, status: int, headers: Headers, *, redirected: bool, now: datetime.datetime
) -> SourceNotFoundError | AccessDeniedError | SourceRefusedError | FetchError:
    """Return the error for a status that carries no file."""
    hub_message = _hub_message(headers) if asked.server == "hub" else ""
    message = f"{asked.shown}: the server answered {status}{hub_message}"
    if asked.server == "bucket" and status == 400 and (region := other_region(headers)):
        return SourceRefusedError(f"{message}: the bucket is in {region}; set AWS_REGION to that")
    if status in _RETRYABLE:
        wait = wait_seconds(headers, now)
        when = "" if wait is None else f"; it asks to wait {wait:.0f} s"
        if status in (429, 503) or wait is not None:
            return ThrottledError(f"{message}{when}", wait_seconds=wait)
        return FetchError(message)
    if redirected:
        # A signed link has expired, or a mirror is broken: the source itself may hand out a better one.
        return FetchError(f"{message} after a redirect")
    if status in (401, 403):
        return _denied(asked, message, status)
    if status in (404, 410):
        return SourceNotFoundError(f"{message}: there is no such file; check the name and the revision")
    return SourceRefusedError(f"{message}, which is no file; open the URL in a browser to see what it says")


def _denied(asked: RangeRequest, message: str, status: int) -> AccessDeniedError | FetchError:
    if asked.server == "hub":
        cause = "the token that was sent has no right to read it" if asked.credential else "it needs a token"
        return AccessDeniedError(f"{message}: {cause}; {ACCESS_ADVICE}")
    if asked.server == "bucket":
        # Without the right to list, a bucket answers the same for an object that is not there.
        cause = "the key has no right to read it, or there is no such object" if asked.credential else "it needs a key"
        return AccessDeniedError(f"{message}: {cause}; {BUCKET_ADVICE}")
    if asked.server == "registry":
        if asked.credential and status == 401:
            return FetchError(f"{message}: what the registry gave as a token is not, or no longer, taken")
        return AccessDeniedError(f"{message}: access is denied; {REGISTRY_ADVICE}")
    return AccessDeniedError(
        f"{message}: access is denied; check the user and password, or the signature, in the URL, "
        "or download the file yourself and name it by its path"
    )


def wait_seconds(headers: Headers, now: datetime.datetime) -> float | None:
    """Return how long the server asks to wait: `Retry-After` in either form, else the `t` of `RateLimit`; or None.

    A date is measured against the answer's own Date, if it has one, so that two clocks are not compared.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    until = _date(text)
    if until is not None:
        return max((until - (_date(headers.get("date", "")) or now)).total_seconds(), 0.0)
    found = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(found[1]) if found else None


def other_region(headers: Headers) -> str:
    """Return the region that S3 says a bucket is in when it was asked for in another one, or nothing."""
    region = headers.get("x-amz-bucket-region", "").strip()
    return region if _REGION.fullmatch(region) else ""


def linked_digest(headers: Headers) -> str | None:
    """Return the SHA-256 that the hub promises for a file in LFS, or None."""
    found = _DIGEST.fullmatch(headers.get("x-linked-etag", "").strip())
    return found[1] if found else None


def linked_size(headers: Headers) -> int | None:
    """Return the size that the hub promises for a file in LFS, or None."""
    return _number(headers.get("x-linked-size", ""))


def range_total(headers: Headers) -> int | None:
    """Return the size of the whole file that a 206 names, or None."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    return _number(found[3]) if found else None


def interpret_part(asked: RangeRequest, headers: Headers) -> ReadBody | Restart:
    """Say what to do with a 206 in answer to a request for a part, which may begin at 0.

    Raises:
        SourceRefusedError: The part is compressed.
        RangeError: It is another part than the one that was asked for, or it is not said which.
    """
    _refuse_encoding(asked, headers)
    text = headers.get("content-range", "").strip()
    found = _CONTENT_RANGE.fullmatch(text)
    if found is None or found[1] is None:
        raise RangeError(f"{asked.shown}: the server sent a part without saying which ({text[:80]!r})")
    start, end, total = int(found[1]), int(found[2]), _number(found[3])
    if start != asked.offset or end < start or (total is not None and end >= total):
        raise RangeError(f"{asked.shown}: bytes {asked.offset}- were asked for, the server sent {text[:80]!r}")
    length = content_length(headers)
    if length is not None and length != end - start + 1:
        raise RangeError(f"{asked.shown}: the server sent {length} bytes as {text[:80]!r}")
    total = asked.total_bytes if total is None else total
    if total is None:
        raise RangeError(f"{asked.shown}: the server does not say how long the file is ({text[:80]!r})")
    validator = Validator.of(headers)
    if not asked.validator.agrees(validator) or asked.total_bytes not in (None, total):
        return Restart("the file on the server has changed since the download began")
    merged = Validator(validator.etag or asked.validator.etag, validator.last_modified or asked.validator.last_modified)
    return ReadBody(asked.offset, total, merged)


def _refuse_encoding(asked: RangeRequest, headers: Headers) -> None:
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise SourceRefusedError(
            f"{asked.shown}: the server compresses the file ({encoding[:40]!r}) although it was asked not to; "
            "turn compression off for .gguf files there"
        )


def _hub_message(headers: Headers) -> str:
    code, message = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    text = " ".join(word for word in (code, message) if word)[:200]
    return f" ({text})" if text and text.isprintable() else ""


def content_length(headers: Headers) -> int | None:
    """Return how many bytes an answer says that its body has, or None."""
    return _number(headers.get("content-length", ""))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII) else None


def _date(text: str) -> datetime.datetime | None:
    try:
        found = email.utils.parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
