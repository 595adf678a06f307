"""What a JSON web token is made of, before anything in it is believed: three parts, of a bounded size, read strictly.

A token says which key and which algorithm are to be tried. It never brings a key or an address of one: `jwk`, `jku`,
`x5u` and `x5c` are not read. What two readers could read differently is no token: a name that stands there twice,
padding, bits behind the last byte (RFC 7515, 7519 and 8725).
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
"""Only those where the router holds nothing with which a token could be made: no HMAC, and never `none`."""

_PARTS: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Other types say that the token is for something else, such as a logout (RFC 8725, 3.11)."""


class MalformedTokenError(ValueError):
    """What was shown is no token that this router reads."""


@attrs.frozen
class SignedToken:
    """A token that nothing has been checked of but its form.

    Attributes:
        algorithm: What it says that it was signed by; one of `ALGORITHMS`.
        key_id: Which key of the issuer it names; "" names none.
        signed: The bytes that the signature is of.
        payload: The bytes of the claims.
        signature: Of the issuer, if it is.
    """

    algorithm: str
    key_id: str
    signed: bytes = attrs.field(repr=False)
    payload: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)


def looks_like_token(credential: str) -> bool:
    """Return whether what a client shows can be nothing but a token or an odd key: it has two dots."""
    return credential.count(".") == 2


def token_of(credential: str) -> SignedToken:
    """Return the parts of a token.

    Raises:
        MalformedTokenError: It is none.
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
        raise MalformedTokenError("an algorithm that is not taken")
    if "crit" in header or "b64" in header:
        raise MalformedTokenError("an extension that has to be understood")
    if not isinstance(key_id, str) or len(key_id) > MAX_KEY_ID:
        raise MalformedTokenError("a key id that is none")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise MalformedTokenError("a type that is not taken")
    return SignedToken(algorithm, key_id, f"{head}.{payload}".encode("ascii"), _decode(payload), _decode(signature))


def object_of(data: bytes) -> dict[str, Any]:
    """Return the object that JSON spells, if there is but one way to read it.

    Raises:
        MalformedTokenError: It is no JSON object, or a name stands there twice.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_pairs, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as exc:
        raise MalformedTokenError("no JSON object that can be read in one way") from exc
    if not isinstance(value, dict):
        raise MalformedTokenError("no JSON object")
    return value


def _decode(part: str) -> bytes:
    if len(part) % 4 == 1:
        raise MalformedTokenError("not base64url")
    decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != part.encode("ascii"):
        raise MalformedTokenError("not base64url as it is written")
    return decoded


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _reject_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")
