"""A Job fetches a Model's current source, only its own pods report results, and a Model stays while it is used."""

import json

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import FETCHED, SETTINGS
from llmkube.controller.reconcile.models import FINALIZER
from llmkube.controller.render.labels import MANAGED_BY
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.writes.owned_objects import REFUSED_RETRY_SECONDS
from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import Deployment, Job, PersistentVolumeClaim

WRONG = 'is invalid: spec.template.labels: Invalid value: "a b": a qualified name must consist of alphanumerics'


async def test_a_source_of_any_length_is_refused_with_a_message_that_fits(autojump_clock):
    """A refusal cuts the value that it quotes, and the Model is Failed."""
    async with open_pods() as hands:
        await hands.create_model(source="pvc://" + "a" * 40_000)
        assert await hands.model_where() == "Failed/SourceInvalid"


async def test_a_refused_job_is_a_condition_of_its_model(autojump_clock):
    """The Model is Failed with the server's message, and so is the service that waits for it."""
    async with open_pods() as hands:
        hands.cluster.faults.refusals["jobs"] = WRONG
        await hands.create_model()
        await hands.create_service()
        assert await hands.model_where() == "Failed/Invalid"
        assert await hands.where() == "Failed/Invalid"
        [degraded] = [one for one in (await hands.cluster.model()).status.conditions if one.type == "Degraded"]
        assert degraded.message == WRONG


async def test_a_strangers_job_is_a_condition_too(autojump_clock):
    """The conflicting Job is named, not changed, and replaced by ours once it is deleted."""
    async with open_pods() as hands:
        await hands.start()
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
        await trio.sleep(REFUSED_RETRY_SECONDS)
        assert await hands.model_where() == "Pending/Pending"
        assert not await hands.exists(Deployment)
        assert not await hands.exists(Service)


TOLERATION = {"key": "gpu", "operator": "Exists"}
REFUSED = '{"reason":"Unauthorized","message":"the hub wants a token"}'


async def only_job(hands):
    [job] = (await hands.client.list(Job, namespace="ml")).items
    return job


async def make_strangers_pod(hands, status):
    """Start to fetch a Model, and create a stranger's pod with the label of its Job; return the Job."""
    await hands.create_model(prefetch=True)
    await trio.sleep(SETTLED)
    job = await only_job(hands)
    labels = {MANAGED_BY: CONTROLLER_FIELD_MANAGER, "batch.kubernetes.io/job-name": job.key.name}
    await hands.make_pod("a-pod", labels, status)
    return job


async def test_a_secret_that_was_lacking_is_tried_at_once(autojump_clock):
    """A refused fetch is repeated with the Secret that the Model names since then, and only then."""
    async with open_pods() as hands:
        await hands.start()
        await hands.finish_job(2, REFUSED)
        refused = await only_job(hands)
        await trio.sleep(600)
        assert (await only_job(hands)).metadata.uid == refused.metadata.uid
        await hands.create_model(sourceSecretRef={"name": "hub"})
        await trio.sleep(SETTLED)
        job = await only_job(hands)
        assert job.metadata.uid != refused.metadata.uid
        assert '"secretKeyRef": {"name": "hub"' in json.dumps(await hands.json(Job, job.key.name))
        assert await hands.model_where() == "Pending/Pending"
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"


@pytest.mark.parametrize("state", ["none", "waiting", "running", "ended"])
async def test_an_edit_replaces_a_job_without_progress(autojump_clock, state):
    """Tolerations reach a Job whose pod has not started; one that fetches, or has fetched, stays unchanged."""
    async with open_pods() as hands:
        await hands.create_model(prefetch=True)
        await trio.sleep(SETTLED)
        job = await only_job(hands)
        if state == "waiting":
            await hands.job_pod(job, {"waiting": {"reason": "ContainerCreating"}}, "Pending")
        elif state == "running":
            await hands.job_pod(job, {"running": {}}, "Running")
        elif state == "ended":
            await hands.finish_job()
        await hands.create_model(prefetch=True, prefetchTolerations=[TOLERATION])
        await trio.sleep(600)
        replaced = (await only_job(hands)).metadata.uid != job.metadata.uid
        assert replaced is (state in ("none", "waiting"))
        if replaced:
            spec = (await hands.json(Job, job.key.name))["spec"]["template"]["spec"]
            assert spec["tolerations"] == [TOLERATION]


