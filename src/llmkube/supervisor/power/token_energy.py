"""Joules per token of one engine, over the periods for which both are known. Pure.

An engine reports its token count rarely (every 30 s while it works); energy arrives every few seconds. The energy
between two counts belongs to the tokens between them. A period is left out on both sides of the ratio if its power is
unknown, or if the count decreased.
"""

import math
from typing import Final

import attrs

KNOWN_SHARE: Final = 0.9
"""Share of the time between two counts whose power must be known; otherwise the period is left out."""


@attrs.frozen
class TokenCount:
    """A token count that an engine reported.

    Attributes:
        pid: The engine's process.
        tokens: Tokens since its start.
        at: Monotonic time of the report.
    """

    pid: int
    tokens: float
    at: float


@attrs.frozen
class TokenEnergy:
    """Energy and tokens of one engine so far.

    Attributes:
        joules: Energy of `tokens`.
        tokens: Tokens whose energy is known.
        last: The newest count.
        since_joules: Energy since `last`.
        since_measured_seconds: Time since `last` with known power.
    """

    joules: float = 0.0
    tokens: float = 0.0
    last: TokenCount | None = None
    since_joules: float = 0.0
    since_measured_seconds: float = 0.0

    @property
    def joules_per_token(self) -> float | None:
        """The ratio; None before the first token with known energy."""
        return self.joules / self.tokens if self.tokens else None

    def with_energy(self, joules: float, *, measured_seconds: float) -> "TokenEnergy":
        """Add the energy of an interval that ends now."""
        return attrs.evolve(
            self,
            since_joules=self.since_joules + joules,
            since_measured_seconds=self.since_measured_seconds + measured_seconds,
        )

    def with_count(self, count: TokenCount) -> "TokenEnergy":
        """Add a count; a different process starts from zero.

        Call it right after `with_energy`, so that no energy before the count is missing.
        """
        before = self.last
        if before is None or before.pid != count.pid:
            return TokenEnergy(last=count)
        if count.at <= before.at:
            return self
        tokens, measured = count.tokens - before.tokens, self.since_measured_seconds
        passed = count.at - before.at
        if not 0 <= tokens < math.inf or not measured or measured < KNOWN_SHARE * passed:
            return TokenEnergy(self.joules, self.tokens, count)
        return TokenEnergy(self.joules + self.since_joules * passed / measured, self.tokens + tokens, count)
