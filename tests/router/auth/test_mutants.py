"""Each deliberate bug in the token check is caught by an attack or by the property in test_token_checker.py."""

import json

import attrs
import pytest

from llmkube.router.auth import jwk_set, token_checker, token_form, token_keys
from llmkube.router.auth.token_checker import ClaimError
from llmkube.router.policy.request_facts import Principal
from router.auth.test_token_checker import ATTACKS, GOOD_CLAIMS, KEYS, play
from router.auth.token_lab import NOW, checker_of, jwk, token

BEARER_OF, TOKEN_OF, OBJECT_OF = token_checker.bearer_of, token_form.token_of, token_form.object_of


def believing(**claims):
    """Return a mutant that overrides these claims."""
    return lambda patch: patch.setattr(
        token_checker, "bearer_of", lambda found, tokens, now: BEARER_OF(dict(found) | claims, tokens, now)
    )


def at(seconds):
    """Return a mutant with this leeway in seconds; it may be negative."""
    return lambda patch: patch.setattr(token_checker, "LEEWAY_SECONDS", seconds)


def reading_loosely(patch):
    """Accept duplicate members; the last one wins."""

    def object_of(data):
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise token_form.MalformedTokenError("no JSON") from exc
        return found if isinstance(found, dict) else {}

    patch.setattr(token_checker, "object_of", object_of)


def trusting_signatures(patch):
    patch.setattr(token_keys.SigningKey, "has_signed", lambda self, shown: True)


def any_key(patch):
    patch.setattr(
        token_keys.KeySet,
        "key_for",
        lambda self, shown: next((each for each in self.keys if shown.algorithm in each.checks), None),
    )


def trying_all_keys(patch):
    def has_signed(self, shown):
        keys = jwk_set.parse_key_set(json.dumps({"keys": [jwk(each) for each in KEYS]}).encode()).keys
        return any(check(shown.signed, shown.signature) for each in keys for check in each.checks.values())

    patch.setattr(token_keys.SigningKey, "has_signed", has_signed)


def taking_a_key_along(patch):
    def check(self, shown):
        head = token_form.object_of(token_form._decode(shown.split(".")[0]))
        keys = jwk_set.parse_key_set(json.dumps({"keys": [head["jwk"]]}).encode()) if "jwk" in head else None
        self.keys._set = keys or self.keys._set
        return CHECK(self, shown)

    patch.setattr(token_checker.TokenChecker, "check", check)


CHECK = token_checker.TokenChecker.check


def text_audience(patch):
    """Use `in` instead of equality: a substring matches."""

    def bearer_of(found, tokens, now):
        if isinstance(found.get("aud"), str) and any(each in found["aud"] for each in tokens.audiences):
            found = dict(found) | {"aud": tokens.audiences[0]}
        return BEARER_OF(found, tokens, now)

    patch.setattr(token_checker, "bearer_of", bearer_of)


def converting_times(patch):
    """Convert a claim with `int()`, which accepts strings and non-ASCII digits."""

    def bearer_of(found, tokens, now):
        try:
            times = {name: int(found[name]) for name in ("exp", "nbf") if name in found}
        except (TypeError, ValueError, OverflowError) as exc:
            raise ClaimError("exp") from exc
        return BEARER_OF(dict(found) | times, tokens, now)

    patch.setattr(token_checker, "bearer_of", bearer_of)


def deaf_to_extensions(patch):
    class Deaf(dict):
        def __contains__(self, name):
            return name not in ("crit", "b64") and super().__contains__(name)

    patch.setattr(token_form, "object_of", lambda data: Deaf(OBJECT_OF(data)))


def any_type(patch):
    class Every:
        def __contains__(self, name):
            return True

    patch.setattr(token_form, "_TYPES", Every())


def any_team(patch):
    patch.setattr(
        token_checker,
        "bearer_of",
        lambda found, tokens, now: BEARER_OF(
            dict(found) | {"team": str(found.get("team", "x")).strip()[:9] or "x"}, tokens, now
        ),
    )


def without_bounds(patch):
    patch.setattr(token_form, "MAX_TOKEN_BYTES", 1 << 30)


MUTANTS = {
    "the issuer is believed": believing(iss="https://id.example"),
    "the audience is believed": believing(aud="llm"),
    "a part of the audience counts": text_audience,
    "nothing ends": believing(exp=NOW + 1),
    "nothing has yet to begin": believing(nbf=0, iat=0),
    "an hour of leeway": at(3600.0),
    "no leeway": at(0.0),
    "the team is made to fit": any_team,
    "times are converted": converting_times,
    "the last of two names counts": reading_loosely,
    "no signature is checked": trusting_signatures,
    "the name of the key is not read": any_key,
    "every key is tried": trying_all_keys,
    "a key that comes along is taken": taking_a_key_along,
    "extensions are not heard of": deaf_to_extensions,
    "every type is taken": any_type,
    "a token has no bound": without_bounds,
}


def lets_in(shown):
    return isinstance(checker_of(*KEYS).check(shown), Principal)


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_deliberate_bug_is_caught(name, monkeypatch):
    """It is caught by an attack that is accepted, or by a token that the property evaluates differently."""
    MUTANTS[name](monkeypatch)
    if any(lets_in(each) for each in ATTACKS.values()):
        return
    if not all(lets_in(token(**each)) for each in GOOD_CLAIMS.values()):
        return
    with pytest.raises(AssertionError):
        play(400)


@pytest.mark.soak
def test_without_a_bug_nothing_is_caught():
    """If this failed, the mutants would prove nothing."""
    assert not any(lets_in(each) for each in ATTACKS.values())
    assert lets_in(token())
    assert attrs.asdict(checker_of(*KEYS).check(token()))["team"] == "red"
    play(50)
