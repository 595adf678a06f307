"""What is reserved for the attempts of one request: none is sent without, and each is charged by how it ends.

An attempt that may have taken something and has no answer leaves its reservation behind, charged: the next one is sent
once there is another. One that has cost nothing leaves its own to the next. An answer that breaks off and goes on at
another engine is charged once, by what all of them have counted, where it began; the reservation of each later
attempt is for the case that it fails.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from llmkube.router.budgets.meter import NO_RESERVATION, BudgetsNotKeptError, Consumption, ExhaustedBudget, Reservation
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Prices
from llmkube.router.dispatch.verdicts import Cause, Failure


def charge_of(*, is_sent: bool, status: int, usage: Usage | None, prices: Prices | None) -> Consumption | None:
    """Return what an attempt took; None is all that was reserved for it.

    Args:
        is_sent: Whether the backend has got the whole request.
        status: What it has answered, of an error that came with 200 what that should have been; 0 for no answer.
        usage: The tokens that it has counted; None where it has counted none.
        prices: What its tokens cost; None where that is not known.
    """
    if status >= 300 or not (is_sent or status):
        return Consumption()
    return None if usage is None else Consumption(prompt=usage.prompt, answer=usage.completion, prices=prices)


BUDGET_UNAVAILABLE: Final = "the budget that this request is under cannot be written down now; ask again later"
"""What a client is told whose reservation cannot be kept."""

MAX_WASTED: Final = 3
"""So many attempts of one request may take what was reserved and give nothing; one that is asked again and again while
it accepts requests and breaks off would use up a budget."""

Reserve = Callable[[], Awaitable[Reservation | ExhaustedBudget]]
"""Reserves what one more attempt may take."""

Settle = Callable[[Reservation, Consumption | None], None]


async def _reserve_nothing() -> Reservation:  # noqa: ASYNC124 (in the place of one that waits)
    return NO_RESERVATION


def _settle_nothing(_reservation: Reservation, _took: Consumption | None) -> None:
    return


@attrs.define(eq=False)
class AttemptCharges:
    """The reservations of one request; by default it is under no budget.

    Attributes:
        reservation: For the next attempt, or the one under way; None where the last one has used it up.
        reserve: Makes another.
        settle: Ends one: charges what it says, or for None what was reserved.
        is_sent: Whether the backend has got the whole request of the attempt under way.
        status: What the backend has answered; 0 for nothing.
    """

    reservation: Reservation | None = NO_RESERVATION
    reserve: Reserve = _reserve_nothing
    settle: Settle = _settle_nothing
    is_sent: bool = False
    status: int = 0
    _interrupted: Reservation | None = None  # of the attempt whose answer others go on with
    _wasted: int = 0  # attempts that were charged and gave nothing

    async def begin(self) -> Failure | None:
        """Have something reserved for the next attempt; return why it may not be sent."""
        if self.reservation is not None:
            return None
        if self._wasted >= MAX_WASTED:
            return Failure(Cause.BUDGET, f"{self._wasted} attempts have used up what was reserved, and gave no answer")
        try:
            found = await self.reserve()
        except BudgetsNotKeptError:
            return Failure(Cause.BUDGET_STORE, BUDGET_UNAVAILABLE)
        if isinstance(found, ExhaustedBudget):
            seconds = None if found.wait_seconds is None else float(found.wait_seconds)
            return Failure(Cause.BUDGET, found.message, retry_after_seconds=seconds)
        self.reservation = found
        return None

    def mark_sent(self) -> None:
        """Note that the backend has got the whole request."""
        self.is_sent = True

    def failed(self, status: int) -> None:
        """Charge an attempt that has no answer for the client.

        Args:
            status: What the backend has answered; 0 for nothing.
        """
        if charge_of(is_sent=self.is_sent, status=status, usage=None, prices=None) is None:
            self._wasted += self.reservation is not None and bool(self.reservation.accounts)
            self._settle_current(None)
        self.is_sent, self.status = False, 0

    def mark_interrupted(self) -> None:
        """Note that an answer has begun and can go on elsewhere."""
        if self._interrupted is None:
            self._interrupted, self.reservation = self.reservation, None
        else:
            self._settle_current(Consumption())
        self.is_sent, self.status = False, 0

    def end(self, usage: Usage | None, prices: Prices | None) -> None:
        """Charge what is left to be charged: no attempt follows.

        Args:
            usage: What the answer took, all of it; None where that was not counted.
            prices: Of the backend that answered.
        """
        if self._interrupted is not None:
            self.settle(self._interrupted, charge_of(is_sent=True, status=200, usage=usage, prices=prices))
            self._interrupted = None
            usage = Usage(0, 0) if self.status else None  # it is in what was charged
        self._settle_current(charge_of(is_sent=self.is_sent, status=self.status, usage=usage, prices=prices))

    def _settle_current(self, took: Consumption | None) -> None:
        if self.reservation is not None:
            self.settle(self.reservation, took)
            self.reservation = None
