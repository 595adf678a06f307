"""GPUQuotas: services beyond them wait with numbers, get freed GPUs in order, and running ones are never stopped."""

from typing import Any

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import Hands, open_pods
from llmkube.k8s.builtins import Lease, Namespace
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.sharing import GPUQuota
from llmkube.k8s.leases.wanted_services import DURATION_SECONDS, GATEWAY_LABEL, LEASE_NAME, RECORD_PREFIX, encode_record
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import QUEUE_LABEL
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler


async def set_quota(hands: Hands, name: str = "team", **spec: Any) -> None:
    spec = {"namespaceRef": "ml", **spec} if "selector" not in spec else spec
    await hands.cluster.apply_object(GPUQuota, name, {"spec": spec}, manager="admin")
    await trio.sleep(SETTLED)


async def quota(hands: Hands, name: str = "team") -> GPUQuota:
    await trio.sleep(SETTLED)
    return await hands.client.get(GPUQuota, Key("ml", name))


async def message(hands: Hands, name: str) -> str:
    [available] = [one for one in (await hands.cluster.service(name)).status.conditions if one.type == "Available"]
    return available.message


async def model(hands: Hands, memory: str | None = None) -> None:
    gpu = {"gpu": {"memory": memory}} if memory else {}
    await hands.create_model(hardware={"accelerator": "cuda", **gpu})
    await hands.create_service("cpu")  # the Model is fetched once it has a user
    await trio.sleep(SETTLED)
    await hands.finish_job()
    await trio.sleep(SETTLED)


async def test_services_beyond_the_quota_wait_and_start_in_order(autojump_clock):
    """Two of four GPUs are used: a service of 3 waits, and what comes behind it waits too, until GPUs are freed."""
    async with open_pods() as hands:
        await model(hands)
        await set_quota(hands, gpuCount=4)
        await hands.apply("running", resources={"gpu": 2})
        await hands.apply("large", resources={"gpu": 3})
        await hands.apply("small", resources={"gpu": 1})
        await hands.apply("urgent", resources={"gpu": 1}, priority="high")  # a GPU is free, and it is first
        assert await hands.where("large") == "Pending/QuotaExceeded"
        assert await message(hands, "large") == "GPUQuota ml/team: asks for 3 GPUs; others use 3 GPUs of 4 GPUs"
        assert (await message(hands, "small")).endswith("others use 3 GPUs of 4 GPUs; 1 before it")
        assert await hands.names(Deployment) == ["cpu", "running", "urgent"]
        status = (await quota(hands)).status
        assert (status.used_gpu_count, status.admission_denials) == (3, 2)
        assert status.waiting == ("ml/large", "ml/small")
        assert status.last_denial
        await hands.apply("running", resources={"gpu": 2}, replicas=0)
        await trio.sleep(SETTLED)
        assert await hands.names(Deployment) == ["cpu", "large", "running", "urgent"]
        assert (await quota(hands)).status.waiting == ("ml/small",)
        await hands.client.delete(InferenceService, Key("ml", "urgent"))
        assert (await quota(hands)).status.used_gpu_count == 4
        assert await hands.where("small") == "Creating/Creating"
        assert (await quota(hands)).status.waiting == ()
        before = len(hands.cluster.writes)
        await trio.sleep(600)
        assert hands.cluster.writes[before:] == []


async def test_a_quota_that_shrinks_stops_nothing_and_lets_nothing_grow(autojump_clock):
    """The replicas that run stay; more of them, more GPUs and a larger autoscaler wait; fewer are always possible."""
    async with open_pods() as hands:
        await model(hands)
        await hands.apply("one", resources={"gpu": 1}, replicas=2)
        await hands.apply("two", resources={"gpu": 1}, autoscaling={"maxReplicas": 2})
        for name in ("one", "two"):
            await hands.roll_out(name)
        await set_quota(hands, gpuCount=1)
        assert (await quota(hands)).status.used_gpu_count == 4
        assert [await hands.where(name) for name in ("one", "two")] == ["Ready/InferenceReady"] * 2
        await hands.apply("one", resources={"gpu": 1}, replicas=3)
        await hands.apply("two", resources={"gpu": 1}, autoscaling={"maxReplicas": 3})
        assert [await hands.where(name) for name in ("one", "two")] == ["Progressing/QuotaRefused"] * 2
        assert (await hands.json(Deployment, "one"))["spec"]["replicas"] == 2
        assert (await hands.json(HorizontalPodAutoscaler, "two"))["spec"]["maxReplicas"] == 2
        await hands.apply("one", resources={"gpu": 2}, replicas=1)  # two GPUs as before, but in one pod
        assert (await hands.json(Deployment, "one"))["spec"]["replicas"] == 1
        assert (await quota(hands)).status.used_gpu_count == 4
        await hands.client.delete(GPUQuota, Key("ml", "team"))
        await trio.sleep(SETTLED)
        assert (await hands.json(HorizontalPodAutoscaler, "two"))["spec"]["maxReplicas"] == 3


