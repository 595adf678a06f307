"""Whom a token lets in: form, key, signature, claims; what was found is kept until the token's time is over.

What a client is told says no more than it needs: that its token is too old, that keys are missing here, or that it is
not accepted. Tokens are kept by their digests.

Claims (RFC 7519, 4.1, and RFC 8725): `iss`, `aud`, `exp` and the team are asked for, `nbf` and `iat` are kept to where
they are given. Times are numbers within this era: a text, true, a negative time or one beyond the year 9999 is none.
"""

import enum
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.token_form import MalformedTokenError, SignedToken, object_of, token_of
from llmkube.router.auth.token_keys import TokenKeys
from llmkube.router.config.routing_config import Tokens
from llmkube.router.policy.request_facts import Principal

LEEWAY_SECONDS: Final = 30.0
"""How far the issuer's clock and this one may be apart."""

MAX_TEAM: Final = 253
_MAX_TIME: Final = 253402300800  # the beginning of the year 10000
_MAX_TEXT: Final = 4096
_MAX_AUDIENCES: Final = 64
_TENANT_DIGITS: Final = 16


class ClaimError(Exception):
    """The claims do not let a client in."""


class ExpiredError(ClaimError):
    """Nothing is wrong with a token but that its time is over."""


@attrs.frozen
class Bearer:
    """Who a token is for, and when.

    Attributes:
        principal: The team and the tenant.
        valid_from: From when on, in seconds since 1970; the leeway is in it.
        valid_until: Until when.
    """

    principal: Principal
    valid_from: float
    valid_until: float

    def is_valid_at(self, now: float) -> bool:
        """Return whether its time has come and is not over."""
        return self.valid_from <= now < self.valid_until


def bearer_of(claims: Mapping[str, Any], tokens: Tokens, now: float) -> Bearer:
    """Return whom these claims let in.

    Args:
        claims: Of a token whose signature was found right.
        tokens: What is asked of them.
        now: The wall clock, in seconds since 1970.

    Raises:
        ExpiredError: The time is over, and all else is right.
        ClaimError: Something else is not as it has to be.
    """
    if claims.get("iss") != tokens.issuer:
        raise ClaimError("iss")
    if not set(_audiences(claims.get("aud"))) & set(tokens.audiences):
        raise ClaimError("aud")
    team = claims.get(tokens.team_claim)
    if not isinstance(team, str) or not 0 < len(team) <= MAX_TEAM or not team.isprintable() or team != team.strip():
        raise ClaimError("team")
    subject = claims.get("sub", "")
    if not isinstance(subject, str) or len(subject) > _MAX_TEXT:
        raise ClaimError("sub")
    valid_until = _time(claims, "exp") + LEEWAY_SECONDS
    valid_from = max((_time(claims, name) - LEEWAY_SECONDS for name in ("nbf", "iat") if name in claims), default=0.0)
    if now < valid_from:
        raise ClaimError("nbf")
    if now >= valid_until:
        raise ExpiredError
    return Bearer(Principal(team=team, tenant=_tenant(tokens.issuer, team, subject)), valid_from, valid_until)


def _audiences(value: Any) -> list[str]:
    """Return whom a token is for: a text, or a list of nothing but texts."""
    audiences = [value] if isinstance(value, str) else value
    if not isinstance(audiences, list) or len(audiences) > _MAX_AUDIENCES:
        raise ClaimError("aud")
    if not all(isinstance(each, str) for each in audiences):
        raise ClaimError("aud")
    return audiences


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if type(value) not in (int, float):
        raise ClaimError(name)
    assert isinstance(value, int | float)
    if not (0 <= value < _MAX_TIME) or not math.isfinite(value):
        raise ClaimError(name)
    return float(value)


def _tenant(issuer: str, team: str, subject: str) -> str:
    """Return what stands for a subject in the audit log: the same for each of its tokens, and not its name."""
    value = "\0".join((issuer, subject or f"\0{team}"))
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_TENANT_DIGITS]


MAX_CACHED_TOKENS: Final = 4096
"""Tokens whose signature is not checked again; the oldest goes first."""


class Rejection(enum.Enum):
    """Why a token is not accepted, as far as a client is told."""

    EXPIRED = enum.auto()
    NOT_ACCEPTED = enum.auto()
    NO_KEYS = enum.auto()
    KEYS_PENDING = enum.auto()


@attrs.define(eq=False)
class TokenChecker:
    """Checks the tokens of one issuer.

    Attributes:
        tokens: What is asked of them.
        keys: The issuer's.
        wall_clock: Returns the seconds since 1970: `exp` and `nbf` are of it.
        clock: Returns Trio's time, which the age of keys is of.
    """

    tokens: Tokens
    keys: TokenKeys
    wall_clock: Callable[[], float]
    clock: Callable[[], float]
    _cache: dict[bytes, Bearer] = attrs.field(factory=dict, repr=False)
    _version: int = -1

    def has_keys(self) -> bool:
        """Return whether there are keys that count now."""
        keys = self.keys.key_set_at(self.clock())
        return keys is not None and bool(keys.keys)

    def check(self, credential: str) -> Principal | Rejection:
        """Return whom a token lets in, or what its client is told."""
        now = self.clock()
        keys = self.keys.key_set_at(now)
        if keys is None or not keys.keys:
            return Rejection.NO_KEYS
        if self._version != self.keys.version:  # a key may have been taken back
            self._cache.clear()
            self._version = self.keys.version
        wall, digest = self.wall_clock(), digest_of_key(credential)
        found = self._cache.get(digest)
        if found is not None and found.is_valid_at(wall):
            return found.principal
        try:
            token = token_of(credential)
            key = keys.key_for(token)
            if key is None:
                return self._unknown_key(token, now, known=keys.has_key_id(token.key_id))
            if not key.has_signed(token):
                return Rejection.NOT_ACCEPTED
            bearer = bearer_of(object_of(token.payload), self.tokens, wall)
        except ExpiredError:
            self._cache.pop(digest, None)
            return Rejection.EXPIRED
        except (ClaimError, MalformedTokenError):
            return Rejection.NOT_ACCEPTED
        self._cache_bearer(digest, bearer)
        return bearer.principal

    def _unknown_key(self, token: SignedToken, now: float, *, known: bool) -> Rejection:
        is_pending = bool(token.key_id) and not known and self.keys.request_refetch(now)
        return Rejection.KEYS_PENDING if is_pending else Rejection.NOT_ACCEPTED

    def _cache_bearer(self, digest: bytes, bearer: Bearer) -> None:
        self._cache.pop(digest, None)
        while len(self._cache) >= MAX_CACHED_TOKENS:
            del self._cache[next(iter(self._cache))]
        self._cache[digest] = bearer