@pytest.mark.parametrize("running", [True, False])
async def test_other_settings_restart_no_download_that_runs(autojump_clock, running):
    """K10: `helm upgrade` with another mirror reaches a Job that has not started; one that fetches stays unchanged."""
    async with open_pods() as hands:
        await hands.create_model(prefetch=True)
        await trio.sleep(SETTLED)
        job = await only_job(hands)
        if running:
            await hands.job_pod(job, {"running": {}}, "Running")
        cluster = hands.cluster
        cluster.bury()
        upgraded = attrs.evolve(SETTINGS, hub_endpoint="https://mirror.example.org", image="example.org/llmkube:next")
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.run_controller, ControllerSettings(workloads=upgraded))
            await trio.sleep(600)
            assert ((await only_job(hands)).metadata.uid == job.metadata.uid) is running
            nursery.cancel_scope.cancel()


async def test_a_pod_that_only_has_the_label_is_ignored(autojump_clock):
    """A stranger's pod with the Job's label provides neither a result nor a failure."""
    async with open_pods() as hands:
        theirs = FETCHED.replace('"model.gguf"', '"theirs.gguf"')
        ended = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "message": theirs}}}
        await make_strangers_pod(hands, {"phase": "Succeeded", "containerStatuses": [ended]})
        assert await hands.model_where() == "Pending/Pending"
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"
        assert (await hands.cluster.model()).status.path.endswith("/model.gguf")


async def test_a_job_is_run_again_though_a_strangers_pod_has_its_label(autojump_clock):
    """A result that no pod of the Job has any more is fetched again."""
    async with open_pods() as hands:
        job = await make_strangers_pod(hands, {"phase": "Running"})
        await hands.finish_job(with_pod=False)
        await trio.sleep(SETTLED)
        assert (await only_job(hands)).metadata.uid != job.metadata.uid


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("settings", [{}, {"workloads": None}])
async def test_the_finalizer_of_an_early_version_is_removed(autojump_clock, settings, deleted):
    """With pods and without them; the finalizers of others stay."""
    async with open_pods() as hands:
        await hands.bring_up()
        cluster = hands.cluster
        cluster.bury()
        kept = {"metadata": {"finalizers": [FINALIZER, *(() if deleted else ("example.org/theirs",))]}}
        await hands.client.patch(Model, Key("ml", "phi"), kept)
        if deleted:
            await hands.client.delete(Model, Key("ml", "phi"))
            assert await hands.exists(Model, "phi")
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.run_controller, ControllerSettings(**settings))
            await trio.sleep(SETTLED)
            if deleted:
                assert not await hands.exists(Model, "phi")
            else:
                assert (await cluster.model()).metadata.finalizers == ("example.org/theirs",)
            cluster.controller_scope.cancel()


CLAIM = Key("ml", "llmkube-model-cache")


async def test_a_claim_that_was_deleted_is_made_and_filled_again(autojump_clock):
    """The Model waits for a new Job, although the old one's result is still there; then it is Ready, and stays so."""
    async with open_pods() as hands:
        await hands.bring_up()
        old = await hands.client.get(PersistentVolumeClaim, CLAIM)
        assert (await hands.cluster.model()).status.cache_volume == old.metadata.uid
        [before] = (await hands.client.list(Job, namespace="ml")).items
        generation = (await hands.json(Deployment))["metadata"]["generation"]

        await trio.sleep(600)
        await hands.client.delete(PersistentVolumeClaim, CLAIM)
        await trio.sleep(SETTLED)
        assert await hands.model_where() == "Pending/Pending"
        new = await hands.client.get(PersistentVolumeClaim, CLAIM)
        assert new.metadata.uid != old.metadata.uid
        [after] = (await hands.client.list(Job, namespace="ml")).items
        assert after.metadata.uid != before.metadata.uid

        await hands.end_job()
        assert await hands.model_where() == "Ready/ModelReady"
        assert (await hands.cluster.model()).status.cache_volume == new.metadata.uid
        assert (await hands.json(Deployment))["metadata"]["generation"] == generation
        writes = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert len(hands.cluster.writes) == writes


