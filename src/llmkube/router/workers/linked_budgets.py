"""A worker's budgets: the parent reserves, writes down and charges; without its answer in time nothing is sent."""

from typing import Any, Final, Never

import attrs
import trio

from llmkube.router.budget_store.errors import BudgetsNotKeptError
from llmkube.router.budgets.meter import NOTHING, Demand, Exhausted, Reservation, Took, claim_of, teams_of
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import RequestFacts
from llmkube.router.workers.link import Link, LinkError
from llmkube.router.workers.written import claim_to, exhausted_from, took_to

ANSWER_SECONDS: Final = 6.0
"""How long a request waits for the parent, which itself gives its disk five seconds; then it is refused."""


@attrs.define(eq=False)
class LinkedBudgets:
    """Those of one worker.

    Attributes:
        link: To the parent.
        problem: Nothing: the parent says what is amiss.
    """

    link: Link
    problem: Final = ""

    async def open(self, _config: RoutingConfig) -> None:
        """Do nothing: the parent opens the file."""

    async def reload(self, _config: RoutingConfig) -> None:
        """Do nothing: the parent follows the config by itself."""

    async def admit(
        self, config: RoutingConfig, decision: Decision, facts: RequestFacts, demand: Demand
    ) -> Reservation | Exhausted:
        """Reserve what a request may take.

        Raises:
            BudgetsNotKeptError: The parent does not confirm it. What it may have reserved is given back.
        """
        claim = claim_of(config, decision, demand)
        if claim is None:
            return NOTHING
        number = self.link.number()
        try:
            said = await self.link.call(
                "reserve", ANSWER_SECONDS, number=number, claim=claim_to(claim), teams=teams_of(claim, facts)
            )
        except LinkError as exc:
            self._settle(number, Took())
            raise BudgetsNotKeptError(f"budgets are not counted: {exc}") from exc
        except BaseException:  # its client has gone, and nothing was sent
            self._settle(number, Took())
            raise
        if "error" in said:
            raise BudgetsNotKeptError(said["error"])
        if "full" in said:
            return exhausted_from(said["full"])
        return Reservation(accounts={}, copies=claim.copies, cap=claim.cap, number=number)

    def settle(self, reservation: Reservation, took: Took | None) -> None:
        """Charge what a request took; None charges what was reserved."""
        if reservation.number:
            self._settle(reservation.number, took)

    def used(self, _config: RoutingConfig) -> list[dict[str, Any]]:
        """Return nothing: the parent says it."""
        return []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Do nothing until cancelled."""
        task_status.started()
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def _settle(self, number: int, took: Took | None) -> None:
        self.link.send_nowait("settle", n=number, took=took_to(took))
