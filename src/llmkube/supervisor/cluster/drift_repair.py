"""What another client has written over this agent's fields of a status is written again within seconds.

An agent that was cut off may say what it knew on its return, before it reads that another host reports now; a script
may write nonsense. The watches show it. Two that insist are kept apart by a pause: neither writes more often than that.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.workqueue import WorkQueue, run_workers
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.cluster.status import Slot

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 1.0
"""After a change, until it is looked at: the watch may bring our older words while newer ones are on their way."""

PAUSE_SECONDS: Final = 30.0
"""The least time between two corrections of the same words."""


def has_drifted(applied: Mapping[str, Any], live: Iterable[Condition]) -> bool:
    """Whether conditions that were said do not stand like that any more; those of others do not count. Pure.

    Args:
        applied: The status as it was written.
        live: The object's conditions.
    """
    by_type = {one.type: one for one in live}
    return any(_differs(condition, by_type.get(condition["type"])) for condition in applied["conditions"])


def _differs(applied: Mapping[str, Any], live: Condition | None) -> bool:
    return live is None or (
        applied["status"],
        applied["reason"],
        applied["message"],
        applied["lastTransitionTime"],
        applied.get("observedGeneration"),
    ) != (live.status, live.reason, live.message, live.last_transition_time, live.observed_generation)


@attrs.define(eq=False)
class DriftRepair:
    """Compare what stands with what this agent has said, whenever it has changed.

    Attributes:
        applier: What was said, and the way to say it again.
        conditions: The conditions of the object of a slot as last seen; None when there is no such object.
        rng: Of the queue.
    """

    applier: Applier
    conditions: Callable[[Slot], Iterable[Condition] | None]
    rng: random.Random
    _queue: WorkQueue[Slot] = attrs.field(init=False)
    _corrected_at: dict[Slot, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng)

    def check_nowait(self, slot: Slot) -> None:
        """An object has changed: see soon whether our words still stand."""
        if self.applier.has(slot):
            self._queue.add_after(slot, CHECK_SECONDS)

    async def run(self) -> Never:
        """Never return: look, and say again what does not stand any more."""
        await run_workers(self._queue, self._check, workers=1)

    async def _check(self, slot: Slot) -> float | None:
        await trio.lowlevel.checkpoint()
        applied, live = self.applier.applied(slot), self.conditions(slot)
        if applied is None or live is None or not has_drifted(applied["status"], live):
            return None
        now = trio.current_time()
        wait_seconds = self._corrected_at.get(slot, now - PAUSE_SECONDS) + PAUSE_SECONDS - now
        if wait_seconds > 0:
            return wait_seconds
        self._corrected_at = {one: at for one, at in self._corrected_at.items() if now < at + PAUSE_SECONDS}
        self._corrected_at[slot] = now
        log.info("another client has overwritten the status; writing it again", object=str(slot))
        self.applier.reapply_nowait(slot)
        return None
