"""What the API server will not take is said on the object that asked for it."""

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from llmkube.controller.writes.owned_objects import NAME_TAKEN_RETRY_SECONDS
from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Job

WRONG = 'is invalid: spec.template.labels: Invalid value: "a b": a qualified name must consist of alphanumerics'


@pytest.mark.parametrize("resource", ["deployments", "services", "horizontalpodautoscalers", "poddisruptionbudgets"])
async def test_a_refused_object_is_a_condition_of_its_service(autojump_clock, resource):
    """The phase is Failed, `Accepted` is False with the server's sentence, and it goes on once the server takes it."""
    async with open_pods() as hands:
        faults = hands.cluster.faults
        faults.refusals[resource] = f"{resource} {WRONG}"
        await hands.create_model()
        await hands.create_service(replicas=2, autoscaling={"maxReplicas": 3})
        await trio.sleep(SETTLED)
        await hands.finish_job()
        assert await hands.where() == "Failed/Invalid"
        [accepted] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Accepted"]
        assert (accepted.status, accepted.reason, accepted.message) == ("False", "Invalid", f"{resource} {WRONG}")
        assert not hands.cluster.reconciles("inferenceservice", "error")
        faults.refusals.clear()
        await trio.sleep(NAME_TAKEN_RETRY_SECONDS)
        assert await hands.where() == "Creating/Creating"


QUOTA = '"x" is forbidden: exceeded quota: compute, requested: count/x=1, used: count/x=3, limited: count/x=3'


@pytest.mark.parametrize("resource", ["deployments", "jobs"])
async def test_a_quota_that_is_used_up_is_told_and_looked_at_again(autojump_clock, resource):
    """What the server forbids is said on the service, of a Job on its Model too; once there is room it goes on."""
    async with open_pods() as hands:
        faults = hands.cluster.faults
        faults.refusals[resource], faults.refused = QUOTA, (403, "Forbidden")
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
        if resource == "jobs":
            assert await hands.model_where() == "Failed/Invalid"
        else:
            await hands.finish_job()
        assert await hands.where() == "Failed/Invalid"
        [degraded] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Degraded"]
        assert degraded.message == QUOTA
        assert not hands.cluster.reconciles("inferenceservice", "error")
        faults.refusals.clear()
        await trio.sleep(NAME_TAKEN_RETRY_SECONDS)
        assert await hands.where() == ("Pending/Pending" if resource == "jobs" else "Creating/Creating")


async def test_a_reason_of_the_kubelets_own_reaches_the_status(autojump_clock):
    """A reason with dots and slashes is spelled as the schema wants it, and the status goes on being written."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service(resources={"gpu": 1})
        await trio.sleep(SETTLED)
        await hands.finish_job()
        await trio.sleep(SETTLED)
        message = (
            "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 0, capacity: 0"
        )
        await hands.service_pod({"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": message})
        assert await hands.where() == "Creating/OutOfnvidia_com_gpu"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"


async def test_a_source_of_any_length_is_refused_with_a_message_that_fits(autojump_clock):
    """What a refusal quotes is cut, and the Model is Failed."""
    async with open_pods() as hands:
        await hands.create_model(source="pvc://" + "a" * 40_000)
        assert await hands.model_where() == "Failed/SourceInvalid"


async def test_what_serves_goes_on_while_its_next_spec_is_refused(autojump_clock):
    """The pods that are there stay Ready; `Accepted` and `Degraded` say what is wrong."""
    async with open_pods() as hands:
        await hands.bring_up()
        hands.cluster.faults.refusals["deployments"] = WRONG
        await hands.create_service(podLabels={"a b": "c"})
        assert await hands.where() == "Ready/InferenceReady"
        said = {one.type: (one.status, one.reason) for one in (await hands.cluster.service()).status.conditions}
        assert said["Accepted"] == ("False", "Invalid")
        assert said["Degraded"] == ("True", "Invalid")


async def test_a_refused_job_is_a_condition_of_its_model(autojump_clock):
    """The Model is Failed with the server's sentence, and so is the service that waits for it."""
    async with open_pods() as hands:
        hands.cluster.faults.refusals["jobs"] = WRONG
        await hands.create_model()
        await hands.create_service()
        assert await hands.model_where() == "Failed/Invalid"
        assert await hands.where() == "Failed/Invalid"
        [degraded] = [one for one in (await hands.cluster.model()).status.conditions if one.type == "Degraded"]
        assert degraded.message == WRONG


async def test_a_job_of_somebody_else_is_a_condition_too(autojump_clock):
    """The Job that is in the way is named, left alone, and replaced by ours once it is gone."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
        [name] = await hands.names(Job)
        for kind, gone in ((InferenceService, "chat"), (Model, "phi")):
            await hands.client.delete(kind, Key("ml", gone))
            await trio.sleep(SETTLED)
        theirs = {"metadata": {"name": name, "namespace": "ml"}, "spec": {"backoffLimit": 0}}
        await hands.client.create(decode(Job, theirs), field_manager="somebody")
        await hands.create_model()
        await hands.create_service()
        assert await hands.model_where() == "Failed/NameTaken"
        assert (await hands.json(Job, name))["spec"] == {"backoffLimit": 0}
        await hands.client.delete(Job, Key("ml", name))
        await trio.sleep(NAME_TAKEN_RETRY_SECONDS)
        assert await hands.model_where() == "Pending/Pending"
        assert not await hands.exists(Deployment)
        assert not await hands.exists(Service)
