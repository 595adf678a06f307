"""A model over several nodes is a LeaderWorkerSet if the cluster has the kind, and refused by name otherwise."""

import trio
from prometheus_client import CollectorRegistry

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.writes.owned_kinds import INSTALL_POLL_SECONDS
from llmkube.k8s.builtins import Service
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, LeaderWorkerSet

PAIR = {"members": [{"node": "spark-1"}, {"node": "spark-2"}]}
KEY = Key("ml", "chat-group")


async def create(hands, **spec):
    hardware = {"accelerator": "cuda", "gpu": {"enabled": True, "count": 1}}
    await hands.create_model(source="org/big", format="safetensors", hardware=hardware)
    await hands.apply(runtime="vllm", multiNode=PAIR, **spec)


async def answer(hands, ready):
    status = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": ready,
              "conditions": [{"type": "Progressing", "status": "False", "reason": "x", "message": "",
                              "lastTransitionTime": "2025-06-01T00:00:00Z"}]}  # fmt: skip
    await hands.client.patch(LeaderWorkerSet, KEY, {"status": status}, subresource="status", field_manager="lws")
    await trio.sleep(SETTLED)


async def test_without_the_kind_it_is_refused_by_name_until_it_comes(autojump_clock):
    """No pod is created, the condition names what to install, and the service starts afterwards."""
    async with open_pods() as hands:
        await create(hands)
        assert await hands.where() == "Failed/Invalid"
        [accepted] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Accepted"]
        assert "spec.multiNode needs LeaderWorkerSets" in accepted.message
        assert "lws.sigs.k8s.io" in accepted.message
        assert await hands.names(Deployment) == []
        await hands.install(LeaderWorkerSet)
        await trio.sleep(INSTALL_POLL_SECONDS)
        assert await hands.where() == "Creating/Creating"


async def test_it_is_served_counted_scaled_and_pruned(autojump_clock):
    """Groups count as replicas; suspended it has none; without the field a Deployment takes its place."""
    async with open_pods() as hands:
        await hands.install(LeaderWorkerSet)
        await trio.sleep(INSTALL_POLL_SECONDS)
        await create(hands)
        await trio.sleep(INSTALL_POLL_SECONDS)
        assert await hands.names(LeaderWorkerSet) == ["chat-group"]
        assert await hands.names(Deployment) == []
        await answer(hands, 1)
        assert await hands.where() == "Ready/InferenceReady"
        status = (await hands.cluster.service()).status
        assert (status.ready_replicas, status.desired_replicas) == (1, 1)
        selector = (await hands.client.get(Service, Key("ml", "chat"))).spec.selector
        assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
        before = len(hands.cluster.writes)
        await trio.sleep(600)
        assert hands.cluster.writes[before:] == []
        await hands.apply(runtime="vllm", multiNode=PAIR, suspend=True)
        assert (await hands.client.get(LeaderWorkerSet, KEY)).spec.replicas == 0
        await hands.apply(runtime="vllm")
        assert await hands.names(LeaderWorkerSet) == []
        assert await hands.names(Deployment) == ["chat"]


async def test_a_successor_reports_nothing_before_discovery(autojump_clock):
    """A Ready service is not called Failed while a new controller discovers the kinds of the cluster."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        cluster = hands.cluster
        await hands.install(LeaderWorkerSet)
        await trio.sleep(INSTALL_POLL_SECONDS)
        await create(hands)
        await answer(hands, 1)
        assert await hands.where() == "Ready/InferenceReady"
        cluster.controller_scope.cancel()
        cluster.faults.delays["leaderworkersets"] = 5.0
        cluster.controller_scope, cluster.registry = trio.CancelScope(), CollectorRegistry()
        nursery.start_soon(cluster.run_controller, ControllerSettings(workloads=SETTINGS))
        for _ in range(200):
            await trio.sleep(0.1)
            assert await cluster.where_now() == "Ready/InferenceReady"
        nursery.cancel_scope.cancel()
