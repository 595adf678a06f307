"""A stranger who takes a name between the controller's look and its write keeps what he has made, of every kind."""

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podkinds import install
from llmkube.controller.informers import PERMISSIONS
from llmkube.controller.optional_kinds import INSTALL_POLL_SECONDS
from llmkube.controller.writes import owned_objects
from llmkube.controller.writes.owned_objects import NAME_TAKEN_RETRY_SECONDS
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, HTTPRoute, Job, PodMonitor, ServiceLevelObjective

CHAT = Key("ml", "chat")
MADE = [one.kind for one in PERMISSIONS if "create" in one.verbs]
EVERYTHING = {
    "replicas": 2,
    "autoscaling": {"maxReplicas": 3},
    "slo": {"objective": "99"},
    "endpoint": {"gateway": {"enabled": True, "gatewayRef": {"name": "edge"}}},
}


async def bring_up_with_latecomer(hands, kind):
    """Bring a service up while a stranger races the controller for one object; return that, before and after."""
    await install(hands, PodMonitor, ServiceLevelObjective, HTTPRoute)
    await trio.sleep(INSTALL_POLL_SECONDS)
    faults = hands.cluster.faults
    faults.latecomers.add(kind.RESOURCE.plural)
    await hands.create_model()
    await hands.create_service(**EVERYTHING)
    await trio.sleep(SETTLED)
    if kind is not Job:
        await hands.finish_job()
        await trio.sleep(SETTLED)
    [before] = faults.strangers
    key = Key.of(before)
    return key, before, await hands.client.get_json(kind.RESOURCE.path("ml", key.name))


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.RESOURCE.kind)
async def test_a_latecomer_keeps_his_object(kind, autojump_clock):
    """His object stays as he made it and the name is told to be taken; once it is gone, ours takes its place."""
    async with open_pods() as hands:
        key, before, after = await bring_up_with_latecomer(hands, kind)
        assert after == before
        where = hands.model_where if kind is Job else hands.where
        assert await where() == "Failed/NameTaken"
        await hands.client.delete(kind, key)
        await trio.sleep(NAME_TAKEN_RETRY_SECONDS + SETTLED)
        assert (await hands.json(kind, key.name))["metadata"]["ownerReferences"]
        assert await where() != "Failed/NameTaken"


async def test_what_a_predecessor_has_left_is_waited_for(autojump_clock):
    """A service that was deleted and made again at once is Pending, not Failed, until the collector is done."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.client.patch(Deployment, CHAT, {"metadata": {"finalizers": ["example.org/slow"]}})
        await hands.client.delete(InferenceService, CHAT, propagation="Background")
        await hands.create_service()
        assert await hands.where() == "Pending/NameTaken"
        conditions = (await hands.cluster.service()).status.conditions
        assert {one.type: one.status for one in conditions}["Accepted"] == "True"
        await hands.client.patch(Deployment, CHAT, {"metadata": {"finalizers": None}})
        assert await hands.where() == "Creating/Creating"


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.RESOURCE.kind)
async def test_without_a_version_the_latecomer_loses(kind, autojump_clock, monkeypatch):
    """A controller that makes objects by a plain apply takes his over: the race is one, and the test above notices."""
    monkeypatch.setattr(owned_objects, "NO_VERSION", "")
    async with open_pods() as hands:
        _, before, after = await bring_up_with_latecomer(hands, kind)
        assert after != before
