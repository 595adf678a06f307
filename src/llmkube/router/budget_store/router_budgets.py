"""Store the budgets of a router at the server that its config names, else in this process and its file."""

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
    """Both stores: the config chooses one, and a reservation is settled in the store in which it was made."""

    local: LocalBudgets
    shared: RedisBudgets

    @property
    def problem(self) -> str:
        """Why requests under a budget are refused; "" if they are not."""
        return self.shared.problem or self.local.problem

    async def open(self, config: RoutingConfig) -> None:
        """Open the store of the config and restore the state of an earlier process.

        Raises:
            UserError: The file cannot be used.
            BudgetStoreError: The file cannot be written.
        """
        self.shared.reload(config)
        if config.budget_store is None:
            await self.local.open(config)

    async def reload(self, config: RoutingConfig) -> None:
        """Apply a reloaded config. If it changes the store, no usage is moved between the two."""
        self.shared.reload(config)
        if config.budget_store is None:
            await self.local.reload(config)

    async def admit(
        self, config: RoutingConfig, bound: UsageBound | None, facts: RequestFacts
    ) -> Reservation | ExhaustedBudget:
        """Reserve the bound of a request durably; None means that no budget applies to it.

        Raises:
            BudgetStoreError: The reservation cannot be stored.
        """
        if bound is None:
            return NO_RESERVATION
        if config.budget_store is None:
            return await self.local.admit(bound, facts)
        return await self.shared.admit(config.name, bound, facts)

    def settle(self, reservation: Reservation, spent: Consumption | None) -> None:
        """Charge what a request used; None charges the reservation."""
        store = self.shared if reservation.steps else self.local
        store.settle(reservation, spent)

    def used(self, config: RoutingConfig) -> list[dict[str, Any]]:
        """Return the usage of each budget."""
        store = self.local if config.budget_store is None else self.shared
        return store.used(config)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write until cancelled, then write what is left."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.local.run)
            await nursery.start(self.shared.run)
            task_status.started()
            await trio.sleep_forever()
        raise AssertionError("unreachable")
