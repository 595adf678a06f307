"""A token is accepted only if the issuer signed it for this router and it is valid now."""

import json

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkube.router.auth import token_checker
from llmkube.router.auth.jwk_set import parse_key_set
from llmkube.router.auth.token_checker import Rejection
from llmkube.router.auth.token_keys import SigningKey
from llmkube.router.policy.request_facts import Principal
from router.auth.token_lab import (
    CLAIMS,
    NOW,
    TOKENS,
    Clock,
    b64,
    checker_of,
    hmac_token,
    jwk,
    jwks,
    pem,
    signature,
    token,
    written,
)

KEYS = ("ed-1", "rsa-1", "p256-1", "p384-1")
NOT_ACCEPTED, EXPIRED = Rejection.NOT_ACCEPTED, Rejection.EXPIRED
GOOD = [("ed-1", "EdDSA"), ("p256-1", "ES256"), ("p384-1", "ES384")]
GOOD += [("rsa-1", f"{kind}{bits}") for kind in ("RS", "PS") for bits in (256, 384, 512)]


@pytest.mark.parametrize(("name", "algorithm"), GOOD)
def test_a_token_of_the_issuer_is_accepted(name, algorithm):
    """Each supported algorithm works; the principal has the team, and the subject is not stored."""
    found = checker_of(*KEYS).check(token(name, algorithm))
    assert isinstance(found, Principal)
    assert found.team == "red"
    assert len(found.tenant) == 16
    assert "ada" not in repr(found)


def flipped(text, at):
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


def forged(name="ed-1", **header):
    """Return a token whose header has extra fields, signed with a key that the issuer does not have."""
    return token("ed-2", header={"alg": "EdDSA", "kid": name} | header)


def raw_claims(text):
    return token(claims=text.encode() if isinstance(text, str) else text)


