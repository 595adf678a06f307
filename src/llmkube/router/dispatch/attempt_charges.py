"""Budget reservations of the attempts of one request: every attempt needs one, and is charged when it ends.

An attempt that may have used tokens but has no answer is charged its whole reservation, and the next attempt needs a
new one. An attempt that cost nothing passes its reservation on to the next. An answer that another engine continues is
charged once, to the reservation of the first attempt, with the tokens that all engines counted; the reservation of each
later attempt covers its failure.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from llmkube.router.budgets.meter import NO_RESERVATION, BudgetStoreError, Consumption, ExhaustedBudget, Reservation
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Prices
from llmkube.router.dispatch.verdicts import Cause, Failure


def charge_of(*, is_sent: bool, status: int, usage: Usage | None, prices: Prices | None) -> Consumption | None:
    """Return the consumption of an attempt; None for its whole reservation.

    Args:
        is_sent: Whether the whole request was sent to the backend.
        status: Status of the answer, corrected for errors that came with 200; 0 for no answer.
        usage: Tokens that the backend reported; None if it reported none. A part that was not counted counts as none.
        prices: Prices of its tokens; None if unknown.
    """
    if status >= 300 or not (is_sent or status):
        return Consumption()
    if usage is None or not usage.is_counted:
        return None
    return Consumption(usage=usage, prices=prices)


BUDGET_UNAVAILABLE: Final = "the budget of this request cannot be stored now; retry later"
"""Error message when reservations cannot be stored."""

MAX_WASTED: Final = 3
"""Attempts of one request that may be charged without an answer. Retries of a backend that accepts requests and then
breaks off would otherwise use up a budget."""

Reserve = Callable[[], Awaitable[Reservation | ExhaustedBudget]]
"""Reserves the most that one more attempt may use."""

Settle = Callable[[Reservation, Consumption | None], None]


async def _reserve_nothing() -> Reservation:  # noqa: ASYNC124 (a `Reserve`)
    return NO_RESERVATION


def _settle_nothing(_reservation: Reservation, _took: Consumption | None) -> None:
    return


@attrs.define(eq=False)
class AttemptCharges:
    """Reservations of one request; the defaults are those of a request without budgets.

    Attributes:
        reservation: Reservation of the current or next attempt; None once it is settled.
        reserve: Makes another reservation.
        settle: Settles a reservation: charges the given consumption, or the whole reservation for None.
        is_sent: Whether the whole request of the current attempt was sent.
        status: Status of the backend's answer; 0 for none.
        is_free: Whether nothing is charged, as for a count of tokens.
    """

    reservation: Reservation | None = NO_RESERVATION
    reserve: Reserve = _reserve_nothing
    settle: Settle = _settle_nothing
    is_sent: bool = False
    status: int = 0
    is_free: bool = attrs.field(default=False, kw_only=True)
    _interrupted: Reservation | None = None  # of the attempt whose answer others continue
    _wasted: int = 0  # attempts that were charged without an answer

    async def begin(self) -> Failure | None:
        """Ensure that the next attempt has a reservation; return why it may not be sent."""
        if self.reservation is not None:
            return None
        if self._wasted >= MAX_WASTED:
            return Failure(Cause.BUDGET, f"{self._wasted} attempts used their budget reservations without an answer")
        try:
            found = await self.reserve()
        except BudgetStoreError:
            return Failure(Cause.BUDGET_STORE, BUDGET_UNAVAILABLE)
        if isinstance(found, ExhaustedBudget):
            seconds = None if found.wait_seconds is None else float(found.wait_seconds)
            return Failure(Cause.BUDGET, found.message, retry_after_seconds=seconds)
        self.reservation = found
        return None

    def mark_sent(self) -> None:
        """Record that the whole request was sent."""
        self.is_sent = True

    def failed(self, status: int) -> None:
        """Charge an attempt that failed.

        Args:
            status: Status of the backend's answer; 0 for none.
        """
        if charge_of(is_sent=self.is_sent, status=status, usage=None, prices=None) is None:
            self._wasted += self.reservation is not None and bool(self.reservation.accounts)
            self._settle_current(None)
        self.is_sent, self.status = False, 0

    def mark_interrupted(self) -> None:
        """Record that an answer was interrupted and can be continued by another engine."""
        if self._interrupted is None:
            self._interrupted, self.reservation = self.reservation, None
        else:
            self._settle_current(Consumption())
        self.is_sent, self.status = False, 0

    def end(self, usage: Usage | None, prices: Prices | None) -> None:
        """Settle all open reservations after the last attempt.

        Args:
            usage: Tokens of the whole answer; None if they were not counted.
            prices: Prices of the backend that answered.
        """
        if self._interrupted is not None:
            self.settle(self._interrupted, charge_of(is_sent=True, status=200, usage=usage, prices=prices))
            self._interrupted = None
            if self.status:
                self._settle_current(Consumption())  # already charged to the first attempt
                return
            usage = None
        self._settle_current(charge_of(is_sent=self.is_sent, status=self.status, usage=usage, prices=prices))

    def _settle_current(self, took: Consumption | None) -> None:
        if self.reservation is not None:
            self.settle(self.reservation, Consumption() if self.is_free else took)
            self.reservation = None
