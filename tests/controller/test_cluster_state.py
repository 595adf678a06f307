"""A Model and its services become objects of a cluster, and their status says how those do."""

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import HUB_FILE, SHA
from llmkube.controller.optional_kinds import INSTALL_POLL_SECONDS
from llmkube.controller.render.labels import MODEL_LABEL
from llmkube.controller.render.storage import CACHE_CLAIM
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodMonitor,
)


async def test_a_model_is_fetched_and_its_service_served(autojump_clock):
    """Job, then facts, then Deployment and Service, then Ready: in this order, and nothing before its time."""
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


async def test_what_is_settled_is_not_written(autojump_clock):
    """Thirty quiet minutes cost no write at all."""
    async with open_pods() as hands:
        await hands.bring_up()
        before = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert hands.cluster.writes[before:] == []


async def test_an_edited_source_is_another_file_and_rolls(autojump_clock):
    """The old pods stay while the new file comes; then the Deployment points at the new folder, and not before."""
    async with open_pods() as hands:
        await hands.bring_up()
        old = await hands.json(Deployment)
        await hands.create_model(source="hf://org/repo/other.gguf")
        assert (await hands.model_where()).startswith("Pending/")
        assert (await hands.json(Deployment))["metadata"]["generation"] == old["metadata"]["generation"]
        assert (await hands.where()).startswith("Progressing/")
        assert (await hands.cluster.service()).status.ready_replicas == 1
        await hands.finish_job()
        await trio.sleep(SETTLED)
        new = await hands.json(Deployment)
        paths = [one["spec"]["template"]["spec"]["containers"][0]["args"][1] for one in (old, new)]
        assert paths[0] != paths[1]
        assert await hands.where() == "Progressing/Creating"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"


async def test_another_model_rolls(autojump_clock):
    """`modelRef` may be edited: old pods serve until the new Model is there, then its file and label replace them."""
    async with open_pods() as hands:
        await hands.bring_up()
        old = await hands.json(Deployment)
        await hands.create_model("gemma", source="hf://org/gemma/g.gguf")
        await hands.create_service(modelRef="gemma")
        assert await hands.where() == "Progressing/Pending"
        assert (await hands.json(Deployment))["spec"] == old["spec"]
        await hands.finish_job()
        await trio.sleep(SETTLED)
        new = await hands.json(Deployment)
        assert new["spec"]["selector"] == old["spec"]["selector"]
        template = new["spec"]["template"]
        assert template["metadata"]["labels"][MODEL_LABEL] == "gemma"
        assert (await hands.cluster.model("gemma")).status.path in template["spec"]["containers"][0]["args"]
        assert await hands.where() == "Progressing/Creating"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"
        assert (await hands.cluster.model()).metadata.finalizers == ()


async def test_a_model_in_use_outlives_its_deletion(autojump_clock):
    """It stays, serves and says who uses it; when its last service is gone, so is it."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.client.delete(Model, Key("ml", "phi"))
        assert await hands.where() == "Ready/InferenceReady"
        [progressing] = [one for one in (await hands.cluster.model()).status.conditions if one.type == "Progressing"]
        assert (progressing.reason, progressing.status) == ("InUse", "True")
        assert "chat" in progressing.message
        await hands.client.delete(InferenceService, Key("ml", "chat"))
        await trio.sleep(SETTLED)
        assert not await hands.exists(Model, "phi")


async def test_a_model_that_nobody_uses_goes_at_once(autojump_clock):
    """Without services there is no finalizer, and the Job goes with the Model."""
    async with open_pods() as hands:
        await hands.create_model()
        await trio.sleep(SETTLED)
        await hands.client.delete(Model, Key("ml", "phi"))
        await trio.sleep(SETTLED)
        assert not await hands.exists(Model, "phi")
        assert await hands.names(Job) == []


async def test_a_failed_fetch_fails_both_with_its_own_words(autojump_clock):
    """Reason and sentence of `llmkube fetch` are the Model's and its service's."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
        await hands.finish_job(2, '{"reason":"AccessDenied","message":"the hub wants a token"}')
        assert await hands.model_where() == "Failed/AccessDenied"
        assert await hands.where() == "Failed/AccessDenied"


