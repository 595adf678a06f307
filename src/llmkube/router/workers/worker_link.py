"""A worker's side of its link to the parent: what it shares with the others, and what the parent asks of it."""

import random
from collections.abc import Mapping
from typing import Any

import attrs
from prometheus_client import CollectorRegistry

from llmkube.router.dispatch.circuits import Terms
from llmkube.router.proxy.router import Router
from llmkube.router.proxy.shared import Shared
from llmkube.router.workers.link import Link, Message
from llmkube.router.workers.linked_budgets import LinkedBudgets
from llmkube.router.workers.linked_circuits import LinkedCircuits
from llmkube.router.workers.linked_shelf import LinkedShelf
from llmkube.router.workers.linked_turns import LinkedTurns
from llmkube.router.workers.written import families_to


@attrs.define(eq=False)
class WorkerLink:
    """What one worker shares.

    Attributes:
        link: To the parent.
        registry: The worker's own metrics.
        rng: Spreads the pauses of circuits.
        router: Once it is open.
    """

    link: Link
    registry: CollectorRegistry
    rng: random.Random
    router: Router | None = None
    _turns: LinkedTurns = attrs.field(init=False)
    _circuits: LinkedCircuits = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._turns = LinkedTurns(link=self.link)
        self._circuits = LinkedCircuits(Terms(), self.rng, link=self.link)

    def shared(self, audit_lock: int) -> Shared:
        """Return what a router is opened with."""
        return Shared(
            turns=self._turns,
            circuits=self._circuits,
            budgets=LinkedBudgets(self.link),
            shelf=LinkedShelf(self.link),
            audit_lock=audit_lock,
        )

    def take(self, message: Message) -> None:
        """Take one message of the parent."""
        match message["k"]:
            case "turn":
                self._turns.take(message)
            case "circuit":
                self._circuits.take(message)
            case "fence":
                self.link.answer_nowait(message)
            case "report":
                self.link.answer_nowait(message, **self._report(metrics=message["metrics"]))

    def _report(self, *, metrics: bool) -> Mapping[str, Any]:
        router = self.router
        if router is None:
            return {"ready": False, "why": "it starts", "in_flight": {}, "budgets": [], "metrics": []}
        ready, why = router.ready()
        return {
            "ready": ready,
            "why": why,
            "in_flight": router.in_flight_of(),
            "budgets": list(router.budgets()),
            "metrics": families_to(self.registry.collect()) if metrics else [],
        }
