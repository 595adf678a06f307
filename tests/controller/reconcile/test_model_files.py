"""A Job brings what its Model asks for now, its own pods alone speak for it, and a Model stays while it is used."""

import json

import pytest
import trio
from prometheus_client import CollectorRegistry

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import FETCHED
from llmkube.controller.reconcile.pod_models import FINALIZER
from llmkube.controller.render.labels import MANAGED_BY
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import Job

TOLERATION = {"key": "gpu", "operator": "Exists"}
REFUSED = '{"reason":"Unauthorized","message":"the hub wants a token"}'


async def only_job(hands):
    [job] = (await hands.client.list(Job, namespace="ml")).items
    return job


# -- an edit reaches the Job -------------------------------------------------------------------------------------------


async def test_a_secret_that_was_lacking_is_tried_at_once(autojump_clock):
    """A fetch that was refused is made anew with the Secret that the Model names since, and only then."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
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
async def test_an_edit_replaces_a_job_that_gets_nowhere(autojump_clock, state):
    """Tolerations reach a Job whose pod has not started; one that fetches, or has fetched, goes on as it is."""
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


# -- who speaks for a Job ----------------------------------------------------------------------------------------------


async def make_strangers_pod(hands, status):
    """Begin to fetch a Model, and make a pod that has the label of its Job and is somebody's; return the Job."""
    await hands.create_model(prefetch=True)
    await trio.sleep(SETTLED)
    job = await only_job(hands)
    labels = {MANAGED_BY: CONTROLLER_FIELD_MANAGER, "batch.kubernetes.io/job-name": job.key.name}
    await hands.make_pod("a-pod", labels, status)
    return job


async def test_a_pod_that_only_has_the_label_says_nothing(autojump_clock):
    """What somebody's pod tells under the Job's label is neither a result nor a failure."""
    async with open_pods() as hands:
        theirs = FETCHED.replace('"model.gguf"', '"theirs.gguf"')
        ended = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "message": theirs}}}
        await make_strangers_pod(hands, {"phase": "Succeeded", "containerStatuses": [ended]})
        assert await hands.model_where() == "Pending/Pending"
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"
        assert (await hands.cluster.model()).status.path.endswith("/model.gguf")


async def test_a_job_is_run_again_though_a_strangers_pod_has_its_label(autojump_clock):
    """A result that no pod of the Job's own tells any more is asked for anew."""
    async with open_pods() as hands:
        job = await make_strangers_pod(hands, {"phase": "Running"})
        await hands.finish_job(with_pod=False)
        await trio.sleep(SETTLED)
        assert (await only_job(hands)).metadata.uid != job.metadata.uid


# -- the finalizer -----------------------------------------------------------------------------------------------------


async def test_a_controller_without_pods_lets_go_of_what_one_with_pods_has_kept(autojump_clock):
    """Once pods are switched off, a Model that was in use goes when it is deleted and nothing refers to it."""
    async with open_pods() as hands:
        await hands.bring_up()
        assert (await hands.cluster.model()).metadata.finalizers == (FINALIZER,)
        cluster = hands.cluster
        cluster.controller_scope.cancel()
        cluster.controller_scope, cluster.registry = trio.CancelScope(), CollectorRegistry()
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.run_controller, ControllerSettings(workloads=None))
            await hands.client.delete(Model, Key("ml", "phi"))
            await trio.sleep(SETTLED)
            assert await hands.exists(Model, "phi")
            await hands.client.delete(InferenceService, Key("ml", "chat"))
            await trio.sleep(SETTLED)
            assert not await hands.exists(Model, "phi")
            cluster.controller_scope.cancel()
