"""Lifetime and refresh of an issuer's keys. Times are Trio's, without a clock."""

import random

import pytest

from llmkube.router.auth.jwk_set import parse_key_set
from llmkube.router.auth.token_keys import EXPIRY_SECONDS, REFETCH_SECONDS, REFRESH_SECONDS, TokenKeys
from router.auth.token_lab import jwks


@pytest.fixture
def keys():
    return TokenKeys("https://id.example/keys", "", random.Random(1))


def test_keys_are_fetched_at_once_and_then_every_five_minutes(keys):
    """Without a reason, none is fetched in between."""
    assert keys.is_due(0.0)
    assert keys.problem
    keys.replace(parse_key_set(jwks("ed-1")), 10.0)
    assert not keys.problem
    assert not keys.is_due(10.0 + REFRESH_SECONDS - 1)
    assert keys.is_due(10.0 + REFRESH_SECONDS)


def test_keys_that_cannot_be_fetched_are_valid_for_an_hour(keys):
    """The hour starts when the keys were read; failures do not extend it."""
    keys.replace(parse_key_set(jwks("ed-1")), 0.0)
    for at in range(300, 3600, 60):
        keys.record_failure("no connection to the issuer", float(at))
    assert keys.key_set_at(EXPIRY_SECONDS - 1) is not None
    assert keys.key_set_at(EXPIRY_SECONDS) is None


def test_pauses_between_failures_grow_to_a_minute(keys):
    """They start at one second, and again after a success."""
    pauses, now = [], 0.0
    for _ in range(10):
        keys.record_failure("no", now)
        start = now
        while not keys.is_due(now):
            now += 0.1
        pauses.append(now - start)
    assert pauses[0] < 1.2
    assert 47 < pauses[-1] < 60.2
    keys.replace(parse_key_set(jwks("ed-1")), now)
    keys.record_failure("no", now)
    assert keys.is_due(now + 1)


def test_a_failure_lets_unknown_names_fetch_no_sooner(keys):
    """Unknown key names wait as long as after a success, however many there are."""
    keys.record_failure("no", 0.0)
    assert not keys.request_refetch(REFETCH_SECONDS - 1)
    assert keys.request_refetch(REFETCH_SECONDS)


def test_the_same_set_read_again_changes_nothing(keys):
    """The version stays the same; a different set has a different version."""
    keys.replace(parse_key_set(jwks("ed-1")), 0.0)
    keys.replace(parse_key_set(jwks("ed-1")), 1.0)
    assert keys.version == 1
    keys.replace(parse_key_set(jwks()), 2.0)
    assert keys.version == 2
    assert "no key" in keys.problem
