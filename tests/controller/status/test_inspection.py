"""The header of a mounted file is read once it is served, and delays nothing."""

import json

import pytest
import trio

from controller.cluster import SETTLED
from controller.objects import NOW
from controller.podcluster import KUBE, open_pods
from controller.podobjects import cluster_model, fetch_pod, job_of, unscheduled
from llmkube.controller.render.model_sources import cache_key, job_name
from llmkube.controller.status.job_result import JobFacts
from llmkube.controller.status.model_status import derive_supplied_status
from llmkube.controller.status.supply import Supply
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Job, PersistentVolumeClaim

SOURCE = "pvc://weights/a/b.gguf"
TOLD = json.dumps(
    {
        "path": "b.gguf",
        "sizeBytes": 4831838208,
        "files": ["b.gguf"],
        "gguf": {"architecture": "llama", "quantization": "Q4_K_M", "contextLength": 2048},
    }
)
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def claim(uid="c-1"):
    tag = {"name": "weights", "namespace": "ml", "uid": uid, "creationTimestamp": "2025-06-01T10:00:00Z"}
    return decode(PersistentVolumeClaim, {"metadata": tag, "status": {"phase": "Bound"}})


def status_of(model, seen, by="claim"):
    return derive_supplied_status(model, Supply(by), seen, now=NOW)


def condition_of(status, kind="Inspected"):
    [found] = [one for one in status["conditions"] if one["type"] == kind]
    return found["status"], found["reason"], found["message"]


def test_the_result_of_the_job_is_in_the_status():
    """Facts, size and volume are there, and a label that does not fit is a condition."""
    model = cluster_model(SOURCE, quantization="Q8_0")
    status = status_of(model, JobFacts(job_of("Complete"), (fetch_pod(message=TOLD),), claim()))
    assert (status["phase"], status["gguf"]["architecture"], status["size"]) == ("Ready", "llama", "4.5 GiB")
    assert (status["cacheKey"], status["cacheVolume"]) == (cache_key(model.spec), "c-1")
    assert status["path"] == "/model-source/a/b.gguf"
    assert condition_of(status)[:2] == ("True", "HeaderRead")
    assert condition_of(status, "QuantizationMatches")[1] == "QuantizationMismatch"


@pytest.mark.parametrize(("volume", "kept"), [("c-1", True), ("c-2", False)])
def test_facts_apply_to_their_volume(volume, kept):
    """The facts stay when the Job is deleted, and are dropped when the claim is another one."""
    model = cluster_model(SOURCE)
    before = status_of(model, JobFacts(job_of("Complete"), (fetch_pod(message=TOLD),), claim()))
    later = status_of(cluster_model(SOURCE, status=before), JobFacts(claim=claim(volume)))
    assert ("gguf" in later, "size" in later) == (kept, kept)
    assert later["phase"] == "Ready"


@pytest.mark.parametrize(
    ("seen", "reason", "word"),
    [
        (JobFacts(claim=claim()), "NotInUse", "once a pod that serves it is running"),
        (JobFacts(job_of(), (), claim()), "Inspecting", "phi-0"),
        (JobFacts(job_of(), (unscheduled("volume is in use"),), claim()), "Unschedulable", "volume is in use"),
        (
            JobFacts(job_of("Failed"), (fetch_pod(2, '{"reason":"NotGGUF","message":"no magic"}'),), claim()),
            "NotGGUF",
            "no magic; delete Job phi-0",
        ),
        (JobFacts(job_of("Failed"), (), claim()), "InspectionFailed", "without a message"),
        (JobFacts(claim=claim(), obstacle="quota"), "JobRefused", "quota"),
    ],
)
def test_a_header_that_is_not_read_blocks_nothing(seen, reason, word):
    """If the Job has no result, the Model is Ready and a condition has the reason for the missing facts."""
    status = status_of(cluster_model(SOURCE), seen)
    assert (status["phase"], "gguf" in status) == ("Ready", False)
    state, reported, message = condition_of(status)
    assert (state, reported) == ("False", reason)
    assert word in message


