"""The keys of an issuer as they were read last, and when they have to be read again. Time is the caller's.

Keys that cannot be read anew go on for a while: an issuer that is down for some minutes locks no client out, and a key
that it has taken back counts no longer than that. Without keys no token counts.
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.base.backoff import Backoff
from llmkube.router.auth.token_form import SignedToken

MAX_SET_BYTES: Final = 256 * 1024
"""As they are written; large issuers have 1 to 20 KiB."""

Check = Callable[[bytes, bytes], bool]
"""Takes what was signed and a signature, and returns whether the one is of the other; takes up to 1 ms."""


@attrs.frozen
class SigningKey:
    """One key.

    Attributes:
        key_id: What tokens call it; "" has no name.
        checks: What it is good for: by the algorithm, how a signature is checked.
    """

    key_id: str
    checks: Mapping[str, Check] = attrs.field(repr=False)

    def has_signed(self, token: SignedToken) -> bool:
        """Return whether a token was signed with this key, by the algorithm that it names."""
        check = self.checks.get(token.algorithm)
        return check is not None and check(token.signed, token.signature)


@attrs.frozen
class KeySet:
    """The keys of an issuer, as they were read at one time; two of equal bytes are equal.

    Attributes:
        digest: Of the bytes.
        keys: Those that tokens may be signed with.
        left_out: Why each other one is not, for people.
    """

    digest: bytes
    keys: tuple[SigningKey, ...] = attrs.field(eq=False)
    left_out: tuple[str, ...] = attrs.field(default=(), eq=False)

    def key_for(self, token: SignedToken) -> SigningKey | None:
        """Return the one key that a token can have been signed with: by its name; without a name, if there is one."""
        found = [
            each
            for each in self.keys
            if token.algorithm in each.checks and (not token.key_id or each.key_id == token.key_id)
        ]
        return found[0] if len(found) == 1 else None

    def has_key_id(self, key_id: str) -> bool:
        """Return whether some key has this name."""
        return any(each.key_id == key_id for each in self.keys)


REFRESH_SECONDS: Final = 300.0
"""Between two fetches: how late a key is seen that the issuer has taken back."""

EXPIRY_SECONDS: Final = 3600.0
"""How long keys count that could not be read again."""

REFETCH_SECONDS: Final = 30.0
"""Between two fetches for tokens that name an unknown key: anybody can name one."""

_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)


@attrs.define(eq=False)
class TokenKeys:
    """The keys of one source.

    Attributes:
        uri: Where they are fetched; "" if they are in a file.
        file: Where they lie; "" if they are fetched.
        rng: Draws for pauses.
        problem: Why they could not be read; "" if they were.
        version: Grows with each set that differs: what was decided by an older one is to be decided again.
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
        """Return the KeySet that counts; None while there is none, or once it is too old."""
        return self._set if now < self._expires_at else None

    def is_due(self, now: float) -> bool:
        """Return whether they have to be fetched now: their time is over, or a token names a key that is not there."""
        return now >= self._refresh_at or (self._refetch_requested and now >= self._refetch_at)

    def request_refetch(self, now: float) -> bool:
        """Note that a token names an unknown key; return whether they are about to be fetched for it."""
        if not self.uri or now < self._refetch_at:
            return False
        self._refetch_requested = True
        return True

    def read(self, keys: KeySet, now: float) -> None:
        """Take up a KeySet that was read."""
        if keys != self._set:
            self._set, self.version = keys, self.version + 1
        self.problem = "" if keys.keys else "there is no key among them that tokens may be signed with"
        self._failures, self._refetch_requested = 0, False
        self._expires_at, self._refresh_at, self._refetch_at = (
            now + EXPIRY_SECONDS,
            now + REFRESH_SECONDS,
            now + REFETCH_SECONDS,
        )

    def failed(self, problem: str, now: float) -> None:
        """Note that they could not be read; those of before count on for a while."""
        self.problem, self._refetch_requested = problem, False
        self._failures += 1
        pause = _BACKOFF.delay(self._failures, self.rng)
        self._refresh_at, self._refetch_at = now + pause, now + max(pause, REFETCH_SECONDS)

    def unchanged(self, now: float) -> None:
        """Note that their file is as it was when they were read from it."""
        self._expires_at = now + EXPIRY_SECONDS
