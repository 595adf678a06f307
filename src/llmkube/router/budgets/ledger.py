"""What was taken within a rolling window, and what is reserved: what is admitted never exceeds the limit. Pure.

The window moves in steps of a sixtieth of its length. What was taken counts until its whole step has left, so that
never more than the limit falls into any window, and at most a sixtieth less.
"""

import math
from collections import deque
from typing import Final, NamedTuple

import attrs

STEPS: Final = 60


class Amount(NamedTuple):
    """Tokens and US dollars; dollars in billionths, so that they add up exactly.

    A tuple, which is made in half the time that a frozen class of attrs takes: each request adds up some twenty.
    """

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: "Amount") -> "Amount":  # type: ignore[override]  # it is no list of two
        return Amount(self.tokens + other.tokens, self.nano_usd + other.nano_usd)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd)

    def covers(self, other: "Amount") -> bool:
        """Whether it is as much, of both."""
        return self.tokens >= other.tokens and self.nano_usd >= other.nano_usd

    def at_least(self, other: "Amount") -> "Amount":
        """Return the larger of each."""
        if self.covers(other):
            return self
        return Amount(max(self.tokens, other.tokens), max(self.nano_usd, other.nano_usd))

    def at_most(self, other: "Amount") -> "Amount":
        """Return the smaller of each."""
        return Amount(min(self.tokens, other.tokens), min(self.nano_usd, other.nano_usd))


_NOTHING: Final = Amount()


@attrs.frozen(kw_only=True)
class Limit:
    """The most that may be taken within a window; None limits none.

    Attributes:
        tokens: Tokens.
        nano_usd: Billionths of a dollar.
        window_seconds: Length of the window.
    """

    tokens: int | None
    nano_usd: int | None
    window_seconds: float

    def admits(self, amount: Amount) -> bool:
        """Whether so much may be taken."""
        fits = self.tokens is None or amount.tokens <= self.tokens
        return fits and (self.nano_usd is None or amount.nano_usd <= self.nano_usd)


@attrs.define
class Account:
    """What was taken under one limit.

    Attributes:
        limit: It.
        reserved: By requests that have not ended.
    """

    limit: Limit
    reserved: Amount = Amount()
    _steps: deque[tuple[float, Amount]] = attrs.field(factory=deque)  # when a step ends, and what was taken in it
    _taken: Amount = Amount()

    def taken(self, now: float) -> Amount:
        """Return what was taken within the window that ends now."""
        self._forget(now)
        return self._taken

    def wait_seconds(self, requested: Amount, now: float) -> float | None:
        """Return in how many seconds so much more may be reserved at the earliest, 0 for now; None for never."""
        if not self.limit.admits(requested):
            return None
        self._forget(now)
        total = self._taken + self.reserved + requested
        if self.limit.admits(total):
            return 0.0
        for ends, amount in self._steps:
            total -= amount
            if self.limit.admits(total):
                return max(0.0, ends + self.limit.window_seconds - now)
        # Only what is under way stands in the way: it ends when it ends.
        return self._step_seconds

    def reserve(self, requested: Amount) -> None:
        """Reserve what `wait_seconds` has found room for."""
        self.reserved += requested

    def settle(self, reserved: Amount, spent: Amount, now: float) -> tuple[float, Amount] | None:
        """Give back what was reserved, and take what it took.

        Returns:
            When the step ends in which it was taken, and all that was taken in this step; None if it took nothing.
        """
        self.reserved -= reserved
        self._forget(now)
        if spent == _NOTHING:
            return None
        ends = (math.floor(now / self._step_seconds) + 1) * self._step_seconds
        self.restore(ends, spent)
        return self._steps[-1]

    def restore(self, ends: float, spent: Amount) -> None:
        """Take what was taken in the step that ends then; steps come in their order."""
        # After a window got shorter, the last step may end later than this one: it counts until that one has left.
        if self._steps and self._steps[-1][0] >= ends:
            self._steps[-1] = (self._steps[-1][0], self._steps[-1][1] + spent)
        else:
            self._steps.append((ends, spent))
        self._taken += spent

    def is_idle(self, now: float) -> bool:
        """Whether nothing of it would be lost if it were forgotten."""
        return self.taken(now) == _NOTHING == self.reserved

    @property
    def _step_seconds(self) -> float:
        return self.limit.window_seconds / STEPS

    def _forget(self, now: float) -> None:
        while self._steps and self._steps[0][0] + self.limit.window_seconds <= now:
            self._taken -= self._steps.popleft()[1]
