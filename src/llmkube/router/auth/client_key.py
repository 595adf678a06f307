"""Which requests show a key, and what all others are told. OpenAI's clients show it as a Bearer, some as `X-Api-Key`.

Both are the headers that llama.cpp's server reads. Keys are looked up by their digests: how long that takes tells
nothing of them.
"""

import hashlib
from collections.abc import Collection

from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.refusals import refused


def digest_of_key(key: str) -> bytes:
    """Return what a key is looked up by."""
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def presented_credential(headers: Headers) -> str:
    """Return the key or the token that a request shows, "" if none: a Bearer, else `X-Api-Key`."""
    scheme, _, bearer = (headers.get("authorization") or "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or ""


def presents_key(head: RequestHead, digests: Collection[bytes]) -> bool:
    """Whether a request shows one of the keys, in either header."""
    credential = presented_credential(head.lines)
    return bool(credential) and digest_of_key(credential) in digests


def is_read_only(head: RequestHead) -> bool:
    """Whether a request changes nothing and brings no body, which would take of the room that all bodies share."""
    return head.method in ("GET", "HEAD") and not head.length and not head.chunked


def key_refusal(message: str, *, code: str = "invalid_api_key", challenge: str = "Bearer") -> Response:
    """Return the 401 that OpenAI's clients understand.

    Args:
        message: For people.
        code: For programs.
        challenge: What `WWW-Authenticate` says (RFC 6750, 3).
    """
    return refused(401, message, code, {"WWW-Authenticate": challenge}).response