async def test_an_admins_own_claim_is_filled_once(autojump_clock):
    """A claim of the right name without our label is used with its content: one Job, then nothing."""
    async with open_pods() as hands:
        access = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
        await hands.cluster.apply_object(PersistentVolumeClaim, CLAIM.name, {"spec": access}, manager="admin")
        await hands.bring_up()
        [job] = (await hands.client.list(Job, namespace="ml")).items
        writes = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert (await hands.model_where(), await hands.where()) == ("Ready/ModelReady", "Ready/InferenceReady")
        assert [one.metadata.uid for one in (await hands.client.list(Job, namespace="ml")).items] == [job.metadata.uid]
        assert len(hands.cluster.writes) == writes
        assert (await hands.cluster.model()).status.cache_volume


async def test_other_claims_are_ignored(autojump_clock):
    """A user's claim of the namespace is created and deleted without another fetch."""
    async with open_pods() as hands:
        await hands.bring_up()
        [before] = (await hands.client.list(Job, namespace="ml")).items
        access = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await hands.cluster.apply_object(PersistentVolumeClaim, "mine", {"spec": access}, manager="user")
        await hands.client.delete(PersistentVolumeClaim, Key("ml", "mine"))
        await trio.sleep(SETTLED)
        [after] = (await hands.client.list(Job, namespace="ml")).items
        assert after.metadata.uid == before.metadata.uid
        assert await hands.model_where() == "Ready/ModelReady"


async def test_an_edited_source_is_another_file_and_rolls(autojump_clock):
    """The old pods stay while the new file is fetched; then the Deployment mounts the new folder, and not before."""
    async with open_pods() as hands:
        await hands.bring_up()
        old = await hands.json(Deployment)
        await hands.create_model(source="hf://org/repo/other.gguf")
        assert (await hands.model_where()).startswith("Pending/")
        assert (await hands.json(Deployment))["metadata"]["generation"] == old["metadata"]["generation"]
        assert (await hands.where()).startswith("Progressing/")
        assert (await hands.cluster.service()).status.ready_replicas == 1
        await hands.end_job()
        new = await hands.json(Deployment)
        paths = [one["spec"]["template"]["spec"]["containers"][0]["args"][1] for one in (old, new)]
        assert paths[0] != paths[1]
        assert await hands.where() == "Progressing/Creating"
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"


async def test_pods_outlive_the_deletion_of_their_model(autojump_clock):
    """The Model is deleted at once; its pods stay unchanged with a condition, until the Model is back."""
    async with open_pods() as hands:
        await hands.bring_up()
        before = await hands.json(Deployment)
        await hands.client.delete(Model, Key("ml", "phi"))
        assert await hands.where() == "Progressing/ModelNotFound"
        assert not await hands.exists(Model, "phi")
        conditions = {one.type: one for one in (await hands.cluster.service()).status.conditions}
        assert conditions["Available"].status == "True"
        assert (await hands.json(Deployment))["spec"] == before["spec"]
        await hands.create_model()
        await trio.sleep(SETTLED)
        await hands.finish_job()
        assert await hands.where() == "Ready/InferenceReady"
        assert (await hands.json(Deployment))["spec"] == before["spec"]


async def test_an_unused_model_is_deleted_at_once(autojump_clock):
    """The Job is deleted with the Model."""
    async with open_pods() as hands:
        await hands.create_model()
        await trio.sleep(SETTLED)
        await hands.client.delete(Model, Key("ml", "phi"))
        await trio.sleep(SETTLED)
        assert not await hands.exists(Model, "phi")
        assert await hands.names(Job) == []


async def test_a_failed_fetch_fails_both_with_its_own_message(autojump_clock):
    """Reason and message of `llmkube fetch` are the Model's and its service's."""
    async with open_pods() as hands:
        await hands.start()
        await hands.finish_job(2, '{"reason":"AccessDenied","message":"the hub wants a token"}')
        assert await hands.model_where() == "Failed/AccessDenied"
        assert await hands.where() == "Failed/AccessDenied"


async def test_a_job_whose_pod_is_gone_is_run_again(autojump_clock):
    """A lost result is fetched again."""
    async with open_pods() as hands:
        await hands.create_model()
        await trio.sleep(SETTLED)
        before = (await hands.client.list(Job)).items[0].metadata.uid
        await hands.finish_job(with_pod=False)
        await trio.sleep(SETTLED)
        assert (await hands.client.list(Job)).items[0].metadata.uid != before
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"


