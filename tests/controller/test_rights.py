"""The controller's requests and its declared rights are the same."""

from typing import Any

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import Hands, open_pods
from controller.podobjects import SETTINGS
from controller.reconcile.test_routers import apply_router
from k8s.api_calls import undeclared, unused
from llmkube.controller.informers import FRONT_DOOR_LABEL
from llmkube.controller.reconcile.models import FINALIZER
from llmkube.controller.render.labels import MANAGED_BY
from llmkube.controller.rights import PROGRAM
from llmkube.controller.writes.owned_kinds import INSTALL_POLL_SECONDS
from llmkube.k8s.builtins import ConfigMap, EndpointSlice, Namespace, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    HTTPRoute,
    Job,
    LeaderWorkerSet,
    NetworkPolicy,
    PodDisruptionBudget,
    PodMonitor,
    ServiceLevelObjective,
)

ROUTERS = (ConfigMap, NetworkPolicy)
CHILDREN = (
    Deployment, LeaderWorkerSet, Service, EndpointSlice, HorizontalPodAutoscaler, PodDisruptionBudget,
    PodMonitor, ServiceLevelObjective, HTTPRoute,
)  # fmt: skip


FRONT_DOOR = {
    "metadata": {"labels": {FRONT_DOOR_LABEL: "true"}},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.9.0.1"]}],
    "ports": [{"name": "http", "port": 8080}],
}


async def with_pods(hands: Hands) -> None:
    """A service in pods with all its objects, and its Models of two kinds; then a host serves it."""
    await hands.install(LeaderWorkerSet, PodMonitor, ServiceLevelObjective, HTTPRoute)
    await hands.create_model("other", source="pvc://weights/model.gguf")
    gateway = {"gateway": {"enabled": True, "gatewayRef": {"name": "edge"}}}
    limit = {"gpuCount": 8, "selector": {"matchLabels": {"team": "ai"}}}
    await hands.cluster.apply_object(GPUQuota, "team", {"spec": limit}, manager="admin")
    pool = {"members": [{"inferenceServiceRef": {"name": "none"}}]}
    await hands.cluster.apply_object(ModelPool, "pool", {"spec": pool}, manager="admin")
    await hands.cluster.apply_object(EndpointSlice, "x", FRONT_DOOR, namespace="llmkube-system")
    await hands.start()
    await take_labels_off(hands, Job)  # while it runs: a finished one is not queried
    await hands.bring_up(replicas=2, autoscaling={"maxReplicas": 3}, slo={"objective": "99"}, endpoint=gateway)
    await trio.sleep(INSTALL_POLL_SECONDS)
    hardware = {"accelerator": "cuda", "gpu": {"enabled": True, "count": 1}}
    await hands.create_model("large", source="org/large", format="safetensors", hardware=hardware)
    group = {"members": [{"node": "one"}, {"node": "two"}]}
    await hands.apply("large", modelRef="large", runtime="vllm", multiNode=group)
    await hands.client.patch(Model, Key("ml", "other"), {"metadata": {"finalizers": [FINALIZER]}})
    await hands.apply("lazy", activation={"mode": "OnRequest"})
    await take_labels_off(hands, *CHILDREN)
    await hands.create_model(hardware={"accelerator": "metal"})
    await hands.create_model("large", source="org/large", format="safetensors", hardware={"accelerator": "metal"})
    await trio.sleep(SETTLED)
    for name in ("chat", "large"):
        await hands.client.delete(InferenceService, Key("ml", name))
    for name in ("phi", "other", "large"):
        await hands.client.delete(Model, Key("ml", name))
    await trio.sleep(SETTLED)


async def take_labels_off(hands: Hands, *kinds: type[Any]) -> None:
    """Remove our label from all our objects of some kinds: they have to be requested by name."""
    bare = {"metadata": {"labels": {MANAGED_BY: None}}}
    for kind in kinds:
        for one in (await hands.client.list(kind, namespace="ml")).items:
            await hands.client.patch(kind, one.key, bare)
    await trio.sleep(SETTLED)


@pytest.mark.ci
async def test_the_controllers_requests_match_its_declared_rights(autojump_clock):
    """A day with hosts and pods, deaths, a lost network and a lost namespace uses every right, and no other."""
    async with open_pods(identity="one", workloads=attrs.evolve(SETTINGS, priority_class_prefix=None)) as hands:
        cluster = hands.cluster
        await with_pods(hands)
        await cluster.bring_up()
        await apply_router(cluster.client)
        await take_labels_off(hands, *ROUTERS)
        await cluster.client.delete(Deployment, Key("ml", "front-router-proxy"))  # then its owner is requested
        await trio.sleep(SETTLED)
        await trio.sleep(60)  # the host dies: a Lease is read once more
        await cluster.faults.cut()
        await trio.sleep(60)
        cluster.faults.down = False
        await cluster.renew()
        await cluster.report_service("Loaded", "Loaded")
        await cluster.client.delete(Namespace, Key("", "llmkube-system"))
        await trio.sleep(1200)
        for _ in range(2):  # the same event again raises a count
            await cluster.renew()
            await cluster.publish(ready=False)
            await trio.sleep(SETTLED)
            await cluster.publish()
            await trio.sleep(SETTLED)
        calls = set(cluster.faults.calls)
        assert undeclared(calls, PROGRAM) == set()
        assert unused(calls, PROGRAM) == set()
