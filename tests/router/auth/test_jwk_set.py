"""Keys of an issuer that may verify tokens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkube.router.auth.jwk_set import parse_key_set
from llmkube.router.auth.token_keys import KeysUnreadableError
from router.auth.token_lab import integer, jwk, jwks, key_named

RSA = ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"]


def read(*keys):
    return parse_key_set(jwks(*keys))


@pytest.mark.parametrize(
    ("name", "more", "algorithms"),
    [
        ("rsa-1", {}, RSA),
        ("rsa-1", {"alg": "RS256"}, ["RS256"]),
        ("rsa-1", {"use": None, "key_ops": ["verify"]}, RSA),
        ("p256-1", {}, ["ES256"]),
        ("p384-1", {"use": None}, ["ES384"]),
        ("ed-1", {"alg": "EdDSA"}, ["EdDSA"]),
    ],
)
def test_a_key_has_the_algorithms_that_it_names_and_supports(name, more, algorithms):
    """The key alone limits the algorithms; the token's header does not."""
    [key] = read(jwk(name, **more)).keys
    assert (key.key_id, sorted(key.checks)) == (name, algorithms)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (jwk("weak-1"), "it has 1024 bits; 2048 to 4096 are allowed"),
        (jwk("rsa-1", n=integer((1 << 8191) + 1)), "it has 8192 bits; 2048 to 4096 are allowed"),
        (jwk("rsa-1", e=integer(1)), "its exponent is not allowed|it cannot be read"),
        (jwk("rsa-1", e=integer((1 << 64) + 1)), "its exponent is not allowed|it cannot be read"),
        (jwk("rsa-1", alg="HS256"), "its kind or algorithm is not supported"),
        (jwk("rsa-1", alg="ES256"), "its kind or algorithm is not supported"),
        (jwk("rsa-1", alg=["RS256"]), "its kind or algorithm is not supported"),
        (jwk("rsa-1", use="enc"), "it is not for verifying signatures"),
        (jwk("rsa-1", key_ops=["sign"]), "it is not for verifying signatures"),
        (jwk("rsa-1", d="AQAB"), "it is a private key or a shared secret; give only public keys"),
        ({"kty": "oct", "k": "c2VjcmV0", "kid": "s"}, "it is a private key or a shared secret; give only public keys"),
        ({"kty": "oct", "kid": "s"}, "its kind or algorithm is not supported"),
        (jwk("p521-1"), "its kind or algorithm is not supported"),
        (jwk("p256-1", crv="P-384"), "it cannot be read"),
        (jwk("p256-1", x=jwk("p256-2")["x"]), "it cannot be read"),
        (jwk("p256-1", crv=["P-256"]), "its kind or algorithm is not supported"),
        (jwk("ed-1", crv="X25519"), "its kind or algorithm is not supported"),
        (jwk("ed-1", x="AAAA"), "it cannot be read"),
        (jwk("rsa-1", n=7), "it cannot be read"),
        (jwk("rsa-1", n=None), "it cannot be read"),
        (jwk("rsa-1", kid=7), "its kid is not a string"),
        (jwk("rsa-1", kty={}), "its kind or algorithm is not supported"),
        ("rsa", "it is not an object"),
    ],
)
def test_a_key_that_cannot_be_used_is_left_out_alone(given, why):
    """The other keys are still used; the error contains no key material."""
    found = parse_key_set(json.dumps({"keys": [given, jwk("ed-1")]}).encode())
    assert [each.key_id for each in found.keys] == ["ed-1"]
    assert found.left_out[0].removeprefix("keys[0]: ") in why.split("|")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": [], "keys": []}',
        b'{"keys": [' + b"[" * 100000,
        b'{"keys": [] }' + b" " * (256 * 1024),
        b'{"keys": [' + b"1," * 70 + b"1]}",
        b"\xff\xfe",
        b"<html>moved</html>",
    ],
)
def test_an_invalid_set_is_rejected(data):
    """The whole set is rejected, and the error quotes nothing from it."""
    with pytest.raises(KeysUnreadableError) as caught:
        parse_key_set(data)
    assert "moved" not in str(caught.value)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=50),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["RSA", "EC", "OKP", "P-256", "AQAB"]),
)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["rsa-1", "p256-1", "p384-1", "ed-1"]),
    fields=st.dictionaries(st.sampled_from(["kty", "crv", "n", "e", "x", "y", "alg", "use", "kid", "key_ops"]), ODD),
)
def test_no_field_value_crashes_the_router(name, fields):
    """The key is read or skipped, and the other keys are still used."""
    found = read(jwk(name) | fields, "ed-2")
    assert "ed-2" in [each.key_id for each in found.keys]
    assert len(found.keys) + len(found.left_out) == 2


def test_a_set_of_the_same_bytes_is_the_same():
    """An unchanged set invalidates no token that was accepted."""
    assert read("ed-1") == read("ed-1")
    assert read("ed-1") != read("ed-1", "ed-2")
    assert read() != read("ed-1")
    assert repr(key_named("rsa-1").public_key().public_numbers().n) not in repr(read("rsa-1"))
