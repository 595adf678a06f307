"""Whatever breaks, and wherever, the same objects come of it: a crash at every change, a cut at every event."""

import trio

from controller.podcluster import open_pods
from controller.podobjects import SETTINGS
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, Job, PersistentVolumeClaim, PodDisruptionBudget

KINDS = (
    Model, InferenceService, PersistentVolumeClaim, Job, Deployment, Service, HorizontalPodAutoscaler,
    PodDisruptionBudget,
)  # fmt: skip
VOLATILE = {
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "lastUpdated", "generation",
    "clusterIP", "clusterIPs", "nodePort",
}  # fmt: skip
LONG_ENOUGH = 90.0
"""Seconds of virtual time: a watch that breaks is opened again within a few, a failed reconcile is tried again."""

QUIET = 1800.0


def lasting(value):
    """What is left of an object without what differs from run to run; digests cover uids."""
    if isinstance(value, dict):
        kept = {k: lasting(v) for k, v in value.items() if k not in VOLATILE and k != "inference.llmkube.dev/applied"}
        return {k: v for k, v in kept.items() if k != "observedGeneration"}
    return [lasting(one) for one in value] if isinstance(value, list) else value


async def play(*, quiet_seconds=60.0, **faults):
    """Serve, edit and take away with these faults; return the objects at the end, changes and events on the way."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        network = hands.cluster.faults
        for name, value in faults.items():
            setattr(network, name, value)
        settings = ControllerSettings(host_accelerators=frozenset({"metal"}), workloads=SETTINGS)
        nursery.start_soon(hands.cluster.run_again, settings)
        kubernetes = await nursery.start(run_in_scope, hands.run_kubernetes)
        await hands.create_model()
        await hands.create_model("repo", source="org/repo", format="safetensors")
        await hands.create_service("chat", replicas=2, podLabels={"a": "b"})
        await hands.create_service("scaled", autoscaling={"maxReplicas": 3}, disruption={"protectAlways": True})
        await hands.create_service("vllm", modelRef="repo", runtime="vllm", resources={"gpu": 1})
        await trio.sleep(LONG_ENOUGH)
        await hands.create_model(source="hf://org/repo/other.gguf")
        await hands.create_service("chat", replicas=1)
        await hands.create_service("scaled", suspend=True)
        await trio.sleep(LONG_ENOUGH)
        kubernetes.cancel()
        changes, events = network.changes, network.events
        await trio.sleep(quiet_seconds)
        assert network.changes == changes
        objects = [encode(one) for kind in KINDS for one in (await hands.client.list(kind, namespace="ml")).items]
        nursery.cancel_scope.cancel()
    return [lasting(one) for one in objects], changes, events


async def run_in_scope(run, *, task_status):
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await run()


async def test_a_crash_at_any_change_leaves_no_trace(autojump_clock):
    """A controller may die before any of its writes, or after the last; its successor ends where it would have ended.

    To have died right after a write is to have died before the next one.
    """
    expected, changes, _ = await play(quiet_seconds=QUIET)
    assert [one["status"]["phase"] for one in expected if one["kind"] == "InferenceService"] == [
        "Ready", "Suspended", "Ready",
    ]  # fmt: skip
    assert changes >= 20
    for at in range(1, changes + 1):
        objects, _, _ = await play(crash_at=at, crash_after=at == changes)
        assert objects == expected, f"crash at change {at}"


async def test_a_watch_that_breaks_at_any_event_loses_nothing(autojump_clock):
    """A connection that breaks instead of bringing an event is opened again, and the event comes."""
    expected, _, events = await play()
    assert events >= 20
    for at in range(1, events + 1, 5):
        objects, _, _ = await play(break_at=at)
        assert objects == expected, f"broken at event {at}"