@pytest.mark.parametrize("killed", [False, True])
async def test_a_service_that_no_request_needs_any_more_asks_for_nothing(killed, autojump_clock):
    """Its front door takes it off its record, or is killed, and the record expires: the next service starts."""
    async with open_pods() as hands:
        await model(hands)
        await set_quota(hands, gpuCount=2)
        await hands.apply("running", resources={"gpu": 1})
        await hands.apply("left", resources={"gpu": 2}, activation={"mode": "OnRequest"})
        for number, wanted in enumerate([["left"], ["left"] if killed else []]):
            record = {f"{RECORD_PREFIX}door": encode_record("door", 0 if killed else number, wanted)}
            metadata = {"labels": {GATEWAY_LABEL: "true"}, "annotations": record}
            await hands.cluster.apply_object(Lease, LEASE_NAME, {"metadata": metadata, "spec": {}}, manager="door")
            await trio.sleep(SETTLED)
            if not number:
                assert await hands.where("left") == "Pending/QuotaExceeded"
                await hands.apply("next", resources={"gpu": 1})
                assert await hands.where("next") == "Pending/QuotaExceeded"
        await trio.sleep(DURATION_SECONDS if killed else 0)
        assert await hands.where("left") == "Idle/Idle"
        assert await hands.where("next") == "Creating/Creating"
        assert (await quota(hands)).status.waiting == ()


async def test_memory_is_counted_like_gpus_and_has_to_be_known(autojump_clock):
    """Every replica that the autoscaler may add counts its memory; an edit of the Model alone is seen."""
    async with open_pods() as hands:
        await model(hands)
        await set_quota(hands, gpuCount=8, vramBytes=100 * 2**30)
        await hands.apply("one", resources={"gpu": 1}, autoscaling={"maxReplicas": 2})
        assert await hands.where("one") == "Failed/QuotaRefused"
        assert "hardware.gpu.memory" in await message(hands, "one")
        await hands.create_model(hardware={"accelerator": "cuda", "gpu": {"memory": "40Gi"}})
        assert await hands.where("one") == "Creating/Creating"
        status = (await quota(hands)).status
        assert (status.used_gpu_count, status.used_vram_bytes) == (2, 80 * 2**30)
        await hands.apply("two", resources={"gpu": 1})
        assert await hands.where("two") == "Pending/QuotaExceeded"
        await set_quota(hands, "other", gpuCount=8, minPriority="high")
        assert [await hands.where(name) for name in ("one", "two")] == ["Creating/Creating", "Failed/QuotaRefused"]
        assert (await quota(hands)).status.waiting == ()


async def test_a_selector_follows_the_labels_of_namespaces(autojump_clock):
    """A label added to a namespace puts it under the quota at once; one that is removed frees its services."""
    async with open_pods() as hands:
        await model(hands)
        expression = {"key": "team", "operator": "In", "values": ["ai"]}
        await set_quota(hands, gpuCount=0, selector={"matchExpressions": [expression]})
        await hands.apply("one", resources={"gpu": 1})
        assert await hands.where("one") == "Creating/Creating"
        await hands.client.patch(Namespace, Key("", "ml"), {"metadata": {"labels": {"team": "ai"}}})
        await hands.apply("two", resources={"gpu": 1})
        assert await hands.where("two") == "Failed/QuotaRefused"
        assert (await quota(hands)).status.used_gpu_count == 1
        await hands.client.patch(Namespace, Key("", "ml"), {"metadata": {"labels": {"team": "other"}}})
        assert await hands.where("two") == "Creating/Creating"


async def test_kueue_admits_services_with_a_queue(autojump_clock):
    """The label is on Deployment and pods, the quota does not count them, and gated pods are reported as waiting."""
    async with open_pods() as hands:
        await model(hands)
        await set_quota(hands, gpuCount=0)
        await hands.apply("queued", resources={"gpu": 1})
        assert await hands.where("queued") == "Failed/QuotaRefused"
        await hands.client.patch(InferenceService, Key("ml", "queued"), {"metadata": {"labels": {QUEUE_LABEL: "gpus"}}})
        assert await hands.where("queued") == "Creating/Creating"
        written = await hands.json(Deployment, "queued")
        template = written["spec"]["template"]
        assert written["metadata"]["labels"][QUEUE_LABEL] == template["metadata"]["labels"][QUEUE_LABEL] == "gpus"
        pod = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}], **template["spec"]}
        await hands.make_pod("queued-1", template["metadata"]["labels"], {"phase": "Pending"}, spec=pod)
        assert await hands.where("queued") == "Creating/WaitingForQuota"
        assert (await hands.cluster.service("queued")).status.scheduling_status == "WaitingForQuota"
        added = {"metadata": {"annotations": {"kueue.x-k8s.io/pod-suspending-parent": "deployment"}}}
        change = {"spec": {"template": added}}  # by Kueue's webhook
        await hands.client.patch(Deployment, Key("ml", "queued"), change, field_manager="kueue")
        await hands.apply("queued", resources={"gpu": 1}, replicas=2)
        edited = (await hands.json(Deployment, "queued"))["spec"]
        assert edited["replicas"] == 2
        assert edited["template"]["metadata"]["annotations"]["kueue.x-k8s.io/pod-suspending-parent"] == "deployment"
