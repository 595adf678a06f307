"""What the claims of a token have to say, once its signature is right (RFC 7519, 4.1, and RFC 8725).

`iss`, `aud`, `exp` and the team are asked for, `nbf` and `iat` are kept to where they are given. Times are numbers
within this era: a text, true, a negative time or one beyond the year 9999 is none.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.config.routing_config import Tokens
from llmkube.router.policy.request_facts import Principal

LEEWAY_SECONDS: Final = 30.0
"""How far the issuer's clock and this one may be apart."""

MOST_TEAM: Final = 253
_LATEST: Final = 253402300800  # the beginning of the year 10000
_MOST_TEXT: Final = 4096
_MOST_AUDIENCES: Final = 64
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
        begins: From when on, in seconds since 1970; the leeway is in it.
        ends: Until when.
    """

    principal: Principal
    begins: float
    ends: float

    def counts_at(self, now: float) -> bool:
        """Return whether its time has come and is not over."""
        return self.begins <= now < self.ends


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
    if not isinstance(team, str) or not 0 < len(team) <= MOST_TEAM or not team.isprintable() or team != team.strip():
        raise ClaimError("team")
    subject = claims.get("sub", "")
    if not isinstance(subject, str) or len(subject) > _MOST_TEXT:
        raise ClaimError("sub")
    ends = _time(claims, "exp") + LEEWAY_SECONDS
    begins = max((_time(claims, name) - LEEWAY_SECONDS for name in ("nbf", "iat") if name in claims), default=0.0)
    if now < begins:
        raise ClaimError("nbf")
    if now >= ends:
        raise ExpiredError
    return Bearer(Principal(team=team, tenant=_tenant(tokens.issuer, team, subject)), begins, ends)


def _audiences(named: Any) -> list[str]:
    """Return whom a token is for: a text, or a list of nothing but texts."""
    several = [named] if isinstance(named, str) else named
    if not isinstance(several, list) or len(several) > _MOST_AUDIENCES:
        raise ClaimError("aud")
    if not all(isinstance(each, str) for each in several):
        raise ClaimError("aud")
    return several


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if type(value) not in (int, float):
        raise ClaimError(name)
    assert isinstance(value, int | float)
    if not (0 <= value < _LATEST) or not math.isfinite(value):
        raise ClaimError(name)
    return float(value)


def _tenant(issuer: str, team: str, subject: str) -> str:
    """Return what stands for a subject in the audit log: the same for each of its tokens, and not its name."""
    named = "\0".join((issuer, subject or f"\0{team}"))
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:_TENANT_DIGITS]
