"""The credential of a request, and the refusal of requests without one.

OpenAI's clients send a key as a Bearer, some clients as `X-Api-Key`; llama.cpp's server reads both, too. Keys are
looked up by digest, so that the time of a look-up reveals nothing about them.
"""

import hashlib
from collections.abc import Collection

from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.refusals import refused


def digest_of_key(key: str) -> bytes:
    """Return the digest by which a key is looked up."""
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def presented_credential(headers: Headers) -> str:
    """Return the key or token of a request, from the Bearer or else `X-Api-Key`; "" if there is none."""
    scheme, _, bearer = (headers.get("authorization") or "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or ""


def presents_key(head: RequestHead, digests: Collection[bytes]) -> bool:
    """Whether a request presents one of the keys, in either header."""
    credential = presented_credential(head.lines)
    return bool(credential) and digest_of_key(credential) in digests


def is_read_only(head: RequestHead) -> bool:
    """Whether a request changes nothing and has no body, which would use up memory that all bodies share."""
    return head.method in ("GET", "HEAD") and not head.length and not head.chunked


def key_refusal(message: str, *, code: str = "invalid_api_key", challenge: str = "Bearer") -> Response:
    """Return a 401 that OpenAI's clients understand; `challenge` is the `WWW-Authenticate` header (RFC 6750, 3)."""
    return refused(401, message, code, {"WWW-Authenticate": challenge}).response
