"""A service with a volume for its own weights gets it once, uses no stranger's, and deletes it with itself."""

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.render.model_sources import predecessors_key
from llmkube.controller.render.storage import CACHE_CLAIM, service_claim, service_claim_name
from llmkube.controller.writes.owned_objects import REFUSED_RETRY_SECONDS
from llmkube.k8s.codec import decode
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Job, PersistentVolumeClaim

PER_SERVICE = attrs.evolve(SETTINGS, cache_per_service=True, cache_size="7Gi", cache_storage_class="local-path")


def stranger(name):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return decode(PersistentVolumeClaim, {"metadata": {"name": name, "namespace": "ml"}, "spec": spec})


async def test_each_service_has_a_claim_of_its_own_and_no_job_fetches(autojump_clock):
    """Two services of one Model have two claims, each deleted with its service; the namespace has none."""
    async with open_pods(workloads=PER_SERVICE) as hands:
        await hands.create_model()
        await hands.create_service()
        await hands.apply("other")
        assert await hands.names(PersistentVolumeClaim) == ["chat-model-cache", "other-model-cache"]
        assert await hands.names(Job) == []
        assert await hands.model_where() == "Ready/WorkloadResolved"
        claim = await hands.json(PersistentVolumeClaim, "chat-model-cache")
        [owner] = claim["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("InferenceService", "chat", True)
        assert claim["spec"]["resources"]["requests"] == {"storage": "7Gi"}
        assert claim["spec"]["storageClassName"] == "local-path"
        pod = (await hands.json(Deployment))["spec"]["template"]["spec"]
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "chat-model-cache"}} in pod["volumes"]
        [fetch] = pod["initContainers"]
        adopted = f"/models/{predecessors_key(cluster_model().spec)}"
        assert fetch["args"][fetch["args"].index("--adopt") + 1] == adopted
        [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "models"]
        assert mount["readOnly"]
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"


async def test_a_claim_is_made_once_and_never_changed(autojump_clock):
    """Other values of the chart and an edit leave a claim unchanged; a deleted one is created again."""
    async with open_pods(workloads=PER_SERVICE) as hands:
        await hands.start()
        grown = {"spec": {"resources": {"requests": {"storage": "70Gi"}}}}
        key = Key("ml", "chat-model-cache")
        await hands.client.patch(PersistentVolumeClaim, key, grown, field_manager="admin")
        await hands.create_service(contextSize=2048)
        await trio.sleep(REFUSED_RETRY_SECONDS)
        claim = await hands.json(PersistentVolumeClaim, key.name)
        assert claim["spec"]["resources"]["requests"] == {"storage": "70Gi"}
        await hands.client.delete(PersistentVolumeClaim, key)
        await trio.sleep(SETTLED)
        assert await hands.names(PersistentVolumeClaim) == ["chat-model-cache"]


@pytest.mark.parametrize("name", ["chat", "llmkube"])
async def test_a_claim_of_someone_else_is_not_used(autojump_clock, name):
    """It would be deleted with another object, or not at all; the service reports it until it is deleted."""
    claim = service_claim_name(name)
    assert (claim == CACHE_CLAIM) is (name == "llmkube")
    async with open_pods(workloads=PER_SERVICE) as hands:
        await hands.client.create(stranger(claim), field_manager="user")
        await hands.create_model()
        await hands.create_service(name)
        assert await hands.where(name) == "Failed/NameTaken"
        conditions = (await hands.cluster.service(name)).status.conditions
        [reported] = [one.message for one in conditions if one.type == "Degraded"]
        assert claim in reported
        assert "spec.modelCache.claimName" in reported
        assert not await hands.exists(Deployment, name)
        await hands.client.delete(PersistentVolumeClaim, Key("ml", claim))
        await trio.sleep(REFUSED_RETRY_SECONDS)
        assert await hands.where(name) == "Creating/Creating"


@pytest.mark.parametrize(
    ("model", "service"),
    [
        ({}, {"modelCache": {"claimName": "mine"}}),
        ({}, {"modelCache": {"persistence": "Ephemeral"}}),
        ({"source": "pvc://weights/m.gguf"}, {}),
        ({"source": "org/repo", "format": "safetensors"}, {"runtime": "vllm"}),
    ],
)
async def test_a_service_with_weights_elsewhere_has_none(autojump_clock, model, service):
    """The service's own claim, a mount, and an engine that fetches need no claim; no field is reported as ignored."""
    async with open_pods(workloads=PER_SERVICE) as hands:
        if "source" in model:
            await hands.client.create(stranger("weights"), field_manager="user")
            await hands.bind("weights")
        await hands.create_model(**model)
        await hands.apply(**service)
        assert "chat-model-cache" not in await hands.names(PersistentVolumeClaim)
        assert await hands.exists(Deployment)
        reported = (await hands.cluster.service()).status.conditions
        assert all("modelCache" not in one.message for one in reported if one.type == "SpecHonoured")


async def test_prefetching_into_an_unused_volume_is_named(autojump_clock):
    """`prefetch` fetches nothing, and both the Model and its service report it."""
    async with open_pods(workloads=PER_SERVICE) as hands:
        await hands.create_model(prefetch=True)
        await hands.apply()
        assert await hands.names(Job) == []
        [available] = [one for one in (await hands.cluster.model()).status.conditions if one.type == "Available"]
        assert "spec.prefetch has no effect" in available.message
        [reported] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert "Model.spec.prefetch" in reported.message


def test_two_long_names_have_two_claims():
    """A name that is too long for the suffix is shortened with a digest; the claim's name fits."""
    one, other = ("a" * 252 + end for end in "bc")
    assert service_claim_name("chat") == "chat-model-cache"
    names = {service_claim_name(one), service_claim_name(other)}
    assert len(names) == 2
    assert {len(name) for name in names} == {253}
    assert service_claim(pod_service(one), PER_SERVICE)["metadata"]["name"] in names
