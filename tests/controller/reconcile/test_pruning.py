"""Folders of the volume are removed when nothing names them any more, and never before."""

from contextlib import asynccontextmanager

import attrs
import trio

from controller.cluster import SETTLED
from controller.podcluster import KUBE, open_pods
from controller.podobjects import FETCHED, SETTINGS
from k8s.api_calls import undeclared
from llmkube.controller.reconcile.pruning import RETENTION_SECONDS
from llmkube.controller.render.jobs import PRUNE_JOB
from llmkube.controller.render.model_sources import cache_key
from llmkube.controller.rights import PROGRAM
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Job, PersistentVolumeClaim, Pod

PRUNING = attrs.evolve(SETTINGS, prune_cache=True)
OTHER = "hf://org/repo/other.gguf"
LONG = RETENTION_SECONDS + 30


async def args(hands):
    job = await hands.json(Job, PRUNE_JOB)
    return job["spec"]["template"]["spec"]["containers"][0]["args"]


async def key_of(hands, name="phi"):
    return cache_key((await hands.cluster.model(name)).spec)


async def delete_all(hands):
    await hands.client.delete(InferenceService, Key("ml", "chat"))
    await hands.client.delete(Model, Key("ml", "phi"))
    await trio.sleep(SETTLED)


async def pod_of_deployment(hands, number):
    """Create a pod as the Deployment has it now."""
    template = (await hands.json(Deployment))["spec"]["template"]
    tag = {"name": f"chat-{number}", "namespace": "ml", "labels": template["metadata"]["labels"]}
    await hands.client.create(decode(Pod, {"metadata": tag, "spec": template["spec"]}), field_manager=KUBE)
    await hands.make_pod(f"chat-{number}", {}, {"phase": "Running"})


async def finish(hands):
    job = await hands.client.get(Job, Key("ml", PRUNE_JOB))
    await hands.finish_job(message='{"removed":[],"freedBytes":0}', job=job)
    await trio.sleep(SETTLED)


@asynccontextmanager
async def open_deleted():
    """A cluster that prunes, in which a Model and its service have just been deleted; yields its helpers."""
    async with open_pods(workloads=PRUNING) as hands:
        await hands.bring_up()
        await trio.sleep(60)
        await delete_all(hands)
        yield hands


async def test_the_folder_of_a_deleted_model_is_removed_after_its_time(autojump_clock):
    """Ten minutes after the deletion a Job removes only that folder, once; no additional right is used."""
    async with open_pods(workloads=PRUNING) as hands:
        await hands.bring_up()
        key = await key_of(hands)
        await trio.sleep(60)
        await delete_all(hands)
        await trio.sleep(RETENTION_SECONDS - 60)
        assert not await hands.exists(Job, PRUNE_JOB)
        await trio.sleep(90)
        assert await args(hands) == ["fetch", "--to", "/models", "--model-store", "/models/.store", "--prune", key]
        owner = (await hands.json(Job, PRUNE_JOB))["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("PersistentVolumeClaim", "llmkube-model-cache")
        await finish(hands)
        await trio.sleep(60)
        writes = len(hands.cluster.writes)
        await trio.sleep(2 * LONG)
        assert len(hands.cluster.writes) == writes
        assert undeclared(set(hands.cluster.faults.calls), PROGRAM) == set()


async def test_nothing_is_removed_without_the_setting(autojump_clock):
    """Without the setting no Job is ever created."""
    async with open_pods() as hands:
        await hands.bring_up()
        await trio.sleep(60)
        await delete_all(hands)
        await trio.sleep(10 * LONG)
        assert not await hands.exists(Job, PRUNE_JOB)


async def test_a_model_that_comes_back_keeps_its_weights(autojump_clock):
    """Deleted and created again within the time, or named by another Model: the folder stays."""
    async with open_deleted() as hands:
        await trio.sleep(RETENTION_SECONDS / 2)
        await hands.create_model("again")
        await trio.sleep(3 * LONG)
        assert not await hands.exists(Job, PRUNE_JOB)


async def test_an_old_source_stays_until_every_pod_is_another(autojump_clock):
    """After an edit the old folder stays while the new one is fetched, and while a pod of the old template runs."""
    async with open_pods(workloads=PRUNING) as hands:
        await hands.bring_up()
        old = await key_of(hands)
        await pod_of_deployment(hands, 1)
        await trio.sleep(60)
        await hands.create_model(source=OTHER)
        await trio.sleep(3 * LONG)
        assert not await hands.exists(Job, PRUNE_JOB)  # the new weights are not fetched yet
        await hands.finish_job()
        await trio.sleep(3 * LONG)
        assert not await hands.exists(Job, PRUNE_JOB)  # rolled out, but a pod is still there
        await hands.client.delete(Pod, Key("ml", "chat-1"))
        await pod_of_deployment(hands, 2)
        await trio.sleep(2 * LONG)
        assert (await args(hands))[-2:] == ["--prune", old]
        assert await key_of(hands) not in await args(hands)


async def test_a_strangers_pod_on_the_volume_blocks_pruning(autojump_clock):
    """A stranger's pod may read any folder; when it has ended, the folder is removed."""
    async with open_pods(workloads=PRUNING) as hands:
        await hands.bring_up()
        await trio.sleep(60)
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "llmkube-model-cache"}}
        body = {"metadata": {"name": "notebook", "namespace": "ml"}, "spec": {"volumes": [volume]}}
        await hands.client.create(decode(Pod, body), field_manager=KUBE)
        await delete_all(hands)
        await trio.sleep(3 * LONG)
        assert not await hands.exists(Job, PRUNE_JOB)
        await hands.make_pod("notebook", {}, {"phase": "Succeeded"})
        await trio.sleep(2 * LONG)
        assert await hands.exists(Job, PRUNE_JOB)


