"""After any fault the objects are the same: over many scenarios, by every kind of `FAULTS`.

The points are sampled (`lengths.py`); LLMKUBE_FAULT_KINDS=7 LLMKUBE_FAULT_PLACES=100 tries every one, which takes about
half an hour, and `-rA` shows how many.
"""

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any, Final

import attrs
import pytest
import trio

from controller.podcluster import KUBE, open_pods
from controller.podobjects import SETTINGS
from controller.scenarios import SCENARIOS
from lengths import FAULT_KINDS, FAULT_PLACES, QUIET_SECONDS
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import AlreadyExistsError, ApiError, ConflictError
from llmkube.k8s.reflector import RECHECK_SECONDS, Cache
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodMonitor,
)
from llmkube.k8s.workqueue import WorkQueue

KINDS = (
    Model, InferenceService, PersistentVolumeClaim, Job, Deployment, Service, HorizontalPodAutoscaler,
    PodDisruptionBudget, PodMonitor,
)  # fmt: skip
VOLATILE = {
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "lastUpdated", "generation",
    "observedGeneration", "clusterIP", "clusterIPs", "nodePort", "cacheVolume", "inference.llmkube.dev/applied",
}  # fmt: skip
"""Fields that differ from run to run; the applied digest covers the owner's uid."""

LONG_ENOUGH = 90.0
"""Seconds of virtual time: a watch that breaks is opened again within a few, a failed reconcile is tried again."""

OLD_ENOUGH = sum(RECHECK_SECONDS) + 15.0
"""Seconds after which a reflector no longer lists again because its first list was empty: a broken watch is resumed."""

FAULTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "crash before a write": ("crash_at", {}),
    "crash after a write": ("crash_at", {"crash_after": True}),
    "crash, and begin from old reads": ("crash_at", {"crash_after": True, "stale": True}),
    "write refused": ("refuse_at", {}),
    "answer to a write lost": ("lose_at", {}),
    "watch breaks before an event": ("break_at", {}),
    "watch is forgotten before an event": ("forget_at", {}),
}
"""Each fault with the setting of its place in a scenario, and its further settings.

Each kind except stale reads shows a defect below; for stale reads no such defect is known.
"""

AT_EVENTS: Final = frozenset({"break_at", "forget_at"})
"""Their places are counted in events of watches, those of the others in changes."""


@attrs.frozen
class End:
    """The end of a scenario: its lasting objects, and the changes and events that the controller saw."""

    objects: list
    changes: int
    events: int


def lasting(value):
    """Return an object without the fields that differ from run to run."""
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if name not in VOLATILE}
    return [lasting(one) for one in value] if isinstance(value, list) else value


