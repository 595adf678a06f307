"""The keys of an issuer as they were last read, and when they must be read again. The clock is an argument.

Keys that cannot be read again stay valid for an hour: an issuer that is down for minutes locks no client out, and a
revoked key is accepted no longer than that. Without keys no token is accepted.
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.base.backoff import Backoff
from llmkube.router.auth.token_form import SignedToken

MAX_SET_BYTES: Final = 256 * 1024
"""Largest JWK Set as JSON; those of large issuers have 1 to 20 KiB."""


class KeysUnreadableError(Exception):
    """The keys cannot be read; the message contains no address, because clients see it."""


Check = Callable[[bytes, bytes], bool]
"""Takes the signed bytes and a signature, and returns whether the signature is valid; runs up to 1 ms."""


@attrs.frozen
class SigningKey:
    """A key for verifying signatures.

    Attributes:
        key_id: The id by which tokens name it; "" if it has none.
        checks: Signature checks by algorithm; only for algorithms that the key may be used with.
    """

    key_id: str
    checks: Mapping[str, Check] = attrs.field(repr=False)

    def has_signed(self, token: SignedToken) -> bool:
        """Return whether a token was signed with this key and the algorithm that the token names."""
        check = self.checks.get(token.algorithm)
        return check is not None and check(token.signed, token.signature)


@attrs.frozen
class KeySet:
    """The keys of an issuer as read at one time; sets with equal bytes are equal.

    Attributes:
        digest: Digest of the bytes.
        keys: Keys that tokens may be signed with.
        left_out: Why each of the other keys is not used, for people.
    """

    digest: bytes
    keys: tuple[SigningKey, ...] = attrs.field(eq=False)
    left_out: tuple[str, ...] = attrs.field(default=(), eq=False)

    def key_for(self, token: SignedToken) -> SigningKey | None:
        """Return the only key that fits the token's algorithm and, if it names one, its key id; None if not unique."""
        found = [each for each in self.keys if token.algorithm in each.checks and token.key_id in ("", each.key_id)]
        return found[0] if len(found) == 1 else None

    def has_key_id(self, key_id: str) -> bool:
        """Return whether a key has this id."""
        return any(each.key_id == key_id for each in self.keys)


REFRESH_SECONDS: Final = 300.0
"""Between two fetches; a revoked key is accepted for this long at most while the issuer can be reached."""

EXPIRY_SECONDS: Final = 3600.0
"""Lifetime of keys that cannot be read again."""

REFETCH_SECONDS: Final = 30.0
"""Between two fetches for tokens that name an unknown key: any client can send such tokens."""

_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)


@attrs.define(eq=False)
class TokenKeys:
    """The keys of one source.

    Attributes:
        uri: Address of the keys; "" if they are in a file.
        file: File of the keys; "" if they are fetched.
        rng: Jitter of pauses.
        problem: Why there are no usable keys, or why the last read failed; "" if all is fine.
        version: Increases with each different set; decisions made with an older one must be made again.
    """

    uri: str
    file: str
    rng: random.Random
    problem: str = "they have not been read yet"
    version: int = 0
    _set: KeySet | None = None
    _expires_at: float = -math.inf
    _refresh_at: float = -math.inf
    _refetch_at: float = -math.inf
    _refetch_requested: bool = False
    _failures: int = 0

    def key_set_at(self, now: float) -> KeySet | None:
        """Return the valid KeySet; None if there is none or it is too old."""
        return self._set if now < self._expires_at else None

    def is_due(self, now: float) -> bool:
        """Return whether the keys must be fetched now: a refresh is due, or a token named an unknown key."""
        return now >= self._refresh_at or (self._refetch_requested and now >= self._refetch_at)

    def request_refetch(self, now: float) -> bool:
        """Record that a token names an unknown key; return whether the keys will be fetched for it now."""
        if not self.uri or now < self._refetch_at:
            return False
        self._refetch_requested = True
        return True

    def replace(self, keys: KeySet, now: float) -> None:
        """Replace the keys with those just read."""
        if keys != self._set:
            self._set, self.version = keys, self.version + 1
        self.problem = "" if keys.keys else "no key among them can verify tokens"
        self._failures, self._refetch_requested = 0, False
        self._expires_at, self._refresh_at = now + EXPIRY_SECONDS, now + REFRESH_SECONDS
        self._refetch_at = now + REFETCH_SECONDS

    def record_failure(self, problem: str, now: float) -> None:
        """Record that the keys could not be read; the previous ones stay valid until they expire."""
        self.problem, self._refetch_requested = problem, False
        self._failures += 1
        pause = _BACKOFF.delay(self._failures, self.rng)
        self._refresh_at, self._refetch_at = now + pause, now + max(pause, REFETCH_SECONDS)

    def confirm(self, now: float) -> None:
        """Extend the validity of the keys: their file has not changed since it was read."""
        self._expires_at = now + EXPIRY_SECONDS
