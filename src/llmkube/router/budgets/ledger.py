"""Account for spending in a rolling window and for reservations, so that admitted requests never exceed a limit. Pure.

The window moves in steps of a sixtieth of its length. Spending leaves the window only with its whole step: no window
ever exceeds the limit, and spending stays in it for at most a sixtieth of the window too long.
"""

import math
from collections import deque
from typing import Final, NamedTuple

import attrs

STEPS: Final = 60
_new = tuple.__new__  # half of the cost of a named tuple's own constructor


class Amount(NamedTuple):
    """Tokens and US dollars; dollars in billionths, so that they add up exactly.

    A tuple is created in half the time of a frozen attrs class, and each request adds up about twenty.
    """

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: "Amount") -> "Amount":  # type: ignore[override]  # adds, does not concatenate
        return _new(Amount, (self[0] + other[0], self[1] + other[1]))

    def __sub__(self, other: "Amount") -> "Amount":
        return _new(Amount, (self[0] - other[0], self[1] - other[1]))


_NOTHING: Final = Amount()


@attrs.frozen(kw_only=True)
class Limit:
    """The most that may be spent within a window of `window_seconds`; None means no limit."""

    tokens: int | None
    nano_usd: int | None
    window_seconds: float

    def admits(self, amount: Amount) -> bool:
        """Whether an amount is within the limit."""
        fits = self.tokens is None or amount.tokens <= self.tokens
        return fits and (self.nano_usd is None or amount.nano_usd <= self.nano_usd)


@attrs.define
class Account:
    """Spending under one limit; `reserved` is for requests that have not finished."""

    limit: Limit
    reserved: Amount = Amount()
    _steps: deque[tuple[float, Amount]] = attrs.field(factory=deque)  # end of each step, and spending in it
    _taken: Amount = Amount()

    def taken(self, now: float) -> Amount:
        """Return the spending within the window that ends now."""
        self._forget(now)
        return self._taken

    def wait_seconds(self, requested: Amount, now: float) -> float | None:
        """Return the seconds until this amount can be reserved at the earliest: 0 if it can be now, None if never."""
        limit = self.limit
        if self._steps and self._steps[0][0] + limit.window_seconds <= now:
            self._forget(now)
        taken, reserved = self._taken, self.reserved
        tokens, nano_usd = taken[0] + reserved[0] + requested[0], taken[1] + reserved[1] + requested[1]
        if (limit.tokens is None or tokens <= limit.tokens) and (limit.nano_usd is None or nano_usd <= limit.nano_usd):
            return 0.0
        total = Amount(tokens, nano_usd)
        if not limit.admits(requested):
            return None
        for ends, amount in self._steps:
            total -= amount
            if limit.admits(total):
                return max(0.0, ends + limit.window_seconds - now)
        # Only running requests block it, and it is unknown when they finish.
        return limit.window_seconds / STEPS

    def settle(self, reserved: Amount, spent: Amount, now: float) -> tuple[float, Amount] | None:
        """Release a reservation and record what was spent.

        Returns:
            The end of the current step and all spending in it; None if nothing was spent.
        """
        self.reserved -= reserved
        if spent == _NOTHING:
            return None
        step_seconds = self.limit.window_seconds / STEPS
        ends = (math.floor(now / step_seconds) + 1) * step_seconds
        self.restore(ends, spent)
        return self._steps[-1]

    def restore(self, ends: float, spent: Amount) -> None:
        """Record spending in the step that ends at `ends`; steps must be restored in order."""
        # After a window was shortened, the last step may end later than this one: both leave the window together.
        if self._steps and (last := self._steps[-1])[0] >= ends:
            self._steps[-1] = (last[0], last[1] + spent)
        else:
            self._steps.append((ends, spent))
        self._taken += spent

    def is_idle(self, now: float) -> bool:
        """Whether the account is empty, so that dropping it loses nothing."""
        return self.taken(now) == _NOTHING == self.reserved

    def _forget(self, now: float) -> None:
        while self._steps and self._steps[0][0] + self.limit.window_seconds <= now:
            self._taken -= self._steps.popleft()[1]
