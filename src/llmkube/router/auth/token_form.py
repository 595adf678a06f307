"""Parse a JSON Web Token strictly, before anything in it is trusted: three parts of bounded size.

A token names the key and the algorithm to try. It never supplies a key or the address of one: `jwk`, `jku`, `x5u` and
`x5c` are ignored. Anything that two parsers could read differently is rejected: duplicate names, padding, stray bits
after the last byte (RFC 7515, 7519 and 8725).
"""

import base64
import json
import re
from typing import Any, Final

import attrs

MAX_TOKEN_BYTES: Final = 16 * 1024
"""Tokens of large issuers have 1 to 4 KiB."""

MAX_HEADER_BYTES: Final = 4 * 1024
MAX_KEY_ID: Final = 256

ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"})
"""Only asymmetric algorithms, so that nothing in the router could sign a token: no HMAC, and never `none`."""

_PARTS: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""A token of another type is for another purpose, such as a logout (RFC 8725, 3.11)."""


class MalformedTokenError(ValueError):
    """The credential is not a token that this router supports."""


@attrs.frozen
class SignedToken:
    """A token of which only the form has been checked.

    Attributes:
        algorithm: The algorithm that it names; one of `ALGORITHMS`.
        key_id: The issuer's key that it names; "" if it names none.
        signed: The bytes that are signed.
        payload: The bytes of the claims.
        signature: Not verified yet.
    """

    algorithm: str
    key_id: str
    signed: bytes = attrs.field(repr=False)
    payload: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)


def looks_like_token(credential: str) -> bool:
    """Return whether a credential has two dots, as a token has and hardly any key."""
    return credential.count(".") == 2


def token_of(credential: str) -> SignedToken:
    """Return the parts of a token.

    Raises:
        MalformedTokenError: The credential is not a supported token.
    """
    if len(credential) > MAX_TOKEN_BYTES:
        raise MalformedTokenError(f"more than {MAX_TOKEN_BYTES} bytes")
    parts = _PARTS.fullmatch(credential)
    if parts is None:
        raise MalformedTokenError("not three parts of base64url")
    head, payload, signature = parts.groups()
    if len(head) > MAX_HEADER_BYTES:
        raise MalformedTokenError(f"a header of more than {MAX_HEADER_BYTES} bytes")
    header = object_of(_decode(head))
    algorithm, key_id, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise MalformedTokenError("an unsupported algorithm")
    if "crit" in header or "b64" in header:
        raise MalformedTokenError("an unsupported critical extension")
    if not isinstance(key_id, str) or len(key_id) > MAX_KEY_ID:
        raise MalformedTokenError("an invalid key id")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise MalformedTokenError("an unsupported type")
    return SignedToken(algorithm, key_id, f"{head}.{payload}".encode("ascii"), _decode(payload), _decode(signature))


def object_of(data: bytes) -> dict[str, Any]:
    """Return a JSON object that can be read in only one way.

    Raises:
        MalformedTokenError: The data is not a JSON object, or has a duplicate name.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_pairs, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as exc:
        raise MalformedTokenError("not an unambiguous JSON object") from exc
    if not isinstance(value, dict):
        raise MalformedTokenError("not a JSON object")
    return value


def _decode(part: str) -> bytes:
    if len(part) % 4 == 1:
        raise MalformedTokenError("not base64url")
    decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != part.encode("ascii"):
        raise MalformedTokenError("not canonical base64url")
    return decoded


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _reject_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")
