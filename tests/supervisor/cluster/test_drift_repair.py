"""Detection of status drift, and the rate of its repair."""

import random

import pytest
import trio

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.applier import CHECK_SECONDS, PAUSE_SECONDS, DriftRepair, has_drifted
from llmkube.supervisor.cluster.status import Slot

EXPECTED = [CHECK_SECONDS, CHECK_SECONDS + PAUSE_SECONDS]
SLOT = Slot(InferenceService, Key("ns", "chat"), "status")
THEN = "2026-01-01T00:00:00Z"
SAID = {"type": "Loaded", "status": "True", "reason": "Ready", "message": "ready", "lastTransitionTime": THEN}


def live(**changes):
    facts = {"type": "Loaded", "status": "True", "reason": "Ready", "message": "ready", "last_transition_time": THEN}
    return Condition(**(facts | changes))


@pytest.mark.parametrize(
    ("conditions", "drifted"),
    [
        ([live()], False),
        ([live(), live(type="Other", status="False")], False),  # another writer's own
        ([], True),
        ([live(status="False")], True),
        ([live(reason="Other")], True),
        ([live(message="other")], True),
        ([live(last_transition_time="2026-01-02T00:00:00Z")], True),
        ([live(observed_generation=2)], True),
    ],
)
def test_drift_of_a_status(conditions, drifted):
    """Each part of an applied condition is compared; conditions of other writers are not."""
    assert has_drifted({"conditions": [SAID]}, conditions) is drifted
    assert has_drifted({"conditions": [SAID, SAID | {"type": "Other"}]}, conditions)


class Applied:
    """An applier that has applied one status, and counts requests to reapply it."""

    def __init__(self):
        self.again = []

    def has(self, slot):
        return slot == SLOT

    def applied(self, slot):
        return {"status": {"conditions": [SAID]}}

    def reapply_nowait(self, slot):
        self.again.append(trio.current_time())


async def test_drift_is_repaired_soon_and_not_more_often_than_the_pause(autojump_clock):
    """Drift is repaired after a second, and then at most once in half a minute."""
    applier, start = Applied(), trio.current_time()
    repair = DriftRepair(applier, lambda slot: [], random.Random(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repair.run)
        for _ in range(60):
            repair.check_nowait(SLOT)
            repair.check_nowait(Slot(InferenceService, Key("ns", "other"), "status"))
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [at - start for at in applier.again] == pytest.approx(
        [CHECK_SECONDS, CHECK_SECONDS + PAUSE_SECONDS], abs=1.5
    )
