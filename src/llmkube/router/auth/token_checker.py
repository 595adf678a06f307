"""Verify a token: form, key, signature, claims. The result is cached, by the token's digest, until the token expires.

A client learns no more than it needs: its token has expired, the router has no keys, or the token is not accepted.

Claims (RFC 7519, 4.1, and RFC 8725): `iss`, `aud`, `exp` and the team are required; `nbf` and `iat` are checked if
present. A time must be a number from 0 to the end of the year 9999.
"""

import enum
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.token_form import MalformedTokenError, SignedToken, object_of, token_of
from llmkube.router.auth.token_keys import TokenKeys
from llmkube.router.config.routing_config import Tokens
from llmkube.router.policy.request_facts import Principal

LEEWAY_SECONDS: Final = 30.0
"""Largest tolerated difference between the issuer's clock and this one."""

MAX_TEAM: Final = 253
_MAX_TIME: Final = 253402300800  # the start of the year 10000
_MAX_TEXT: Final = 4096
_MAX_AUDIENCES: Final = 64
_TENANT_DIGITS: Final = 16


class ClaimError(Exception):
    """A claim is missing or not accepted."""


class ExpiredError(ClaimError):
    """A token has expired and is valid otherwise."""


@attrs.frozen
class Bearer:
    """The principal of a token, and its validity in seconds since 1970; both times include the leeway."""

    principal: Principal
    valid_from: float
    valid_until: float


def bearer_of(claims: Mapping[str, Any], tokens: Tokens, now: float) -> Bearer:
    """Return the bearer that claims identify.

    Args:
        claims: Claims of a token with a valid signature.
        tokens: Requirements that the claims must meet.
        now: The wall clock, in seconds since 1970.

    Raises:
        ExpiredError: The token has expired and is valid otherwise.
        ClaimError: A claim is missing or not accepted.
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
    """Return the audiences of a token: a string, or a list of strings."""
    audiences = [value] if isinstance(value, str) else value
    is_list = isinstance(audiences, list) and len(audiences) <= _MAX_AUDIENCES
    if not is_list or not all(isinstance(each, str) for each in audiences):
        raise ClaimError("aud")
    return audiences


def _time(claims: Mapping[str, Any], name: str) -> float:
    value: Any = claims.get(name)
    if type(value) not in (int, float) or not 0 <= value < _MAX_TIME:
        raise ClaimError(name)
    return float(value)


def _tenant(issuer: str, team: str, subject: str) -> str:
    """Return a pseudonym of a subject for the audit log; all of its tokens have the same one."""
    value = "\0".join((issuer, subject or f"\0{team}"))
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_TENANT_DIGITS]


MAX_CACHED_TOKENS: Final = 4096
"""Cached tokens, whose signatures are not verified again; the oldest is dropped first."""


class Rejection(enum.Enum):
    """Why a token or a key is not accepted, as reported to the client."""

    EXPIRED = enum.auto()
    NOT_ACCEPTED = enum.auto()
    NO_KEYS = enum.auto()
    KEYS_PENDING = enum.auto()
    KEY_EXPIRED = enum.auto()


@attrs.define(eq=False)
class TokenChecker:
    """Verifies the tokens of one issuer.

    Attributes:
        tokens: Requirements that a token must meet.
        keys: The issuer's keys.
        wall_clock: Returns the seconds since 1970, for `exp` and `nbf`.
        clock: Returns Trio's time, for the age of the keys.
    """

    tokens: Tokens
    keys: TokenKeys
    wall_clock: Callable[[], float]
    clock: Callable[[], float]
    _cache: dict[bytes, Bearer] = attrs.field(factory=dict, repr=False)
    _version: int = -1

    def has_keys(self) -> bool:
        """Return whether there are valid keys now."""
        keys = self.keys.key_set_at(self.clock())
        return keys is not None and bool(keys.keys)

    def check(self, credential: str) -> Principal | Rejection:
        """Return the principal of a token, or why it is rejected."""
        now = self.clock()
        keys = self.keys.key_set_at(now)
        if keys is None or not keys.keys:
            return Rejection.NO_KEYS
        if self._version != self.keys.version:  # a key may have been revoked
            self._cache.clear()
            self._version = self.keys.version
        wall, digest = self.wall_clock(), digest_of_key(credential)
        found = self._cache.get(digest)
        if found is not None and found.valid_from <= wall < found.valid_until:
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