USUAL = json.dumps(CLAIMS)[1:-1]
PUBLIC = pem("rsa-1")
ATTACKS = {
    "no signature": token().rpartition(".")[0] + ".",
    "alg none": f"{b64(written({'alg': 'none'}))}.{b64(written(CLAIMS))}.",
    "alg None, a signature": token(header={"alg": "None", "kid": "ed-1"}),
    "alg none, a signature": token(header={"alg": "none", "kid": "ed-1"}),
    "the public key as HMAC secret": hmac_token(PUBLIC, {"alg": "HS256", "kid": "rsa-1"}),
    "the public key as HMAC secret, RS256 said": hmac_token(PUBLIC, {"alg": "RS256", "kid": "rsa-1"}),
    "the JWK as HMAC secret": hmac_token(written(jwk("ed-1")), {"alg": "HS256", "kid": "ed-1"}),
    "HMAC by the empty secret": hmac_token(b"", {"alg": "HS256", "kid": ""}),
    "an algorithm of another key": token("ed-1", header={"alg": "ES256", "kid": "p256-1"}),
    "another algorithm than it was signed by": token("rsa-1", "RS256", header={"alg": "PS256", "kid": "rsa-1"}),
    "an algorithm in lower case": token("rsa-1", "RS256", header={"alg": "rs256", "kid": "rsa-1"}),
    "no algorithm": token(header={"kid": "ed-1"}),
    "an algorithm that is a list": token(header={"alg": ["EdDSA"], "kid": "ed-1"}),
    "another key under the issuer's name": forged(),
    "a key that comes along": forged(jwk=jwk("ed-2")),
    "a key that comes along, no kid": token("ed-2", header={"alg": "EdDSA", "jwk": jwk("ed-2")}),
    "an address of keys": forged(jku="https://evil.example/keys"),
    "an address of certificates": forged(x5u="https://evil.example/chain"),
    "certificates": forged(x5c=["MIIB"]),
    "a kid that is a path": forged("../../../../dev/null"),
    "a kid that is a query": forged("' OR 1=1 --"),
    "a kid that is a URL": forged("https://evil.example/key"),
    "a kid with a zero byte": forged("ed-1\0"),
    "a kid that is a number": token(header={"alg": "EdDSA", "kid": 1}),
    "a kid that is an object": token(header={"alg": "EdDSA", "kid": {"ed-1": 1}}),
    "a kid of 1,000 characters": forged("k" * 1000),
    "an extension": token(header={"alg": "EdDSA", "kid": "ed-1", "crit": ["exp"]}),
    "an empty list of extensions": token(header={"alg": "EdDSA", "kid": "ed-1", "crit": []}),
    "an unencoded payload": token(header={"alg": "EdDSA", "kid": "ed-1", "b64": False}),
    "a token for a logout": token(header={"alg": "EdDSA", "kid": "ed-1", "typ": "logout+jwt"}),
    "a header twice": token(header=b'{"alg":"none","alg":"EdDSA","kid":"ed-1"}'),
    "a header that is a list": token(header=b'["EdDSA"]'),
    "a header in UTF-16": token(header=json.dumps({"alg": "EdDSA", "kid": "ed-1"}).encode("utf-16")),
    "a changed payload": flipped(token(), token().index(".") + 8),
    "a changed signature": flipped(token(), -8),
    "claims of another token": ".".join(
        (token().split(".")[0], token(team="blue").split(".")[1], token().split(".")[2])
    ),
    "an empty signature of an elliptic curve": token("p256-1", "ES256").rpartition(".")[0] + "." + b64(bytes(64)),
    "padding": token() + "==",
    "a line feed": token() + "\n",
    "an encrypted token": token() + ".AAAA.AAAA",
    "other digits": token().replace(".", ".\u0661", 1),
    "bits behind the last byte": "",  # below, as it depends on the signature
    "a token of 1 MB": token(padding="x" * 1_000_000),
    "deep JSON": raw_claims('{"a":' * 2000 + "1" + "}" * 2000),
    "deep lists": raw_claims("[" * 10000),
    "claims that are a text": raw_claims('"red"'),
    "claims that are null": raw_claims("null"),
    "no JSON": raw_claims("{"),
    "no UTF-8": raw_claims(b'{"team":"\xff"}'),
    "a team twice": raw_claims("{" + USUAL + ', "team": "blue"}'),
    "an audience twice": raw_claims('{"aud": "evil", ' + USUAL + "}"),
    "a name twice, further down": raw_claims("{" + USUAL + ', "more": {"a": 1, "a": 2}}'),
    "another issuer": token(iss="https://id.example.evil"),
    "an issuer in other letters": token(iss="https://ID.example"),
    "the issuer and a slash": token(iss="https://id.example/"),
    "a list of issuers": token(iss=["https://id.example"]),
    "no issuer": token(iss=None),
    "another audience": token(aud="chat"),
    "part of the audience": token(aud="llm2"),
    "a list of other audiences": token(aud=["chat", "mail"]),
    "a list with what is no text": token(aud=["llm", 1]),
    "a list in a list": token(aud=[["llm"]]),
    "an object of audiences": token(aud={"llm": 1}),
    "no audience": token(aud=None),
    "an empty list of audiences": token(aud=[]),
    "a thousand audiences": token(aud=["llm"] * 1000),
    "no end": token(exp=None),
    "an end that is a text": token(exp=str(int(NOW) + 600)),
    "an end of other digits": token(exp="\u0661" * 12),
    "an end that is true": token(exp=True),
    "an end that is a list": token(exp=[NOW + 600]),
    "an end before 1970": token(exp=-1),
    "an end after this era": token(exp=253402300800),
    "an end of 400 digits": raw_claims("{" + USUAL.replace(str(NOW + 600), "9" * 400) + "}"),
    "an end of 5,000 digits": raw_claims("{" + USUAL.replace(str(NOW + 600), "9" * 5000) + "}"),
    "an end that is infinite": raw_claims("{" + USUAL.replace(str(NOW + 600), "1e999") + "}"),
    "an end that is Infinity": raw_claims("{" + USUAL.replace(str(NOW + 600), "Infinity") + "}"),
    "an end that is no number": raw_claims("{" + USUAL.replace(str(NOW + 600), "NaN") + "}"),
    "a beginning to come": token(nbf=NOW + 31),
    "a beginning that is a text": token(nbf="0"),
    "a beginning after this era": token(nbf=1e300),
    "made in the future": token(iat=NOW + 31),
    "made at no time": token(iat=None, nbf=False),
    "no team": token(team=None),
    "an empty team": token(team=""),
    "a list of teams": token(team=["red"]),
    "a team with a line feed": token(team="red\nblue"),
    "a team with a space at its end": token(team="red "),
    "a team of half a pair": token(team="\ud800"),
    "a team of 254 characters": token(team="r" * 254),
    "a subject that is a list": token(sub=["ada"]),
    "a subject of 5,000 characters": token(sub="a" * 5000),
}
ATTACKS["bits behind the last byte"] = token()[:-1] + chr(ord(token()[-1]) + 1)