async def test_a_job_whose_pod_is_gone_is_run_again(autojump_clock):
    """A result that nobody can tell any more is asked for anew."""
    async with open_pods() as hands:
        await hands.create_model()
        await trio.sleep(SETTLED)
        before = (await hands.client.list(Job)).items[0].metadata.uid
        await hands.finish_job(with_pod=False)
        await trio.sleep(SETTLED)
        assert (await hands.client.list(Job)).items[0].metadata.uid != before
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"


async def test_what_is_remembered_needs_no_job(autojump_clock):
    """A Model that is Ready stays so when its Job and pods are gone, for a new controller too."""
    async with open_pods() as hands:
        await hands.bring_up()
        [job] = await hands.names(Job)
        await hands.client.delete(Job, Key("ml", job), propagation="Background")
        await trio.sleep(60)
        assert await hands.names(Job) == []
        assert await hands.model_where() == "Ready/ModelReady"
        assert await hands.where() == "Ready/InferenceReady"


async def test_suspending_stops_and_keeps_everything_else(autojump_clock):
    """No replicas and no autoscaler while suspended; the same objects as before afterwards."""
    async with open_pods() as hands:
        await hands.bring_up(autoscaling={"maxReplicas": 3})
        before = await hands.json(Deployment)
        assert await hands.exists(HorizontalPodAutoscaler)
        await hands.create_service(autoscaling={"maxReplicas": 3}, suspend=True)
        await trio.sleep(SETTLED)
        assert (await hands.json(Deployment))["spec"]["replicas"] == 0
        assert not await hands.exists(HorizontalPodAutoscaler)
        await hands.roll_out()
        assert await hands.where() == "Suspended/Suspended"
        await hands.create_service(autoscaling={"maxReplicas": 3})
        await trio.sleep(SETTLED)
        after = await hands.json(Deployment)
        assert after["spec"] == before["spec"]
        assert await hands.exists(HorizontalPodAutoscaler)


async def test_an_autoscalers_choice_stands(autojump_clock):
    """Replicas that something else has set are kept while there is an autoscaler, and put right when there is none."""
    async with open_pods() as hands:
        await hands.bring_up(autoscaling={"maxReplicas": 5})
        await hands.client.patch(Deployment, Key("ml", "chat"), {"spec": {"replicas": 4}}, field_manager="hpa")
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"
        assert (await hands.json(Deployment))["spec"]["replicas"] == 4
        assert (await hands.cluster.service()).status.desired_replicas == 4
        await hands.create_service(replicas=2)
        await trio.sleep(SETTLED)
        assert (await hands.json(Deployment))["spec"]["replicas"] == 2


async def test_somebody_elses_object_is_never_touched(autojump_clock):
    """A Deployment of the same name that a user made stays as it is, and the service says that its name is taken."""
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "ml", "labels": {"app": "mine"}},
        "spec": {"replicas": 7, "template": {"metadata": {"labels": {"app": "mine"}}}},
    }
    async with open_pods() as hands:
        await hands.client.apply(Deployment, foreign, field_manager="kubectl")
        before = await hands.json(Deployment)
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
        await hands.finish_job()
        assert await hands.where() == "Failed/NameTaken"
        assert await hands.json(Deployment) == before
        await hands.client.delete(Deployment, Key("ml", "chat"))
        await trio.sleep(70)
        assert await hands.where() == "Creating/Creating"


async def test_drift_is_put_right_and_additions_are_kept(autojump_clock):
    """An image that was edited by hand comes back; an annotation that another program adds stays."""
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


async def test_labels_that_are_no_longer_wanted_go(autojump_clock):
    """A pod label that is taken out of the spec is gone from the template, and ours win over a user's."""
    async with open_pods() as hands:
        await hands.bring_up(podLabels={"team": "a", "app": "theirs"}, podAnnotations={"note": "x"})
        template = (await hands.json(Deployment))["spec"]["template"]["metadata"]
        assert (template["labels"]["team"], template["labels"]["app"]) == ("a", "chat")
        await hands.create_service()
        await trio.sleep(SETTLED)
        template = (await hands.json(Deployment))["spec"]["template"]["metadata"]
        assert "team" not in template["labels"]
        assert "note" not in template.get("annotations", {})


