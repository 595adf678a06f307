"""What processes that answer at one port have in common; a router that answers alone has the same of its own."""

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.backoff import Backoff
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.budget_store.kept_budgets import KeptBudgets
from llmkube.router.budget_store.router_budgets import OwnBudgets
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.dispatch.circuits import Circuits, Terms
from llmkube.router.queue.turns import Turns
from llmkube.router.responses.shelf import OwnShelf, Shelf
from llmkube.router.responses.store import ResponseStore

MOST_PAUSE_SECONDS: Final = 300.0


@attrs.frozen(eq=False, kw_only=True)
class Shared:
    """What a router may have in common with other processes that answer at its port.

    Attributes:
        turns: The queues in front of engines.
        circuits: Which backends are left alone.
        budgets: Those that no server keeps.
        shelf: Responses that are kept.
        audit_lock: Descriptor of a file whose lock a process has while it writes to the audit log; None of one alone.
    """

    turns: Turns
    circuits: Circuits
    budgets: OwnBudgets
    shelf: Shelf
    audit_lock: int | None = None


def alone(
    config: RoutingConfig, budgets_folder: Path | None, utcnow: Callable[[], datetime], rng: random.Random
) -> Shared:
    """Return what a router has that shares nothing; its budgets are in a file of `budgets_folder`, or in memory."""
    file = budget_file_of(budgets_folder, config.name) if budgets_folder else None
    return Shared(
        turns=Turns(),
        circuits=Circuits(terms_of(config), rng),
        budgets=KeptBudgets(file, utcnow, rng),
        shelf=OwnShelf(ResponseStore()),
    )


def terms_of(config: RoutingConfig) -> Terms:
    """Return when circuits open by a config."""
    seconds = config.circuit_seconds
    return Terms(pauses=Backoff(base_seconds=seconds, cap_seconds=max(seconds, MOST_PAUSE_SECONDS)))