@pytest.mark.parametrize(("name", "algorithm"), GOOD)
@pytest.mark.parametrize("size", [1, 2, 32, 63, 64, 65, 96, 256, 257, 4096])
def test_what_is_no_signature_is_none(name, algorithm, size):
    """A signature of any length is rejected without an exception."""
    signed = token(name, algorithm).rpartition(".")[0]
    for byte in (b"\0", b"\x01", b"\xff"):
        assert checker_of(*KEYS).check(f"{signed}.{b64(byte * size)}") is NOT_ACCEPTED


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(name):
    """Each attack has one defect, and all get the same error."""
    assert checker_of(*KEYS).check(ATTACKS[name]) is NOT_ACCEPTED


GOOD_CLAIMS = {
    "a list with the audience": {"aud": ["mail", "llm"]},
    "the other audience": {"aud": "other"},
    "a fraction of a second": {"exp": NOW + 0.5},
    "within the leeway": {"exp": NOW - 29},
    "about to begin": {"nbf": NOW + 29},
    "made a moment ago, elsewhere": {"iat": NOW + 29},
    "no subject": {"sub": None},
    "half a pair as a subject": {"sub": "\ud800"},
    "a claim that is not read": {"jku": "https://evil.example", "nested": {"a": [1]}},
    "a team in letters": {"team": "équipe 1"},
}


@pytest.mark.parametrize("name", GOOD_CLAIMS)
def test_forms_that_issuers_may_write_are_accepted(name):
    """Each token uses one of the forms that RFC 7519 allows."""
    assert isinstance(checker_of(*KEYS).check(token(**GOOD_CLAIMS[name])), Principal)


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_types_of_access_tokens_are_taken(kind):
    """A token without a type is accepted, too."""
    checker = checker_of(*KEYS)
    assert isinstance(checker.check(token(header={"alg": "EdDSA", "kid": "ed-1", "typ": kind})), Principal)
    assert isinstance(checker.check(token(header={"alg": "EdDSA", "kid": "ed-1"})), Principal)


def test_only_expiry_is_reported_to_the_client():
    """Expiry is reported only if everything else is valid: an unsigned token reveals nothing about its age."""
    checker = checker_of(*KEYS)
    assert checker.check(token(exp=NOW - 31)) is EXPIRED
    assert checker.check(token(exp=0)) is EXPIRED
    for wrong in (
        token(exp=NOW - 31, aud="chat"),
        token(exp=NOW - 31, iss="x"),
        token(exp=NOW - 31, team=""),
        flipped(token(exp=NOW - 31), -8),
        forged(),
    ):
        assert checker.check(wrong) is NOT_ACCEPTED


def test_an_accepted_token_is_valid_until_it_expires():
    """The signature is verified once; the time is checked on each request, even if the clock is set back."""
    wall, shown = Clock(), token(nbf=NOW)
    checker = checker_of(*KEYS, wall=wall)
    first = checker.check(shown)
    known = checker.keys.key_set_at(0.0)
    checker.keys._set = attrs.evolve(known, keys=tuple(SigningKey(each.key_id, {}) for each in known.keys))
    assert checker.check(shown) == first
    wall.now = NOW + 629.9
    assert checker.check(shown) == first
    wall.now = NOW - 31
    assert checker.check(shown) is NOT_ACCEPTED
    wall.now = NOW + 630
    assert checker.check(shown) is NOT_ACCEPTED  # no key verifies it any more: the signature was verified again
    checker.keys._set = known
    assert checker.check(shown) is EXPIRED


def test_removing_a_key_revokes_its_tokens():
    """Tokens that were accepted before are refused; tokens of other keys are not affected."""
    checker, old, new = checker_of("ed-1", "ed-2"), token("ed-1"), token("ed-2")
    assert isinstance(checker.check(old), Principal)
    assert isinstance(checker.check(new), Principal)
    checker.keys.replace(parse_key_set(jwks("ed-2", "ed-3")), 1.0)
    assert checker.check(old) is NOT_ACCEPTED
    assert isinstance(checker.check(new), Principal)
    assert isinstance(checker.check(token("ed-3")), Principal)


def test_without_keys_no_token_is_accepted():
    """That is so before keys are read, when they are too old and when the issuer has none, even for accepted tokens."""
    clock, shown = Clock(0.0), token()
    assert checker_of().check(shown) is Rejection.NO_KEYS
    checker = checker_of(*KEYS, clock=clock)
    assert isinstance(checker.check(shown), Principal)
    clock.now = 3600.0
    assert checker.check(shown) is Rejection.NO_KEYS
    assert not checker.has_keys()
    clock.now = 3599.0
    assert checker.has_keys()
    checker.keys.replace(parse_key_set(b'{"keys": []}'), 1.0)
    assert checker.check(shown) is Rejection.NO_KEYS


