"""A service's pods are created once its Model is fetched, follow its spec, and obstacles are conditions."""

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import Hands, open_pods
from controller.podobjects import SETTINGS, SHA
from llmkube.controller.render.labels import MODEL_LABEL
from llmkube.controller.render.storage import CACHE_CLAIM
from llmkube.controller.writes.owned_objects import REFUSED_RETRY_SECONDS
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, PersistentVolumeClaim, PodDisruptionBudget

WRONG = 'is invalid: spec.template.labels: Invalid value: "a b": a qualified name must consist of alphanumerics'
QUOTA = '"x" is forbidden: exceeded quota: compute, requested: count/x=1, used: count/x=3, limited: count/x=3'


@pytest.mark.parametrize("resource", ["deployments", "services", "horizontalpodautoscalers", "poddisruptionbudgets"])
async def test_a_refused_object_is_a_condition_of_its_service(autojump_clock, resource):
    """The phase is Failed, `Accepted` is False with the server's message, until the server takes the object."""
    async with open_pods() as hands:
        faults = hands.cluster.faults
        faults.refusals[resource] = f"{resource} {WRONG}"
        await hands.start(replicas=2, autoscaling={"maxReplicas": 3})
        await hands.finish_job()
        assert await hands.where() == "Failed/Invalid"
        [accepted] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Accepted"]
        assert (accepted.status, accepted.reason, accepted.message) == ("False", "Invalid", f"{resource} {WRONG}")
        assert not hands.cluster.reconciles("inferenceservice", "error")
        faults.refusals.clear()
        await trio.sleep(REFUSED_RETRY_SECONDS)
        assert await hands.where() == "Creating/Creating"
        [accepted] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Accepted"]
        assert (accepted.status, accepted.reason) == ("True", "Accepted")


@pytest.mark.parametrize("resource", ["deployments", "jobs"])
async def test_an_exhausted_quota_is_reported_and_retried(autojump_clock, resource):
    """A forbidden request is reported on the service, for a Job on its Model too; once there is quota it continues."""
    async with open_pods() as hands:
        faults = hands.cluster.faults
        faults.refusals[resource], faults.refused = QUOTA, (403, "Forbidden")
        await hands.start()
        if resource == "jobs":
            assert await hands.model_where() == "Failed/Invalid"
        else:
            await hands.finish_job()
        assert await hands.where() == "Failed/Invalid"
        [degraded] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Degraded"]
        assert degraded.message == QUOTA
        assert not hands.cluster.reconciles("inferenceservice", "error")
        faults.refusals.clear()
        await trio.sleep(REFUSED_RETRY_SECONDS)
        assert await hands.where() == ("Pending/Pending" if resource == "jobs" else "Creating/Creating")


async def test_a_reason_of_the_kubelets_own_reaches_the_status(autojump_clock):
    """A reason with dots and slashes is converted to the schema's form, and the status is still written."""
    async with open_pods() as hands:
        await hands.start(resources={"gpu": 1})
        await hands.end_job()
        message = (
            "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 0, capacity: 0"
        )
        await hands.service_pod({"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": message})
        assert await hands.where() == "Creating/OutOfnvidia_com_gpu"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"


async def test_running_pods_continue_while_the_next_spec_is_refused(autojump_clock):
    """The existing pods stay Ready; `Accepted` and `Degraded` have the error."""
    async with open_pods() as hands:
        await hands.bring_up()
        hands.cluster.faults.refusals["deployments"] = WRONG
        await hands.create_service(podLabels={"a b": "c"})
        assert await hands.where() == "Ready/InferenceReady"
        conditions = {one.type: (one.status, one.reason) for one in (await hands.cluster.service()).status.conditions}
        assert conditions["Accepted"] == ("False", "Invalid")
        assert conditions["Degraded"] == ("True", "Invalid")