async def test_no_fetch_starts_while_folders_are_removed(autojump_clock):
    """A Model with that source that is created too late waits for the Job, and is fetched again after it."""
    async with open_deleted() as hands:
        await trio.sleep(LONG)
        assert await hands.exists(Job, PRUNE_JOB)
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(120)
        assert await hands.names(Job) == [PRUNE_JOB]
        assert await hands.model_where() == "Pending/Pending"
        await finish(hands)
        await trio.sleep(30)
        [job] = [one for one in (await hands.client.list(Job, namespace="ml")).items if one.key.name != PRUNE_JOB]
        await hands.finish_job(job=job, message=FETCHED)
        await trio.sleep(SETTLED)
        assert await hands.model_where() == "Ready/ModelReady"
        await trio.sleep(3 * LONG)
        jobs = (await hands.client.list(Job, namespace="ml")).items
        assert [job.key.name for job in jobs if not job.status.conditions] == []


async def test_an_unreadable_model_may_name_any_folder(autojump_clock, monkeypatch):
    """A Model that this version does not understand protects every folder of its namespace, while it exists."""
    async with open_deleted() as hands:
        whole = Client.list

        async def misread(self, kind, **place):
            listing = await whole(self, kind, **place)
            tag = {"name": "strange", "namespace": "ml", "resourceVersion": "1"}
            strange = {"metadata": tag, "spec": {"source": []}}
            return attrs.evolve(listing, raw=(*listing.raw, strange)) if kind is Model else listing

        with monkeypatch.context() as broken:
            broken.setattr(Client, "list", misread)
            await trio.sleep(3 * LONG)
            assert not await hands.exists(Job, PRUNE_JOB)
        await trio.sleep(2 * LONG)
        assert await hands.exists(Job, PRUNE_JOB)


async def test_a_volume_that_is_gone_is_forgotten(autojump_clock):
    """Deleting the claim has freed the folder: no Job is created for the next claim."""
    async with open_deleted() as hands:
        await hands.client.delete(PersistentVolumeClaim, Key("ml", "llmkube-model-cache"))
        await trio.sleep(60)
        await hands.create_model("new", source=OTHER)
        await hands.apply(modelRef="new")
        await hands.finish_job()
        await trio.sleep(3 * LONG)
        assert not await hands.exists(Job, PRUNE_JOB)
