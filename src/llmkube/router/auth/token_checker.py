"""Whom a token lets in: form, key, signature, claims; what was found is kept until the token's time is over.

What a client is told says no more than it needs: that its token is too old, that keys are missing here, or that it is
not accepted. Tokens are kept by their digests.
"""

import enum
from collections.abc import Callable
from typing import Final

import attrs

from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.token_claims import Bearer, ClaimError, ExpiredError, bearer_of
from llmkube.router.auth.token_form import SignedToken, TokenFormError, object_of, token_of
from llmkube.router.auth.token_keys import TokenKeys
from llmkube.router.config.routing_config import Tokens
from llmkube.router.policy.request_facts import Principal

MOST_KEPT: Final = 4096
"""Tokens whose signature is not checked again; the oldest goes first."""


class Unaccepted(enum.Enum):
    """Why a token is not accepted, as far as a client is told."""

    EXPIRED = enum.auto()
    NOT_ACCEPTED = enum.auto()
    NO_KEYS = enum.auto()
    KEYS_COMING = enum.auto()


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
    _kept: dict[bytes, Bearer] = attrs.field(factory=dict, repr=False)
    _version: int = -1

    def has_keys(self) -> bool:
        """Return whether there are keys that count now."""
        keys = self.keys.set_at(self.clock())
        return keys is not None and bool(keys.keys)

    def check(self, shown: str) -> Principal | Unaccepted:
        """Return whom a token lets in, or what its client is told."""
        now = self.clock()
        keys = self.keys.set_at(now)
        if keys is None or not keys.keys:
            return Unaccepted.NO_KEYS
        if self._version != self.keys.version:  # a key may have been taken back
            self._kept.clear()
            self._version = self.keys.version
        wall, digest = self.wall_clock(), digest_of_key(shown)
        found = self._kept.get(digest)
        if found is not None and found.counts_at(wall):
            return found.principal
        try:
            token = token_of(shown)
            key = keys.key_for(token)
            if key is None:
                return self._unknown(token, now, known=keys.names(token.key_id))
            if not key.has_signed(token):
                return Unaccepted.NOT_ACCEPTED
            bearer = bearer_of(object_of(token.payload), self.tokens, wall)
        except ExpiredError:
            self._kept.pop(digest, None)
            return Unaccepted.EXPIRED
        except (ClaimError, TokenFormError):
            return Unaccepted.NOT_ACCEPTED
        self._keep(digest, bearer)
        return bearer.principal

    def _unknown(self, token: SignedToken, now: float, *, known: bool) -> Unaccepted:
        coming = bool(token.key_id) and not known and self.keys.ask_again(now)
        return Unaccepted.KEYS_COMING if coming else Unaccepted.NOT_ACCEPTED

    def _keep(self, digest: bytes, bearer: Bearer) -> None:
        self._kept.pop(digest, None)
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[digest] = bearer