async def test_a_model_is_fetched_and_its_service_served(autojump_clock):
    """Job, then facts, then Deployment and Service, then Ready: in this order, and none earlier."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        assert await hands.model_where() == "Pending/Pending"
        assert await hands.where() == "Pending/Pending"
        assert await hands.names(PersistentVolumeClaim) == [CACHE_CLAIM]
        assert not await hands.exists(Deployment)
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"
        status = (await hands.cluster.model()).status
        assert (status.size, status.sha256, status.gguf.architecture) == ("4.5 GiB", SHA, "llama")
        assert status.path == f"/models/{status.cache_key}/model.gguf"
        assert await hands.where() == "Creating/Creating"
        container = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"][0]
        assert status.path in container["args"]
        assert (await hands.client.get(Service, Key("ml", "chat"))).spec.ports[0].target_port == "http"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"
        service = await hands.cluster.service()
        assert service.status.ready_replicas == 1
        assert {one.observed_generation for one in service.status.conditions} == {service.metadata.generation}


async def test_settled_objects_are_not_written(autojump_clock):
    """Thirty idle minutes cost no write at all."""
    async with open_pods() as hands:
        await hands.bring_up()
        before = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert hands.cluster.writes[before:] == []


async def test_another_model_rolls(autojump_clock):
    """`modelRef` may be edited: old pods serve until the new Model is fetched, then its file and label replace them."""
    async with open_pods() as hands:
        await hands.bring_up()
        old = await hands.json(Deployment)
        await hands.create_model("gemma", source="hf://org/gemma/g.gguf")
        await hands.create_service(modelRef="gemma")
        assert await hands.where() == "Progressing/Pending"
        assert (await hands.json(Deployment))["spec"] == old["spec"]
        await hands.end_job()
        new = await hands.json(Deployment)
        assert new["spec"]["selector"] == old["spec"]["selector"]
        template = new["spec"]["template"]
        assert template["metadata"]["labels"][MODEL_LABEL] == "gemma"
        assert (await hands.cluster.model("gemma")).status.path in template["spec"]["containers"][0]["args"]
        assert await hands.where() == "Progressing/Creating"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"


async def test_suspending_stops_and_keeps_everything_else(autojump_clock):
    """No replicas and no autoscaler while suspended; the same objects as before afterwards."""
    async with open_pods() as hands:
        await hands.bring_up(autoscaling={"maxReplicas": 3})
        before = await hands.json(Deployment)
        assert await hands.exists(HorizontalPodAutoscaler)
        await hands.apply(autoscaling={"maxReplicas": 3}, suspend=True)
        assert (await hands.json(Deployment))["spec"]["replicas"] == 0
        assert not await hands.exists(HorizontalPodAutoscaler)
        await hands.roll_out()
        assert await hands.where() == "Suspended/Suspended"
        await hands.apply(autoscaling={"maxReplicas": 3})
        after = await hands.json(Deployment)
        assert after["spec"] == before["spec"]
        assert await hands.exists(HorizontalPodAutoscaler)


async def test_an_autoscalers_choice_is_kept(autojump_clock):
    """Replicas that something else has set stay while there is an autoscaler, and are reset when there is none."""
    async with open_pods() as hands:
        await hands.bring_up(autoscaling={"maxReplicas": 5})
        await hands.client.patch(Deployment, Key("ml", "chat"), {"spec": {"replicas": 4}}, field_manager="hpa")
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"
        assert (await hands.json(Deployment))["spec"]["replicas"] == 4
        assert (await hands.cluster.service()).status.desired_replicas == 4
        await hands.apply(replicas=2)
        assert (await hands.json(Deployment))["spec"]["replicas"] == 2


async def test_a_strangers_object_is_never_changed(autojump_clock):
    """A user's Deployment of the same name stays unchanged, and the service reports the taken name."""
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "ml", "labels": {"app": "mine"}},
        "spec": {"replicas": 7, "template": {"metadata": {"labels": {"app": "mine"}}}},
    }
    async with open_pods() as hands:
        await hands.client.apply(Deployment, foreign, field_manager="kubectl")
        before = await hands.json(Deployment)
        await hands.start()
        await hands.finish_job()
        assert await hands.where() == "Failed/NameTaken"
        assert await hands.json(Deployment) == before
        await hands.client.delete(Deployment, Key("ml", "chat"))
        await trio.sleep(70)
        assert await hands.where() == "Creating/Creating"