def test_a_new_key_is_asked_for_once_in_a_while():
    """The client gets a retry hint while a fetch may help; made-up names do not multiply fetches."""
    clock = Clock(100.0)
    checker = checker_of("ed-1", uri="https://id.example/keys", clock=clock)
    fresh = token("ed-2")
    assert checker.check(fresh) is NOT_ACCEPTED  # read a moment ago
    assert not checker.keys.is_due(clock.now)
    clock.now += 30
    assert checker.check(fresh) is Rejection.KEYS_PENDING
    assert checker.keys.is_due(clock.now)
    checker.keys.replace(parse_key_set(jwks("ed-1", "ed-2")), clock.now)
    assert isinstance(checker.check(fresh), Principal)
    assert checker.check(token("ed-3")) is NOT_ACCEPTED
    clock.now += 30
    for wrong in (token(header={"alg": "ES256", "kid": "ed-1"}), token(header={"alg": "EdDSA"}), forged("x" * 300)):
        assert checker.check(wrong) is NOT_ACCEPTED  # a known key, no name, no token
    assert not checker.keys.is_due(clock.now)


def test_a_token_without_a_name_of_its_key_needs_one_key():
    """Keys are not tried one by one."""
    unnamed = token(header={"alg": "EdDSA"})
    assert isinstance(checker_of("ed-1", "rsa-1").check(unnamed), Principal)
    assert checker_of("ed-1", "ed-2").check(unnamed) is NOT_ACCEPTED
    assert checker_of("ed-1", jwk("ed-2", kid="ed-1")).check(token()) is NOT_ACCEPTED


def test_no_more_tokens_are_kept_than_there_is_room_for(monkeypatch):
    """The oldest entry is evicted; entries are digests, never tokens, and rejected tokens are not stored."""
    monkeypatch.setattr(token_checker, "MAX_CACHED_TOKENS", 3)
    checker = checker_of("ed-1")
    shown = [token(sub=str(each)) for each in range(5)]
    for each in (*shown, *shown[-1:], token(aud="chat"), "a.b.c"):
        checker.check(each)
    assert len(checker._cache) == 3
    assert all(len(each) == 32 for each in checker._cache)
    assert not any(each in repr(checker) for each in shown)


CHOICES = {
    "iss": ["https://id.example", "https://evil.example", None],
    "aud": ["llm", ["x", "other"], "x", [], None],
    "exp": [NOW + 600, NOW - 600, NOW - 10, "9", True, None],
    "nbf": [None, NOW - 9, NOW + 600],
    "team": ["red", "", None, ["red"]],
    "sub": ["ada", None],
}
SIGNERS = st.sampled_from(["ed-1", "ed-2", "p256-1", "p256-2"])


def accepted(signer, named, claims, cut):
    """Return whether a token is acceptable, by an independent implementation of the rules."""
    aud = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    return (
        signer in ("ed-1", "p256-1")
        and named == signer
        and cut is None
        and claims["iss"] == TOKENS.issuer
        and ("llm" in aud or "other" in aud)
        and isinstance(claims["exp"], float)
        and claims["exp"] > NOW - 30
        and (claims["nbf"] is None or claims["nbf"] <= NOW + 30)
        and claims["team"] == "red"
    )


def play(examples):
    """Draw tokens, and compare the results of both implementations."""

    @settings(max_examples=examples, deadline=None)
    @given(
        signer=SIGNERS,
        named=SIGNERS,
        claims=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}),
        cut=st.one_of(st.none(), st.none(), st.integers(0, 200)),
        data=st.data(),
    )
    def run(signer, named, claims, cut, data):
        algorithm = "EdDSA" if signer.startswith("ed") else "ES256"
        given_claims = {name: value for name, value in claims.items() if value is not None}
        shown = token(signer, algorithm, header={"alg": algorithm, "kid": named}, claims=given_claims)
        if cut is not None:
            shown = flipped(shown, cut % (len(shown) - 2))
        found = checker_of("ed-1", "p256-1", "rsa-1").check(shown)
        assert isinstance(found, Principal) == accepted(signer, named, claims, cut), (signer, named, claims, cut)

    run()


def test_only_what_a_listed_key_signed_with_all_claims_right_makes_a_principal():
    """Every drawn token is compared with an independent implementation of the rules."""
    play(400)


def test_a_signature_is_of_all_of_the_token():
    """Changing any byte of the token invalidates it."""
    shown, checker = token("p256-1", "ES256"), checker_of(*KEYS)
    for at in range(len(shown)):
        assert not isinstance(checker.check(flipped(shown, at)), Principal), at
    assert signature("p256-1", "ES256", b"x") != signature("p256-1", "ES256", b"y")