async def test_reverting_a_spec_reverts_the_objects(autojump_clock):
    """After an edit and its opposite, the Deployment and the Service say what they said before."""
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
        await hands.create_service()
        await trio.sleep(SETTLED)
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
        await hands.create_service("vital", resources={"gpu": 2}, priority="critical")
        await trio.sleep(SETTLED)
        await hands.finish_job()
        await trio.sleep(SETTLED)
        await hands.service_pod(no_gpu)
        assert await hands.where() == "WaitingForGPU/WaitingForGPU"
        await hands.service_pod(no_gpu, name="vital")
        assert await hands.where("vital") == "WaitingForGPU/WaitingForGPU"
        vital, chat = (await hands.cluster.service("vital")).status, (await hands.cluster.service()).status
        assert (vital.queue_position, chat.queue_position) == (1, 2)
        assert vital.waiting_for == "nvidia.com/gpu: 2"
        assert "number 2 in the queue" in chat.conditions[0].message
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
async def test_what_ails_a_pod_is_the_services_reason(autojump_clock, state, where):
    """Image and crash are told by name, and Available is False while nothing answers."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.roll_out(ready=0)
        await hands.service_pod({"phase": "Pending", "containerStatuses": [{"name": "llama-server", "state": state}]})
        assert await hands.where() == where
        [available] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Available"]
        assert available.status == "False"


async def test_a_bad_edit_leaves_the_pods_alone(autojump_clock):
    """A spec that cannot be served changes a condition; what runs goes on running, and is Ready still."""
    async with open_pods() as hands:
        await hands.bring_up()
        before = await hands.json(Deployment)
        await hands.create_service(runtime="omlx")
        assert await hands.where() == "Ready/InferenceReady"
        conditions = {one.type: one for one in (await hands.cluster.service()).status.conditions}
        assert (conditions["Accepted"].status, conditions["Accepted"].reason) == ("False", "Invalid")
        assert conditions["Degraded"].status == "True"
        assert await hands.json(Deployment) == before


async def test_fields_without_effect_are_named(autojump_clock):
    """A field that nothing acts on is listed by its path."""
    async with open_pods() as hands:
        await hands.bring_up(hotCacheMaxSize="1Gi")
        [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert honoured.status == "False"
        assert "spec.hotCacheMaxSize" in honoured.message


@pytest.mark.parametrize(("source", "status"), [(HUB_FILE, "True"), ("pvc://weights/m.gguf", "False")])
async def test_a_digest_that_nobody_checks_is_named(autojump_clock, source, status):
    """Fetching checks a Model's digest; nobody checks a file that lies on a user's claim, and the service says so."""
    async with open_pods() as hands:
        await hands.create_model(source=source, sha256=SHA, hardware={"accelerator": "cpu"})
        await hands.create_service()
        await trio.sleep(SETTLED)
        [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert honoured.status == status
        assert ("Model.spec.sha256" in honoured.message) is (status == "False")


@pytest.mark.parametrize(
    ("model", "service", "field"),
    [
        ({"source": "pvc://weights/phi.gguf"}, {}, "spec.modelCache"),
        ({"source": "org/repo", "format": "safetensors"}, {"runtime": "vllm"}, "spec.modelCache"),
        ({}, {}, ""),
        ({"source": "pvc://weights/phi.gguf"},
         {"speculativeDecoding": {"type": "draft", "draftModelRef": "small"}}, ""),
        ({"prefetchTolerations": [{"key": "gpu", "operator": "Exists"}]}, {}, "Model.spec.prefetchTolerations"),
        ({}, {"slo": {"objective": "99", "latencyThreshold": "2"}}, "spec.slo.latencyThreshold"),
    ],
)  # fmt: skip
async def test_a_field_that_has_nothing_to_act_on_is_named(model, service, field, autojump_clock):
    """Pods' own volume without a fetch, a fetch's tolerations without a Job, a latency of an availability."""
    async with open_pods() as hands:
        await hands.create_model(**model)
        await hands.create_model("small")
        await hands.create_service(modelCache={"claimName": "mine"}, **service)
        await trio.sleep(SETTLED)
        [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert field in honoured.message
        assert ("spec.modelCache" in honoured.message) is (field == "spec.modelCache")


async def test_a_claim_of_the_users_needs_no_job(autojump_clock):
    """`pvc://` waits for the claim to be there and bound, mounts it, and fetches nothing."""
    async with open_pods() as hands:
        await hands.create_model(source="pvc://weights/phi/model.gguf")
        await hands.create_service()
        assert await hands.model_where() == "Failed/PVCNotFound"
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "weights", "namespace": "ml"},
            "spec": {"accessModes": ["ReadWriteOnce"]},
        }
        await hands.client.apply(PersistentVolumeClaim, claim, field_manager="user")
        await trio.sleep(15)
        assert await hands.model_where() == "Pending/PVCNotBound"
        await hands.bind("weights")
        await trio.sleep(15)
        assert await hands.model_where() == "Ready/PVCModelReady"
        spec = (await hands.json(Deployment))["spec"]["template"]["spec"]
        assert "/model-source/phi/model.gguf" in spec["containers"][0]["args"]
        assert spec["volumes"] == [
            {"name": "model-source", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
        ]
        assert await hands.names(Job) == []


async def test_an_engine_that_fetches_for_itself_does_not_wait(autojump_clock):
    """A repository for vLLM makes no Job, and its service is made at once."""
    async with open_pods() as hands:
        await hands.create_model(source="org/repo", format="safetensors")
        await hands.create_service(runtime="vllm", resources={"gpu": 1})
        assert await hands.model_where() == "Ready/RuntimeResolved"
        assert await hands.where() == "Creating/Creating"
        assert await hands.names(Job) == []


async def test_ephemeral_weights_are_fetched_by_each_pod(autojump_clock):
    """`modelCache: Ephemeral` makes an init container and an emptyDir, and no Job."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service(modelCache={"persistence": "Ephemeral"})
        await trio.sleep(SETTLED)
        for job in await hands.names(Job):
            await hands.client.delete(Job, Key("ml", job), propagation="Background")
        assert await hands.model_where() == "Ready/WorkloadResolved"
        spec = (await hands.json(Deployment))["spec"]["template"]["spec"]
        assert [one["name"] for one in spec["initContainers"]] == ["fetch"]
        assert {"name": "models", "emptyDir": {}} in spec["volumes"]