async def play(scenario, **faults):
    """Act by act with these faults, which start in the first; nothing is written in the idle time after the last."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        network = hands.cluster.faults
        for name, value in faults.items():
            setattr(network, name, value)
        settings = ControllerSettings(host_accelerators=frozenset({"metal"}), workloads=SETTINGS)
        nursery.start_soon(hands.cluster.run_again, settings)
        kubernetes = await nursery.start(run_in_scope, hands.run_kubernetes)
        others = await nursery.start(run_in_scope, run_others, hands) if network.stale else kubernetes
        await trio.sleep(OLD_ENOUGH)
        network.events = 0
        for act in SCENARIOS[scenario]:
            await act(hands)
            await trio.sleep(LONG_ENOUGH)
        kubernetes.cancel()
        others.cancel()
        await trio.sleep(1)
        changes, events, revision = network.changes, network.events, network.store.revision
        await trio.sleep(QUIET_SECONDS)
        assert network.store.revision == revision, "something was written although nothing happened"
        assert not hands.cluster.reconciles("model", "error") + hands.cluster.reconciles("inferenceservice", "error")
        objects = [lasting(one) for kind in KINDS for one in await everything(hands, kind)]
        nursery.cancel_scope.cancel()
    return End(objects, changes, events)


async def everything(hands, kind):
    try:
        return [encode(one) for one in (await hands.client.list(kind, namespace="ml")).items]
    except ApiError:  # a kind that is not installed
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


def points(fault, end, drawn):
    """The faults of one kind to try, at some of its places, from a random one."""
    place, besides = FAULTS[fault]
    count = end.events if place in AT_EVENTS else end.changes
    tried = min(count, FAULT_PLACES)
    return [{place: 1 + (drawn + number * count // tried) % count, **besides} for number in range(tried)]


@pytest.mark.ci
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_objects_are_the_same_after_any_fault(scenario, autojump_clock):
    """A controller may die before or after any write, lose any event, start from stale reads: the end is the same."""
    expected = await play(scenario)
    assert expected.objects
    nth = list(SCENARIOS).index(scenario)
    elsewhere, tried = [], {}
    for number, fault in islice(cycle(enumerate(FAULTS)), FAULT_KINDS * nth, FAULT_KINDS * (nth + 1)):
        tried[fault] = points(fault, expected, 7 * nth + 5 * number)
        elsewhere += [one for one in tried[fault] if (await play(scenario, **one)).objects != expected.objects]
    print(f"{scenario}:", ", ".join(f"{fault} {len(some)}" for fault, some in tried.items()))  # noqa: T201 (for -rA)
    assert elsewhere == []


# -- defects that the sweep must notice -------------------------------------------------------------------------------


async def _insist_on_a_new_claim(self, obj, *, original=Client.create, **how):
    """A controller that ignores the progress of its predecessor."""
    try:
        return await original(self, obj, **how)
    except AlreadyExistsError as error:
        raise error if obj.RESOURCE is not PersistentVolumeClaim.RESOURCE else ConflictError(str(error)) from error


def _give_up(self, key):
    """A queue that retries nothing, and waits for an event."""
    return 0.0


@asynccontextmanager
async def _watch_from_now(self, kind, *, resource_version, original=Client.open_watch, **how):
    """A reflector that resumes at the server's version, and not at its own."""
    listing = await self.list(kind, namespace=how["namespace"], label_selector=how["label_selector"])
    async with original(self, kind, resource_version=listing.resource_version, **how) as watch:
        yield watch


def _keep_what_is_known(self, listing, *, original=Cache.replace):
    """A list after a gap that adds new objects, and does not update known ones."""
    known = {key: encode(found) for key, found in self.items()}
    return original(self, attrs.evolve(listing, raw=tuple(known.get(Key.of(raw), raw) for raw in listing.raw)))


@attrs.frozen
class Defect:
    """A faulty replacement of a function, and the kind of fault that shows it, often at the place `begin`."""

    fault: str
    scenario: str
    place: type
    function: str
    instead: Callable
    begin: int = 1


DEFECTS = (
    Defect("crash before a write", "labels come and go", Client, "create", _insist_on_a_new_claim),
    Defect("crash after a write", "labels come and go", Client, "create", _insist_on_a_new_claim),
    Defect("write refused", "labels come and go", WorkQueue, "retry_later", _give_up, begin=17),
    Defect("answer to a write lost", "labels come and go", Client, "create", _insist_on_a_new_claim),
    Defect("watch breaks before an event", "labels come and go", Client, "open_watch", _watch_from_now),
    Defect("watch is forgotten before an event", "labels come and go", Cache, "replace", _keep_what_is_known, begin=9),
)


def places(defect, end):
    """Every place, from `begin` on and around: the defect's place moves when a controller changes."""
    place, besides = FAULTS[defect.fault]
    count = end.events if place in AT_EVENTS else end.changes
    return [{place: 1 + (defect.begin - 1 + number) % count, **besides} for number in range(count)]


@pytest.mark.soak
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.fault)
async def test_the_sweep_notices_a_defect(defect, autojump_clock, monkeypatch):
    """A controller with the defect ends elsewhere, or fails, after one of the faults, and only then."""
    expected = await play(defect.scenario)
    monkeypatch.setattr(defect.place, defect.function, defect.instead)
    assert (await play(defect.scenario)).objects == expected.objects
    noticed, tried = False, iter(places(defect, expected))
    while not noticed and (fault := next(tried, None)):
        try:
            noticed = (await play(defect.scenario, **fault)).objects != expected.objects
        except* AssertionError:
            noticed = True
    assert noticed