@pytest.mark.parametrize(("by", "spec"), [("claim", {"format": "safetensors"}), ("job", {}), ("runtime", {})])
def test_only_gguf_files_that_are_mounted_are_read(by, spec):
    """A downloaded file is read by its own Job, and other formats have no such header: the condition is absent."""
    source = SOURCE if by == "claim" else "org/repo"
    status = status_of(cluster_model(source, **spec), JobFacts(claim=claim()), by)
    assert "Inspected" not in {one["type"] for one in status["conditions"]}


async def serve(hands):
    """Bring up a service on a user's claim, without a pod yet."""
    await hands.cluster.apply_object(PersistentVolumeClaim, "weights", {"spec": SPEC}, manager="user")
    await hands.bind("weights")
    await hands.create_model(source=SOURCE)
    await hands.apply()


async def test_the_header_is_read_once_a_pod_runs(autojump_clock):
    """No Job before that; then one, whose facts neither replace the pods nor are read again."""
    async with open_pods() as hands:
        await serve(hands)
        assert await hands.model_where() == "Ready/PVCModelReady"
        assert await hands.names(Job) == []
        await hands.service_pod({"phase": "Pending"})
        await trio.sleep(SETTLED)
        assert await hands.names(Job) == []
        await hands.service_pod({"phase": "Running"})
        await hands.roll_out()
        await trio.sleep(SETTLED)
        model = await hands.cluster.model()
        assert await hands.names(Job) == [job_name(model)]
        assert await hands.where() == "Ready/InferenceReady"
        generation = (await hands.json(Deployment))["metadata"]["generation"]
        await hands.end_job(message=TOLD)
        model = await hands.cluster.model()
        assert (model.status.gguf.context_length, model.status.size) == (2048, "4.5 GiB")
        assert (await hands.json(Deployment))["metadata"]["generation"] == generation
        await hands.client.delete(Job, Key("ml", job_name(model)))
        await trio.sleep(SETTLED)
        writes = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert await hands.names(Job) == []
        assert len(hands.cluster.writes) == writes


async def test_another_volume_of_the_same_name_is_read_again(autojump_clock):
    """When the claim was deleted and created again, the old facts are dropped and another Job is created."""
    async with open_pods() as hands:
        await serve(hands)
        await hands.service_pod({"phase": "Running"})
        await trio.sleep(SETTLED)
        await hands.finish_job(message=TOLD)
        await trio.sleep(60)
        [before] = (await hands.client.list(Job, namespace="ml")).items
        await hands.client.delete(PersistentVolumeClaim, Key("ml", "weights"))
        await hands.cluster.apply_object(PersistentVolumeClaim, "weights", {"spec": SPEC}, manager="user")
        await hands.bind("weights")
        await hands.client.patch(Model, Key("ml", "phi"), {"metadata": {"labels": {"look": "now"}}}, field_manager=KUBE)
        await trio.sleep(SETTLED)
        assert (await hands.cluster.model()).status.gguf is None
        [after] = (await hands.client.list(Job, namespace="ml")).items
        assert after.metadata.uid != before.metadata.uid


async def test_an_edited_source_is_read_again_and_its_old_job_is_removed(autojump_clock):
    """A Job for each source: that of another path is removed, whether it has ended or not."""
    async with open_pods() as hands:
        await serve(hands)
        await hands.service_pod({"phase": "Running"})
        await trio.sleep(SETTLED)
        await hands.create_model(source="pvc://weights/other.gguf")
        await trio.sleep(SETTLED)
        assert await hands.names(Job) == [job_name(await hands.cluster.model())]
        await hands.create_model(source="org/repo", format="safetensors")
        await trio.sleep(SETTLED)
        assert await hands.names(Job) == []