async def test_a_service_that_moves_to_a_host_leaves_nothing(autojump_clock):
    """When its Model asks for metal, the pods' objects and the Model's finalizer are gone."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.create_model(hardware={"accelerator": "metal"})
        assert await hands.where() == "Pending/NoHost"
        assert not await hands.exists(Deployment)
        assert not await hands.exists(Service)
        assert (await hands.cluster.model()).metadata.finalizers == ()


async def test_pod_monitors_come_with_their_kind(autojump_clock):
    """Where a Prometheus operator is installed later, services get a PodMonitor then; before, nothing is tried."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.install_pod_monitors()
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        spec = (await hands.json(PodMonitor))["spec"]
        assert spec["podMetricsEndpoints"][0]["port"] == "http"
        before = len(hands.cluster.writes)
        await trio.sleep(600)
        assert hands.cluster.writes[before:] == []


async def test_deleting_a_service_takes_its_objects_along(autojump_clock):
    """Deployment and Service belong to it, and go with it."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.client.delete(InferenceService, Key("ml", "chat"), propagation="Background")
        await trio.sleep(SETTLED)
        assert not await hands.exists(Deployment)
        assert not await hands.exists(Service)


async def test_another_quantization_than_promised_is_a_condition(autojump_clock):
    """The header's word against the spec's is told, and hinders nothing."""
    async with open_pods() as hands:
        await hands.create_model(quantization="Q8_0")
        await trio.sleep(SETTLED)
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"
        conditions = (await hands.cluster.model()).status.conditions
        [matches] = [one for one in conditions if one.type == "QuantizationMatches"]
        assert (matches.status, matches.reason) == ("False", "QuantizationMismatch")


async def test_nothing_of_a_cluster_is_touched_when_switched_off(autojump_clock):
    """Without the setting no Job and no Deployment is made, whatever a Model asks for."""
    async with open_pods(workloads=None) as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(60)
        assert hands.cluster.writes == []
