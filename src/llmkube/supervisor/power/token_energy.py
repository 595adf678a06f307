"""Joules per token of one engine, over the times for which both are known. Pure.

An engine says rarely how many tokens it has computed (every 30 s while it works), energy comes every few seconds. What
was drawn between two counts belongs to the tokens between them. A count that is smaller than the one before, and a time
for which the power is not known, say nothing about the ratio: both sides of that stretch are left out.
"""

import math
from typing import Final

import attrs

KNOWN_SHARE: Final = 0.9
"""Of the time between two counts; with less of it measured the stretch is left out."""


@attrs.frozen
class TokenCount:
    """What an engine has said.

    Attributes:
        pid: Whose count it is.
        tokens: Since its start.
        at: Monotonic time of the answer.
    """

    pid: int
    tokens: float
    at: float


@attrs.frozen
class TokenEnergy:
    """The sums of one engine so far.

    Attributes:
        joules: What its counted tokens took.
        tokens: Those that are counted.
        last: The newest count.
        since_joules: What was drawn since that.
        since_measured_seconds: The time since that for which it is known.
        since_lost_seconds: The time since that for which it is not.
    """

    joules: float = 0.0
    tokens: float = 0.0
    last: TokenCount | None = None
    since_joules: float = 0.0
    since_measured_seconds: float = 0.0
    since_lost_seconds: float = 0.0

    @property
    def joules_per_token(self) -> float | None:
        """None before the first token whose energy is known."""
        return self.joules / self.tokens if self.tokens else None

    def drew(self, joules: float, *, measured_seconds: float, lost_seconds: float) -> "TokenEnergy":
        """Take an interval into account that ends now."""
        return attrs.evolve(
            self,
            since_joules=self.since_joules + joules,
            since_measured_seconds=self.since_measured_seconds + measured_seconds,
            since_lost_seconds=self.since_lost_seconds + lost_seconds,
        )

    def counted(self, count: TokenCount) -> "TokenEnergy":
        """Take a count into account; another process begins anew.

        Call it right after `drew`: what was drawn since, and is not told yet, would be missing.
        """
        before = self.last
        if before is None or before.pid != count.pid:
            return TokenEnergy(last=count)
        if count.at <= before.at:
            return self
        tokens, measured = count.tokens - before.tokens, self.since_measured_seconds
        passed = measured + self.since_lost_seconds
        if not 0 <= tokens < math.inf or not measured or measured < KNOWN_SHARE * passed:
            return TokenEnergy(self.joules, self.tokens, count)
        return TokenEnergy(self.joules + self.since_joules * passed / measured, self.tokens + tokens, count)