async def test_drift_is_repaired_and_additions_are_kept(autojump_clock):
    """An image that was edited by hand is reset; an annotation that another program adds stays."""
    async with open_pods() as hands:
        await hands.bring_up()
        key = Key("ml", "chat")
        live = await hands.json(Deployment)
        image = live["spec"]["template"]["spec"]["containers"][0]["image"]
        live["spec"]["template"]["spec"]["containers"][0]["image"] = "example.org/other"
        containers = live["spec"]["template"]["spec"]["containers"]
        patch = {"spec": {"template": {"spec": {"containers": containers}}}}
        await hands.client.patch(Deployment, key, patch, field_manager="kubectl")
        extra = {"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}}
        await hands.client.patch(Deployment, key, extra, field_manager="kubectl")
        await trio.sleep(SETTLED)
        now = (await hands.json(Deployment))["spec"]["template"]
        assert now["spec"]["containers"][0]["image"] == image
        assert now["metadata"]["annotations"]["restarted"] == "now"


async def test_unwanted_labels_are_removed(autojump_clock):
    """A pod label that is removed from the spec is removed from the template, and ours override a user's."""
    async with open_pods() as hands:
        await hands.bring_up(podLabels={"team": "a", "app": "theirs"}, podAnnotations={"note": "x"})
        template = (await hands.json(Deployment))["spec"]["template"]["metadata"]
        assert (template["labels"]["team"], template["labels"]["app"]) == ("a", "chat")
        await hands.apply()
        template = (await hands.json(Deployment))["spec"]["template"]["metadata"]
        assert "team" not in template["labels"]
        assert "note" not in template.get("annotations", {})


async def test_reverting_a_spec_reverts_the_objects(autojump_clock):
    """After an edit and its opposite, the Deployment and the Service are the same as before."""
    async with open_pods() as hands:
        await hands.bring_up()
        before = [(await hands.json(kind))["spec"] for kind in (Deployment, Service)]
        await hands.create_service(
            replicas=2,
            podLabels={"a": "b"},
            env=[{"name": "X", "value": "1"}],
            endpoint={"port": 9000, "type": "NodePort"},
            nodeSelector={"gpu": "yes"},
            disruption={"protectAlways": True},
        )
        await trio.sleep(SETTLED)
        assert [(await hands.json(kind))["spec"] for kind in (Deployment, Service)] != before
        assert await hands.exists(PodDisruptionBudget)
        await hands.apply()
        after = [(await hands.json(kind))["spec"] for kind in (Deployment, Service)]
        after[1].pop("externalTrafficPolicy", None)
        assert after == before
        assert not await hands.exists(PodDisruptionBudget)


async def test_the_queue_for_gpus_goes_by_priority(autojump_clock):
    """Two that wait are numbered, the vital one first; when it has its GPU the other moves up."""
    no_gpu = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
             "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
        ],
    }  # fmt: skip
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service("chat", resources={"gpu": 1})
        await hands.apply("vital", resources={"gpu": 2}, priority="critical")
        await hands.end_job()
        await hands.service_pod(no_gpu)
        assert await hands.where() == "WaitingForGPU/WaitingForGPU"
        await hands.service_pod(no_gpu, name="vital")
        assert await hands.where("vital") == "WaitingForGPU/WaitingForGPU"
        vital, chat = (await hands.cluster.service("vital")).status, (await hands.cluster.service()).status
        assert (vital.queue_position, chat.queue_position) == (1, 2)
        assert vital.waiting_for == "nvidia.com/gpu: 2"
        assert "position 2 in the queue" in chat.conditions[0].message
        running = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        await hands.service_pod(running, name="vital")
        await hands.roll_out("vital")
        assert await hands.where("vital") == "Ready/InferenceReady"
        chat = (await hands.cluster.service()).status
        assert chat.queue_position == 1
        assert (await hands.cluster.service("vital")).status.queue_position is None


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, "Failed/ImagePullBackOff"),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, "Failed/CrashLoopBackOff"),
        ({"waiting": {"reason": "ContainerCreating"}}, "Creating/Creating"),
    ],
)
async def test_a_pods_problem_is_the_services_reason(autojump_clock, state, where):
    """Image and crash are named, and Available is False while nothing answers."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.roll_out(ready=0)
        await hands.service_pod({"phase": "Pending", "containerStatuses": [{"name": "llama-server", "state": state}]})
        assert await hands.where() == where
        [available] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Available"]
        assert available.status == "False"


async def test_a_bad_edit_does_not_change_the_pods(autojump_clock):
    """A spec that cannot be served changes a condition; running pods continue, and stay Ready."""
    async with open_pods() as hands:
        await hands.bring_up()
        before = await hands.json(Deployment)
        await hands.create_service(runtime="omlx")
        assert await hands.where() == "Ready/InferenceReady"
        conditions = {one.type: one for one in (await hands.cluster.service()).status.conditions}
        assert (conditions["Accepted"].status, conditions["Accepted"].reason) == ("False", "Invalid")
        assert conditions["Degraded"].status == "True"
        assert await hands.json(Deployment) == before
        assert (await hands.cluster.columns(InferenceService, "chat"))["Runtime"] == "llamacpp"


async def test_the_runtime_of_pods_is_a_column(autojump_clock):
    """The default if the spec names none, the pods' own name of an alias, and another one once it is rolled out."""
    async with open_pods() as hands:
        await hands.bring_up()
        assert (await hands.cluster.columns(InferenceService, "chat"))["Runtime"] == "llamacpp"
        await hands.create_service(runtime="llama-server")
        assert await hands.where() == "Ready/InferenceReady"
        assert (await hands.cluster.columns(InferenceService, "chat"))["Runtime"] == "llamacpp"


async def test_deleting_a_service_deletes_its_objects(autojump_clock):
    """Deployment and Service are owned by it, and deleted with it."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.client.delete(InferenceService, Key("ml", "chat"), propagation="Background")
        await trio.sleep(SETTLED)
        assert not await hands.exists(Deployment)
        assert not await hands.exists(Service)


async def honoured(hands: Hands) -> tuple[str, str]:
    service = await hands.cluster.service()
    [found] = [one for one in service.status.conditions if one.type == "SpecHonoured"]
    return found.status, found.message


@pytest.mark.parametrize("nodes", [{}, {"example.com/gpu": "shared"}])
async def test_a_shared_gpu_is_on_the_operators_nodes(nodes, autojump_clock):
    """The pods are placed on those nodes; if the operator names none, the field is reported as one without effect."""
    async with open_pods(workloads=attrs.evolve(SETTINGS, shared_gpu_selector=nodes)) as hands:
        await hands.bring_up(resources={"gpu": 1, "gpuSharing": {"mode": "shared"}})
        assert (await hands.json(Deployment))["spec"]["template"]["spec"].get("nodeSelector", {}) == nodes
        assert ("gpuSharing.mode" in (await honoured(hands))[1]) is not bool(nodes)
