"""Weights go with their volume: a claim that is made anew is filled anew."""

import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Job, PersistentVolumeClaim

CLAIM = Key("ml", "llmkube-model-cache")


async def test_a_claim_that_was_deleted_is_made_and_filled_again(autojump_clock):
    """The Model waits for a new Job, although the old one's result is still there; then it is Ready, and stays it."""
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

        await hands.finish_job()
        await trio.sleep(SETTLED)
        assert await hands.model_where() == "Ready/ModelReady"
        assert (await hands.cluster.model()).status.cache_volume == new.metadata.uid
        assert (await hands.json(Deployment))["metadata"]["generation"] == generation
        writes = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert len(hands.cluster.writes) == writes


async def test_an_admins_own_claim_is_filled_once(autojump_clock):
    """A claim of the right name without our label is used as it is, and what is on it counts: one Job, then quiet."""
    async with open_pods() as hands:
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM.name, "namespace": "ml"},
        }
        access = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
        await hands.client.apply(PersistentVolumeClaim, {**claim, "spec": access}, field_manager="admin")
        await hands.bring_up()
        [job] = (await hands.client.list(Job, namespace="ml")).items
        writes = len(hands.cluster.writes)
        await trio.sleep(1800)
        assert (await hands.model_where(), await hands.where()) == ("Ready/ModelReady", "Ready/InferenceReady")
        assert [one.metadata.uid for one in (await hands.client.list(Job, namespace="ml")).items] == [job.metadata.uid]
        assert len(hands.cluster.writes) == writes
        assert (await hands.cluster.model()).status.cache_volume


async def test_other_claims_are_none_of_our_business(autojump_clock):
    """A user's claim of the namespace comes and goes without anybody being asked to fetch again."""
    async with open_pods() as hands:
        await hands.bring_up()
        [before] = (await hands.client.list(Job, namespace="ml")).items
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine", "namespace": "ml"}}
        access = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await hands.client.apply(PersistentVolumeClaim, {**claim, "spec": access}, field_manager="user")
        await hands.client.delete(PersistentVolumeClaim, Key("ml", "mine"))
        await trio.sleep(SETTLED)
        [after] = (await hands.client.list(Job, namespace="ml")).items
        assert after.metadata.uid == before.metadata.uid
        assert await hands.model_where() == "Ready/ModelReady"
