"""Restore this agent's fields of a status within seconds after another client has overwritten them.

An agent that was disconnected may write an old status before it reads that another host now reports; a script may write
anything. The watches show such writes. If two writers keep correcting each other, a pause limits how often each writes.
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
"""Delay of a check after a change: the watch may deliver an older status of ours while a newer one is being written."""

PAUSE_SECONDS: Final = 30.0
"""Minimum time between two corrections of the same status."""


def has_drifted(applied: Mapping[str, Any], live: Iterable[Condition]) -> bool:
    """Whether the object's conditions differ from those that were applied; conditions of others are ignored. Pure.

    Args:
        applied: The status that was applied.
        live: The object's current conditions.
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
    """Compares the status of each changed object with what this agent applied, and applies it again if it differs.

    Attributes:
        applier: Applies the status.
        conditions: Returns the last known conditions of the object of a slot; None if there is no such object.
        rng: Random source of the queue.
    """

    applier: Applier
    conditions: Callable[[Slot], Iterable[Condition] | None]
    rng: random.Random
    _queue: WorkQueue[Slot] = attrs.field(init=False)
    _corrected_at: dict[Slot, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng)

    def check_nowait(self, slot: Slot) -> None:
        """Schedule a check of a changed object, if this agent writes to it."""
        if self.applier.has(slot):
            self._queue.add_after(slot, CHECK_SECONDS)

    async def run(self) -> Never:
        """Check objects, and apply their status again if it has drifted; never return."""
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
        log.info("status overwritten by another client; applying it again", object=str(slot))
        self.applier.reapply_nowait(slot)
        return None
