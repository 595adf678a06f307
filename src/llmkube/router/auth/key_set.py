"""The public keys of an issuer, and which of them a token can have been signed with."""

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.router.auth.token_form import SignedToken

MOST_SET_BYTES: Final = 256 * 1024
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

    def names(self, key_id: str) -> bool:
        """Return whether some key has this name."""
        return any(each.key_id == key_id for each in self.keys)
