"""Whatever breaks, and wherever, the same objects come of it: crashes, broken watches, stale reads, over many stories.

The points are sampled; LLMKUBE_SWEEP=whole tries every one (some minutes).
"""

import os
from collections.abc import Callable

import attrs
import pytest
import trio

from controller.podcluster import KUBE, open_pods
from controller.podobjects import SETTINGS
from controller.stories import STORIES
from llmkube.controller.fetching import Fetching
from llmkube.controller.render.storage import cache_claim
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ApiError
from llmkube.k8s.reflector import Cache
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodMonitor,
)

KINDS = (
    Model, InferenceService, PersistentVolumeClaim, Job, Deployment, Service, HorizontalPodAutoscaler,
    PodDisruptionBudget, PodMonitor,
)  # fmt: skip
VOLATILE = {
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "lastUpdated", "generation",
    "observedGeneration", "clusterIP", "clusterIPs", "nodePort", "cacheVolume", "inference.llmkube.dev/applied",
}  # fmt: skip
"""What differs from run to run; the digest that is applied covers the owner's uid."""

LONG_ENOUGH = 90.0
"""Seconds of virtual time: a watch that breaks is opened again within a few, a failed reconcile is tried again."""

QUIET = 1800.0
WHOLE = os.environ.get("LLMKUBE_SWEEP") == "whole"


@attrs.frozen
class End:
    """How a story ended: its lasting objects, and how many changes and events the controller saw on the way."""

    objects: list
    changes: int
    events: int


def lasting(value):
    """What is left of an object without what differs from run to run."""
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if name not in VOLATILE}
    return [lasting(one) for one in value] if isinstance(value, list) else value


async def play(story, *, quiet_seconds=60.0, **faults):
    """Act by act with these faults; nothing is written in the quiet after the last."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        network = hands.cluster.faults
        for name, value in faults.items():
            setattr(network, name, value)
        settings = ControllerSettings(host_accelerators=frozenset({"metal"}), workloads=SETTINGS)
        nursery.start_soon(hands.cluster.run_again, settings)
        kubernetes = await nursery.start(run_in_scope, hands.run_kubernetes)
        others = await nursery.start(run_in_scope, run_others, hands) if network.stale else kubernetes
        for act in STORIES[story]:
            await act(hands)
            await trio.sleep(LONG_ENOUGH)
        kubernetes.cancel()
        others.cancel()
        await trio.sleep(1)
        changes, events, revision = network.changes, network.events, network.store.revision
        await trio.sleep(quiet_seconds)
        assert network.store.revision == revision, "something was written although nothing happened"
        assert not hands.cluster.reconciles("model", "error") + hands.cluster.reconciles("inferenceservice", "error")
        objects = [lasting(one) for kind in KINDS for one in await everything(hands, kind)]
        nursery.cancel_scope.cancel()
    return End(objects, changes, events)


async def everything(hands, kind):
    try:
        return [encode(one) for one in (await hands.client.list(kind, namespace="ml")).items]
    except ApiError:  # a kind that nobody has installed
        return []


async def run_in_scope(run, *args, task_status):
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await run(*args)


async def run_others(hands):
    """The rest of the cluster writes, too: the newest version of everything is not ours for long."""
    number = 0
    while True:
        await trio.sleep(5)
        number += 1
        spec = {"type": "ExternalName", "externalName": f"n{number}.local"}
        manifest = {"metadata": {"name": "others", "namespace": "default"}, "spec": spec}
        await hands.client.apply(Service, manifest, field_manager=KUBE)


def points(count, drawn):
    """The places to try, from 1: all of them, or one that depends on what is drawn."""
    return range(1, count + 1) if WHOLE else (1 + drawn % count,)


@pytest.mark.parametrize("story", STORIES)
async def test_the_same_objects_come_of_it(story, autojump_clock):
    """A controller may die before or after any write, lose any event, and begin from old reads: the end is the same.

    Afterwards half an hour passes without a write.
    """
    expected = await play(story, quiet_seconds=QUIET)
    assert expected.objects
    drawn = 7 * list(STORIES).index(story)
    faults = [
        *({"crash_at": at} for at in points(expected.changes, drawn)),
        *({"crash_at": at, "crash_after": True} for at in points(expected.changes, drawn + 5)),
        *({"crash_at": at, "stale": True} for at in points(expected.changes, drawn + 10)),
        *({"break_at": at} for at in points(expected.events, drawn)),
        *({"forget_at": at} for at in points(expected.events, drawn + 30)),
    ]
    assert [fault for fault in faults if (await play(story, **fault)).objects != expected.objects] == []


# -- what the sweep must notice ---------------------------------------------------------------------------------------


async def _insist_on_a_new_claim(self, namespace):
    """A controller that forgets that its predecessor may have come this far."""
    claim = decode(PersistentVolumeClaim, cache_claim(namespace, self.cluster.workloads))
    await self.cluster.client.create(claim, field_manager="llmkube-controller")


def _keep_what_is_gone(self, key):
    return False


@attrs.frozen
class Defect:
    """A function that does something else instead, and the fault that shows it, from this point on."""

    story: str
    place: type
    function: str
    instead: Callable
    fault: str
    begin: int


@pytest.mark.parametrize(
    "defect",
    [
        Defect("labels come and go", Fetching, "_ensure_cache", _insist_on_a_new_claim, "crash_at", begin=1),
        Defect("all is taken away", Cache, "_forget", _keep_what_is_gone, "forget_at", begin=90),
    ],
    ids=lambda defect: defect.function,
)
async def test_the_sweep_notices_a_defect(defect, autojump_clock, monkeypatch):
    """A controller with the defect ends elsewhere, or errs, after one of the faults."""
    expected = await play(defect.story)
    monkeypatch.setattr(defect.place, defect.function, defect.instead)
    at, noticed = defect.begin, False
    while not noticed and at < defect.begin + 25:
        try:
            noticed = (await play(defect.story, **{defect.fault: at})).objects != expected.objects
        except* AssertionError:
            noticed = True
        at += 1
    assert noticed
