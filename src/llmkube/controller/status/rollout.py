"""When running pods may be replaced: at once, once they are idle, or once they are old. Pure.

| why they are replaced | how long they may wait to be idle |
|---|---|
| an edit, `rolloutPolicy` is not there or has `force` | not at all |
| an edit, `waitForIdle` | `idleTimeoutSeconds`; 0 means 300 |
| `maxPodLifetimeSeconds` is over | `maxPodLifetimeIdleTimeoutSeconds`; unset means for ever |

Pods are replaced by a change of their template, never one by one: the Deployment knows how to keep answering meanwhile.
"""

import datetime
from collections.abc import Sequence

from llmkube.controller.render.drain import IDLE_TIMEOUT_SECONDS
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.k8s.workloads import Pod, Workload


def waits_for_idle(service: InferenceService) -> bool:
    """Whether an edit waits until no request is in flight."""
    policy = service.spec.rollout_policy
    return policy is not None and bool(policy.wait_for_idle) and not policy.force


def edit_patience_seconds(service: InferenceService) -> float:
    """Return how long an edit waits for replicas to be idle; 0 when it does not."""
    policy = service.spec.rollout_policy
    if policy is None or not waits_for_idle(service):
        return 0.0
    return float(policy.idle_timeout_seconds or IDLE_TIMEOUT_SECONDS)


def aged_in_seconds(
    service: InferenceService, live: Workload, pods: Sequence[Pod], now: datetime.datetime
) -> float | None:
    """Return how long until the oldest pod of a service is to be replaced for its age.

    None when none ever is, or while pods are being replaced anyhow: their age is looked at when all of them answer.
    """
    lifetime, status = service.spec.max_pod_lifetime_seconds, live.status
    settled = (
        status.observed_generation >= live.metadata.generation
        and 0 < live.spec.replicas == status.replicas == status.updated_replicas == status.ready_replicas
    )
    born = [pod.metadata.creation_timestamp for pod in pods if not pod.metadata.deletion_timestamp]
    known = [moment for moment in map(parse_timestamp, born) if moment is not None]
    if lifetime is None or not settled or not known:
        return None
    return max(lifetime - (now - min(known)).total_seconds(), 0.0)
