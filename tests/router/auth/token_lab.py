"""An issuer for tests: keys of each kind, key sets, and handwritten tokens, so that each part can be made invalid."""

import base64
import functools
import hmac
import json
import random

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from llmkube.router.auth.jwk_set import parse_key_set
from llmkube.router.auth.token_checker import TokenChecker
from llmkube.router.auth.token_keys import TokenKeys
from llmkube.router.config.routing_config import Tokens

NOW = 1795478400.0  # 2026-11-24: the wall clock of a lab
TOKENS = Tokens(
    provider="corp", issuer="https://id.example", audiences=("llm", "other"), team_claim="team", jwks_file="keys"
)
CLAIMS = {"iss": "https://id.example", "aud": "llm", "exp": NOW + 600, "sub": "ada", "team": "red"}
HASHES = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def written(value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@functools.cache
def key_named(name):
    """Return the private key of this name, always the same. The part before the hyphen is its kind."""
    kind = name.partition("-")[0]
    if kind == "ed":
        return ed25519.Ed25519PrivateKey.generate()
    if kind in ("p256", "p384", "p521"):
        curve = {"p256": ec.SECP256R1, "p384": ec.SECP384R1, "p521": ec.SECP521R1}[kind]
        return ec.generate_private_key(curve())
    return rsa.generate_private_key(65537, {"rsa": 2048, "weak": 1024}[kind])


def integer(number, size=None):
    return b64(number.to_bytes(size or (number.bit_length() + 7) // 8, "big"))


def jwk(name, **more):
    """Return a public key as a member of a JWK set."""
    public = key_named(name).public_key()
    if isinstance(public, ed25519.Ed25519PublicKey):
        raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        fields = {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}
    elif isinstance(public, ec.EllipticCurvePublicKey):
        numbers, size = public.public_numbers(), (public.curve.key_size + 7) // 8
        curve = {256: "P-256", 384: "P-384", 521: "P-521"}[public.curve.key_size]
        fields = {"kty": "EC", "crv": curve, "x": integer(numbers.x, size), "y": integer(numbers.y, size)}
    else:
        numbers = public.public_numbers()
        fields = {"kty": "RSA", "n": integer(numbers.n), "e": integer(numbers.e)}
    found = fields | {"kid": name, "use": "sig"} | more
    return {field: value for field, value in found.items() if value is not None}


def jwks(*keys):
    return json.dumps({"keys": [jwk(each) if isinstance(each, str) else each for each in keys]}).encode()


def signature(name, algorithm, data):
    """Sign with an algorithm, using `cryptography` and not the code under test."""
    key = key_named(name)
    if algorithm == "EdDSA":
        return key.sign(data)
    hashed = HASHES[algorithm[2:]]()
    if algorithm[:2] == "ES":
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashed)))
        size = (key.curve.key_size + 7) // 8
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")
    if algorithm[:2] == "PS":
        return key.sign(data, padding.PSS(padding.MGF1(hashed), hashed.digest_size), hashed)
    return key.sign(data, padding.PKCS1v15(), hashed)


def token(name="ed-1", algorithm="EdDSA", *, header=None, claims=None, **changes):
    """Return a token; without changes, one that is accepted.

    Args:
        name: Name of the signing key.
        algorithm: Signing algorithm, also named in the header.
        header: Replaces the usual header.
        claims: Replaces the usual claims.
        changes: Claims to change; None removes one.
    """
    header = {"alg": algorithm, "kid": name, "typ": "JWT"} if header is None else header
    if claims is None:
        claims = {field: value for field, value in (CLAIMS | changes).items() if value is not None}
    signed = f"{b64(written(header))}.{b64(written(claims))}"
    return f"{signed}.{b64(signature(name, algorithm, signed.encode()))}"


def hmac_token(secret, header):
    signed = f"{b64(written(header))}.{b64(written(CLAIMS))}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def pem(name):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key_named(name).public_key().public_bytes(serialization.Encoding.PEM, form)


class Clock:
    """A wall clock that a test sets."""

    def __init__(self, now=NOW):
        self.now = now

    def __call__(self):
        return self.now


def checker_of(*keys, tokens=TOKENS, wall=None, clock=None, uri=""):
    """Return a checker of tokens for an issuer with these keys."""
    known = TokenKeys(uri, "" if uri else "keys", random.Random(1))
    clock = clock or Clock(0.0)
    if keys:
        known.replace(parse_key_set(jwks(*keys)), clock())
    return TokenChecker(tokens, known, wall or Clock(), clock)