async def test_a_recorded_result_needs_no_job(autojump_clock):
    """A Ready Model stays so when its Job and pods are deleted, for a new controller too."""
    async with open_pods() as hands:
        await hands.bring_up()
        [job] = await hands.names(Job)
        await hands.client.delete(Job, Key("ml", job), propagation="Background")
        await trio.sleep(60)
        assert await hands.names(Job) == []
        assert await hands.model_where() == "Ready/ModelReady"
        assert await hands.where() == "Ready/InferenceReady"


async def test_a_claim_of_the_users_needs_no_job(autojump_clock):
    """`pvc://` waits for the claim, mounts it, and fetches nothing; the pods may be the first to bind it."""
    async with open_pods() as hands:
        await hands.create_model(source="pvc://weights/phi/model.gguf")
        await hands.create_service()
        assert await hands.model_where() == "Failed/PVCNotFound"
        claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
        await hands.cluster.apply_object(PersistentVolumeClaim, "weights", claim, manager="user")
        await trio.sleep(15)
        assert await hands.model_where() == "Pending/PVCNotBound"
        assert await hands.where() == "Pending/PVCNotBound"
        held = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has it"}
        await hands.service_pod({"phase": "Pending", "conditions": [held]})
        assert await hands.where() == "Creating/Unschedulable"
        assert not (await hands.cluster.service()).status.model_ready
        await hands.bind("weights")
        await trio.sleep(15)
        assert await hands.model_where() == "Ready/PVCModelReady"
        spec = (await hands.json(Deployment))["spec"]["template"]["spec"]
        assert "/model-source/phi/model.gguf" in spec["containers"][0]["args"]
        source = {"name": "model-source", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
        assert spec["volumes"] == [source, {"name": "engine-scratch", "emptyDir": {}}]
        assert await hands.names(Job) == []


async def test_an_engine_that_fetches_for_itself_does_not_wait(autojump_clock):
    """A repository for vLLM makes no Job, and its service is created at once."""
    async with open_pods() as hands:
        await hands.create_model(source="org/repo", format="safetensors")
        await hands.create_service(runtime="vllm", resources={"gpu": 1})
        assert await hands.model_where() == "Ready/RuntimeResolved"
        assert await hands.where() == "Creating/Creating"
        assert await hands.names(Job) == []


async def test_ephemeral_weights_are_fetched_by_each_pod(autojump_clock):
    """`modelCache: Ephemeral` makes an init container and an emptyDir, and no Job."""
    async with open_pods() as hands:
        await hands.start(modelCache={"persistence": "Ephemeral"})
        for job in await hands.names(Job):
            await hands.client.delete(Job, Key("ml", job), propagation="Background")
        assert await hands.model_where() == "Ready/WorkloadResolved"
        spec = (await hands.json(Deployment))["spec"]["template"]["spec"]
        assert [one["name"] for one in spec["initContainers"]] == ["fetch"]
        assert {"name": "models", "emptyDir": {}} in spec["volumes"]


async def test_another_quantization_than_promised_is_a_condition(autojump_clock):
    """A header that contradicts the spec is reported, and blocks nothing."""
    async with open_pods() as hands:
        await hands.create_model(quantization="Q8_0")
        await trio.sleep(SETTLED)
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"
        conditions = (await hands.cluster.model()).status.conditions
        [matches] = [one for one in conditions if one.type == "QuantizationMatches"]
        assert (matches.status, matches.reason) == ("False", "QuantizationMismatch")


@pytest.mark.parametrize("source", ["pvc://weights/model.gguf", "hf://org/repo/model.gguf", "builtin://demo"])
async def test_the_column_has_the_specs_label_until_a_header_was_read(autojump_clock, source):
    """`kubectl get models` shows the spec's label before and without a header, and the header's after."""
    async with open_pods() as hands:
        await hands.create_model(source=source, quantization="Q8_0")
        await hands.model_where()
        assert (await hands.cluster.columns(Model, "phi"))["Quant"] == "Q8_0"
        if not source.startswith("pvc"):
            await hands.finish_job()
            assert (await hands.model_where()).startswith("Ready")
            assert (await hands.cluster.columns(Model, "phi"))["Quant"] == "Q4_K_M"
