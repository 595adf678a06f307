"""How long an edit waits, and when a pod is old, follows from the spec and from what is running."""

import pytest

from controller.objects import NOW
from controller.podobjects import deployment_of, pod, pod_service
from llmkube.controller.reconcile.rollout_gate import aged_in_seconds, edit_patience_seconds


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (None, 0),
        ({}, 0),
        ({"waitForIdle": True}, 300),
        ({"waitForIdle": True, "idleTimeoutSeconds": 20}, 20),
        ({"waitForIdle": True, "idleTimeoutSeconds": 0}, 300),
        ({"waitForIdle": True, "force": True}, 0),
    ],
)
def test_an_edit_waits_as_long_as_its_policy_says(policy, seconds):
    """Without a policy, and with force, an edit waits for nobody."""
    spec = {} if policy is None else {"rolloutPolicy": policy}
    assert edit_patience_seconds(pod_service(**spec)) == seconds


@pytest.mark.parametrize(
    ("live", "pods", "seconds"),
    [
        (deployment_of(1, ready=1), [pod()], 3600),
        (deployment_of(1, ready=1), [pod(), pod(name="chat-2", deleted=True)], 3600),
        (deployment_of(1, ready=0), [pod()], None),
        (deployment_of(2, ready=2, updated=1), [pod()], None),
        (deployment_of(1, ready=1, observed=0), [pod()], None),
        (deployment_of(1, ready=1), [], None),
    ],
)
def test_age_counts_while_all_pods_answer(live, pods, seconds):
    """An hour-old pod that may get two hours old has one more; while pods change, nobody's age counts."""
    assert aged_in_seconds(pod_service(maxPodLifetimeSeconds=7200), live, pods, NOW) == seconds
    assert aged_in_seconds(pod_service(), live, pods, NOW) is None
    if seconds:
        assert aged_in_seconds(pod_service(maxPodLifetimeSeconds=60), live, pods, NOW) == 0


async def deferred(hands) -> str:
    conditions = (await hands.cluster.service()).status.conditions
    return next((one.status for one in conditions if one.type == "RolloutDeferred"), "")
