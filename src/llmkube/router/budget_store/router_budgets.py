"""Where the budgets of a router are kept: at the server that its config names, else in this process and its file."""

from typing import Any, Never

import attrs
import trio

from llmkube.router.budget_store.local_budgets import LocalBudgets
from llmkube.router.budget_store.redis_budgets import RedisBudgets
from llmkube.router.budgets.meter import NO_RESERVATION, Consumption, ExhaustedBudget, Reservation, UsageBound
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.policy.request_facts import RequestFacts


@attrs.frozen(eq=False)
class RouterBudgets:
    """Both places; a config decides between them, and a reservation is settled where it was made.

    Attributes:
        local: In this process.
        shared: At a server.
    """

    local: LocalBudgets
    shared: RedisBudgets

    @property
    def problem(self) -> str:
        """Why requests under a budget are refused; "" while they are not."""
        return self.shared.problem or self.local.problem

    async def open(self, config: RoutingConfig) -> None:
        """Go on from what an earlier process has left.

        Raises:
            UserError: The file cannot be used.
            BudgetsNotKeptError: It cannot be written.
        """
        self.shared.reload(config)
        if config.budget_store is None:
            await self.local.open(config)

    async def reload(self, config: RoutingConfig) -> None:
        """Take up another config. Another place begins with what it knows: nothing moves between the two."""
        self.shared.reload(config)
        if config.budget_store is None:
            await self.local.reload(config)

    async def admit(
        self, config: RoutingConfig, bound: UsageBound | None, facts: RequestFacts
    ) -> Reservation | ExhaustedBudget:
        """Reserve what a request may take, so that it holds over a restart; or say that there is no room.

        No claim is one of a request that no budget is about.

        Raises:
            BudgetsNotKeptError: It cannot be reserved so.
        """
        if bound is None:
            return NO_RESERVATION
        if config.budget_store is None:
            return await self.local.admit(bound, facts)
        return await self.shared.admit(config.name, bound, facts)

    def settle(self, reservation: Reservation, spent: Consumption | None) -> None:
        """Charge what a request took; None charges what was reserved."""
        store = self.shared if reservation.steps else self.local
        store.settle(reservation, spent)

    def used(self, config: RoutingConfig) -> list[dict[str, Any]]:
        """Return of each budget how much is taken."""
        store = self.local if config.budget_store is None else self.shared
        return store.used(config)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write what waits until cancelled, and then what is left."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.local.run)
            await nursery.start(self.shared.run)
            task_status.started()
            await trio.sleep_forever()
        raise AssertionError("unreachable")
