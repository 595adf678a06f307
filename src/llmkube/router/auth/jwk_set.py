"""Parse a JWK Set (RFC 7517); PyJWT reads the keys and verifies signatures.

The key determines which algorithms it may be used with; a token can only choose among these. This is the only module
that loads PyJWT, and it is loaded only if a router accepts tokens.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from jwt.algorithms import Algorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from llmkube.router.auth.token_form import ALGORITHMS, MalformedTokenError, object_of
from llmkube.router.auth.token_keys import MAX_SET_BYTES, KeySet, KeysUnreadableError, SigningKey

MAX_KEYS: Final = 64
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 4096
"""Verification then takes about 0.2 ms; with a key of 16,384 bits it would hold up everything else."""

MAX_EXPONENT: Final = 0xFFFFFFFF

_RSA_ALGORITHMS: Final = tuple(sorted(each for each in ALGORITHMS if each[:2] in ("RS", "PS")))
_CURVE_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
_PARSE_ERRORS: Final = (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, AttributeError)
"""Errors of PyJWT and cryptography for fields that are missing, of the wrong type, or not a key."""

_PRIVATE_FIELDS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    name: each for name, each in get_default_algorithms().items() if name in ALGORITHMS
}


_NO_SET: Final = "the data is not a JWK Set"


def parse_key_set(data: bytes) -> KeySet:
    """Return the keys of a JWK Set; a key that cannot be used is left out.

    Raises:
        KeysUnreadableError: The data is not a JWK Set; the message has none of its content.
    """
    if len(data) > MAX_SET_BYTES:
        raise KeysUnreadableError(f"{_NO_SET}: it has more than {MAX_SET_BYTES} bytes")
    try:
        given = object_of(data).get("keys")
    except MalformedTokenError as exc:
        raise KeysUnreadableError(f"{_NO_SET}: it is {exc}") from exc
    if not isinstance(given, list):
        raise KeysUnreadableError(f'{_NO_SET}: it has no list "keys"')
    if len(given) > MAX_KEYS:
        raise KeysUnreadableError(f"{_NO_SET}: it has {len(given)} keys; at most {MAX_KEYS} are allowed")
    keys, left_out = [], []
    for index, each in enumerate(given):
        found = _parse_key(each)
        if isinstance(found, str):
            left_out.append(f"keys[{index}]: {found}")
        else:
            keys.append(found)
    return KeySet(hashlib.sha256(data).digest(), tuple(keys), tuple(left_out))


def _parse_key(given: Any) -> SigningKey | str:
    """Return a key, or the reason why it cannot be used."""
    if not isinstance(given, dict):
        return "it is not an object"
    if _PRIVATE_FIELDS & given.keys():
        return "it is a private key or a shared secret; give only public keys"
    operations = given.get("key_ops")
    verifies = operations is None or (isinstance(operations, list) and "verify" in operations)
    if given.get("use", "sig") != "sig" or not verifies:
        return "it is not for verifying signatures"
    key_id, algorithms = given.get("kid", ""), _algorithms_of(given)
    if not isinstance(key_id, str):
        return "its kid is not a string"
    if not algorithms:
        return "its kind or algorithm is not supported"
    try:
        key = _ALGORITHMS[algorithms[0]].from_jwk(given)
    except _PARSE_ERRORS:  # the error's message may contain the key
        return "it cannot be read"
    checks = {name: partial(_is_valid_signature, _ALGORITHMS[name], key) for name in algorithms}
    return _strength_problem(key) or SigningKey(key_id, checks)


def _algorithms_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    kind, curve, named = str(given.get("kty")), str(given.get("crv")), given.get("alg")
    possible = _RSA_ALGORITHMS if kind == "RSA" else _CURVE_ALGORITHMS.get((kind, curve), ())
    return tuple(each for each in possible if named in (None, each))


def _is_valid_signature(algorithm: Algorithm, key: Any, signed: bytes, signature: bytes) -> bool:
    return bool(algorithm.verify(signed, key, signature))


def _strength_problem(key: Any) -> str:
    numbers = getattr(key, "public_numbers", None)
    exponent = getattr(numbers(), "e", None) if numbers is not None else None
    if exponent is None:
        return ""  # a point on a curve
    if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        return f"it has {key.key_size} bits; {MIN_RSA_BITS} to {MAX_RSA_BITS} are allowed"
    return "" if 3 <= exponent <= MAX_EXPONENT and exponent % 2 else "its exponent is not allowed"
