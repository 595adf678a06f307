"""Existing objects are compared with desired ones as an API server would store them, and no further."""

import pytest
import trio

from controller.cluster import SETTLED, open_cluster
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS, cluster_model, plan, pod_service
from lengths import sample_rows
from llmkube.controller.informers import PERMISSIONS
from llmkube.controller.render.jobs import fetch_job
from llmkube.controller.render.manifests import WantedPods, deployment, kubernetes_service
from llmkube.controller.writes import owned_objects
from llmkube.controller.writes.owned_kinds import INSTALL_POLL_SECONDS
from llmkube.controller.writes.owned_objects import (
    REFUSED_RETRY_SECONDS,
    OwnedObjects,
    differs_in_status_only,
    is_subset,
)
from llmkube.k8s.builtins import ConfigMap, EndpointSlice, Service
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ConflictError, NameTakenError
from llmkube.k8s.informer import Informer
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import (
    Deployment,
    HTTPRoute,
    Job,
    LeaderWorkerSet,
    NetworkPolicy,
    PodMonitor,
    ServiceLevelObjective,
)


@pytest.mark.parametrize(
    ("wanted", "there", "same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": {}}, {}, True),
        ({"a": []}, {"a": None}, True),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": {"b": 1}}, {"a": "text"}, False),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, True),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "2"}}, False),
        ({"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi"}}, True),
        ({"sizeLimit": "1024Mi"}, {"sizeLimit": "1Gi"}, True),
        ({"limits": {"cpu": "1"}}, {"limits": {}}, False),
        ({"env": [{"value": "1000m"}]}, {"env": [{"value": "1"}]}, False),
    ],
)
def test_additions_and_spellings_are_no_difference(wanted, there, same):
    """Additional fields are ignored, quantities are compared by value, and everything else has to be equal."""
    assert is_subset(wanted, there) is same


LIVE = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "chat",
        "namespace": "ml",
        "uid": "one",
        "resourceVersion": "5",
        "labels": {"app": "chat"},
        "annotations": {"note": "x"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b", "controller": True}],
    },
    "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": "a"}]}}},
    "status": {"replicas": 1},
}


@pytest.mark.parametrize(
    ("part", "change", "alone"),
    [
        ("metadata", {}, True),
        ("metadata", {"resourceVersion": "6"}, True),
        ("status", {"readyReplicas": 1}, True),
        ("metadata", {"resourceVersion": "6", "uid": "two"}, False),
        ("metadata", {"resourceVersion": "6", "labels": {}}, False),
        ("metadata", {"resourceVersion": "6", "annotations": {"note": "y"}}, False),
        ("metadata", {"resourceVersion": "6", "ownerReferences": []}, False),
        ("metadata", {"resourceVersion": "6", "deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ("spec", {"replicas": 2}, False),
        ("spec", {"template": {"spec": {"containers": [{"image": "b"}]}}}, False),
    ],
)
def test_a_change_of_state_alone_needs_no_comparison(part, change, alone):
    """Status and version may differ; fields that a manifest may set, or that forbid a write, may not."""
    other = {**LIVE, "metadata": {**LIVE["metadata"], "resourceVersion": "6"}}
    other[part] = {**other[part], **change}
    assert differs_in_status_only(decode(Deployment, LIVE), decode(Deployment, other)) is alone


class Recording:
    """A client that records its requests."""

    def __init__(self, client):
        self.client = client
        self.calls = []

    async def get(self, kind, key):
        self.calls.append("get")
        return await self.client.get(kind, key)

    async def apply(self, kind, manifest, *, field_manager):
        self.calls.append("apply")
        return await self.client.apply(kind, manifest, field_manager=field_manager)


async def owner(cluster, **spec):
    """The service on the server: objects without an owner would be collected."""
    await cluster.create_service(**spec)
    return await cluster.service()


async def test_a_lagging_cache_causes_no_second_write(autojump_clock):
    """Our object is known from the server's response, before any watch delivers it; it is not read first."""
    async with open_cluster() as cluster:
        client = Recording(cluster.client)
        owned = OwnedObjects(client, Informer(Service))
        manifest = kubernetes_service(await owner(cluster), plan())
        first = await owned.ensure(manifest)
        assert await owned.ensure(manifest) == first
        assert client.calls == ["apply"]


async def test_own_objects_are_known_until_another_program_changes_them(autojump_clock):
    """The result of a write is our own; an edit, or an object of another program, is not."""
    async with open_cluster() as cluster:
        owned = OwnedObjects(cluster.client, Informer(Service))
        first = await owned.ensure(kubernetes_service(await owner(cluster), plan()))
        assert owned.is_own(first)
        labelled = await cluster.client.patch(Service, first.key, {"metadata": {"labels": {"edited": "yes"}}})
        assert not owned.is_own(labelled)
        assert not OwnedObjects(cluster.client, Informer(Service)).is_own(first)


SAME = {"app": "chat", "inference.llmkube.dev/service": "chat"}


def render(kind, service):
    """The desired object of this kind."""
    return {
        Service: lambda: kubernetes_service(service, plan()),
        Deployment: lambda: deployment(service, plan(), SETTINGS, WantedPods()),
        Job: lambda: fetch_job(cluster_model(), SETTINGS),
    }[kind]()


def stranger(kind, key, spec):
    return decode(kind, {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": spec})


STRANGERS = [
    pytest.param(Service, {"ports": [{"port": 9, "name": "theirs", "protocol": "TCP"}]}, id="service-without-selector"),
    pytest.param(Service, {"clusterIP": "None", "selector": SAME}, id="service-with-our-selector"),
    pytest.param(Job, {"suspend": True}, id="job"),
    pytest.param(Deployment, {"paused": True, "selector": {"matchLabels": SAME}}, id="deployment"),
]


@pytest.mark.parametrize(("kind", "spec"), STRANGERS)
async def test_a_strangers_object_that_sets_none_of_our_fields_is_not_changed(autojump_clock, kind, spec):
    """An object that an apply would merge with, without a conflict, is found to be a stranger's, and not changed."""
    async with open_pods() as hands:
        client = hands.client
        wanted = render(kind, await owner(hands.cluster))
        key = Key.of(wanted)
        before = await client.create(stranger(kind, key, spec), field_manager="somebody")
        with pytest.raises(NameTakenError, match=r"does not belong to this \w+; rename the \w+,"):
            await OwnedObjects(client, Informer(kind)).ensure(wanted)
        assert await client.get(kind, key) == before
        merged = await client.apply(kind, wanted, field_manager="who does not look", force=False)
        assert merged.metadata.owner_references, "the case is pointless: an apply would have been a conflict"


async def test_an_object_that_vanishes_is_created_at_the_next_attempt(autojump_clock):
    """A stranger's object that is deleted before we request it is a conflict: the apply is retried."""
    async with open_cluster() as cluster:
        manifest = kubernetes_service(await owner(cluster), plan())
        await cluster.client.create(stranger(Service, Key.of(manifest), {"ports": [{"port": 9}]}))
        client = Recording(cluster.client)
        owned = OwnedObjects(client, Informer(Service))

        async def vanish(kind, key):
            await cluster.client.delete(kind, key)
            return await cluster.client.get(kind, key)

        client.get = vanish
        with pytest.raises(ConflictError):
            await owned.ensure(manifest)
        assert (await owned.ensure(manifest)).metadata.owner_references


async def test_an_object_without_our_label_is_labelled_again(autojump_clock):
    """An object of this owner that the cache does not hold any more is applied, and not taken for a stranger's."""
    async with open_cluster() as cluster:
        manifest = kubernetes_service(await owner(cluster), plan())
        await OwnedObjects(cluster.client, Informer(Service)).ensure(manifest)
        bare = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
        await cluster.client.patch(Service, Key("ml", "chat"), bare, field_manager="somebody")
        client = Recording(cluster.client)
        again = await OwnedObjects(client, Informer(Service)).ensure(manifest)
        assert again.metadata.labels["app.kubernetes.io/managed-by"] == "llmkube-controller"
        assert client.calls == ["apply", "get", "apply"]


async def test_an_object_of_a_predecessor_is_recognised(autojump_clock):
    """An object of this owner that a cache does not have yet, and that is as desired, is not written again."""
    async with open_cluster() as cluster:
        manifest = kubernetes_service(await owner(cluster), plan())
        made = await OwnedObjects(cluster.client, Informer(Service)).ensure(manifest)
        client = Recording(cluster.client)
        found = await OwnedObjects(client, Informer(Service)).ensure(manifest)
        assert found.metadata.resource_version == made.metadata.resource_version
        assert client.calls == ["apply", "get"]


async def test_a_labelled_object_of_another_controller_is_known_before_the_cache_has_it(autojump_clock):
    """Its ready pods are in the status that the same reconcile writes."""
    async with open_cluster() as cluster:
        service = await owner(cluster)
        manifest = kubernetes_service(service, plan())
        manifest = {**manifest, "metadata": {**manifest["metadata"], "labels": {"team": "theirs"}, "annotations": {}}}
        await cluster.client.apply(Service, manifest, field_manager="another")
        owned, key = OwnedObjects(cluster.client, Informer(Service)), Key("ml", "chat")
        assert owned.get(key) is None
        await owned.label_predecessors(key, service.metadata.uid)
        assert owned.get(key).metadata.labels["app.kubernetes.io/managed-by"] == "llmkube-controller"
        taken = await owned.ensure(kubernetes_service(service, plan()))
        assert "team" not in taken.metadata.labels


async def test_a_write_in_between_is_not_overwritten(autojump_clock):
    """A change onto an object that is newer than the one compared is a conflict, and changes nothing."""
    async with open_cluster() as cluster:
        owned = OwnedObjects(cluster.client, Informer(Service))
        await owned.ensure(kubernetes_service(await owner(cluster), plan()))
        await cluster.client.patch(Service, Key("ml", "chat"), {"metadata": {"labels": {"seen": "no"}}})
        with pytest.raises(ConflictError):
            await owned.ensure(kubernetes_service(await owner(cluster, endpoint={"port": 9000}), plan()))
        assert (await cluster.client.get(Service, Key("ml", "chat"))).spec.ports[0].port == 8080


async def test_an_object_that_changed_is_not_removed(autojump_clock):
    """A late removal of an object that has changed is a conflict, and it stays."""
    async with open_cluster() as cluster:
        owned, key = OwnedObjects(cluster.client, Informer(Service)), Key("ml", "chat")
        service = await owner(cluster)
        await owned.ensure(kubernetes_service(service, plan()))
        await cluster.client.patch(Service, key, {"metadata": {"labels": {"seen": "no"}}})
        with pytest.raises(ConflictError):
            await owned.remove(key, service.metadata.uid)
        assert await cluster.client.get(Service, key)


async def test_a_predecessors_object_is_left_to_the_collector(autojump_clock):
    """An object with another owner of the same name is neither changed nor deleted."""
    async with open_cluster() as cluster:
        owned = OwnedObjects(cluster.client, Informer(Service))
        await owned.ensure(kubernetes_service(await owner(cluster), plan()))
        with pytest.raises(NameTakenError, match="another InferenceService"):
            await owned.ensure(kubernetes_service(pod_service(uid="new"), plan()))
        await owned.remove(Key("ml", "chat"), "new")
        assert await cluster.client.get(Service, Key("ml", "chat"))


UNHEARD_SECONDS = 30.0


async def replaced_without_events(hands, owner, child, *, again=True):
    """Delete and recreate an object while no watch delivers; return how often its child was created in between."""
    faults = hands.cluster.faults
    name = {Model: "phi", InferenceService: "chat"}[owner]
    made = []

    def count(call):
        if call.resource == child.RESOURCE.plural and "create" in call.verbs:
            made.append(call)
            if len(made) > 20:  # else it would continue for ever without any time passing
                faults.delays[call.name] = 1.0

    faults.unheard.add(owner.RESOURCE.plural)
    faults.notice = count
    await hands.client.patch(owner, Key("ml", name), {"metadata": {"finalizers": None}})
    await hands.client.delete(owner, Key("ml", name), propagation="Background")
    if again:
        await (hands.create_model() if owner is Model else hands.create_service())
    await trio.sleep(UNHEARD_SECONDS)
    faults.notice = None
    faults.unheard.clear()
    await trio.sleep(UNHEARD_SECONDS)
    return len(made)


async def make_service(hands):
    """A service that is being created: its status has nothing new for now."""
    await hands.start()
    await hands.end_job()


@pytest.mark.parametrize("again", [True, False])
async def test_a_deleted_ready_service_gets_no_pods(again, autojump_clock):
    """Collected pods are not created again until the owner's deletion is seen; then a successor gets its own."""
    async with open_pods() as hands:
        await hands.bring_up()
        assert await replaced_without_events(hands, InferenceService, Deployment, again=again) == 0
        assert await hands.exists(Deployment) is again


async def test_a_deleted_starting_service_gets_no_pods(autojump_clock):
    """The status has nothing new, so that no refused status shows the deletion."""
    async with open_pods() as hands:
        await make_service(hands)
        assert await replaced_without_events(hands, InferenceService, Deployment) == 0
        assert await hands.where() == "Creating/Creating"


async def test_a_deleted_model_is_not_fetched_again(autojump_clock):
    """The Job of a Model is not created again either."""
    async with open_pods() as hands:
        await hands.start()
        assert await replaced_without_events(hands, Model, Job) == 0
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"


async def test_without_a_check_of_the_owner_controller_and_collector_take_turns(autojump_clock, monkeypatch):
    """A controller that creates every vanished object again is noticed."""

    async def believe(*_):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(OwnedObjects, "_confirm_owner", believe)
    async with open_pods() as hands:
        await make_service(hands)
        assert await replaced_without_events(hands, InferenceService, Deployment) > 20


CHAT = Key("ml", "chat")
ELSEWHERE = {ConfigMap, NetworkPolicy, LeaderWorkerSet, EndpointSlice}
"""Kinds of routers, groups of pods and services at zero, by the same class; `test_routers.py` covers a taken name."""

MADE = [one.kind for one in PERMISSIONS if "create" in one.verbs and one.kind not in ELSEWHERE]
EVERYTHING = {
    "replicas": 2,
    "autoscaling": {"maxReplicas": 3},
    "slo": {"objective": "99"},
    "endpoint": {"gateway": {"enabled": True, "gatewayRef": {"name": "edge"}}},
}


async def bring_up_in_a_race(hands, kind):
    """Bring a service up while a stranger races the controller for one object; return that, before and after."""
    await hands.install(PodMonitor, ServiceLevelObjective, HTTPRoute)
    await trio.sleep(INSTALL_POLL_SECONDS)
    faults = hands.cluster.faults
    faults.latecomers.add(kind.RESOURCE.plural)
    await hands.start(**EVERYTHING)
    if kind is not Job:
        await hands.end_job()
    [before] = faults.strangers
    key = Key.of(before)
    return key, before, await hands.client.get_json(kind.RESOURCE.path("ml", key.name))


@pytest.mark.parametrize("kind", sample_rows(MADE), ids=lambda kind: kind.RESOURCE.kind)
async def test_a_strangers_late_object_is_kept(kind, autojump_clock):
    """A stranger's object stays unchanged and the name is reported as taken; once it is deleted, ours is created."""
    async with open_pods() as hands:
        key, before, after = await bring_up_in_a_race(hands, kind)
        assert after == before
        where = hands.model_where if kind is Job else hands.where
        assert await where() == "Failed/NameTaken"
        await hands.client.delete(kind, key)
        await trio.sleep(REFUSED_RETRY_SECONDS + SETTLED)
        assert (await hands.json(kind, key.name))["metadata"]["ownerReferences"]
        assert await where() != "Failed/NameTaken"


async def test_objects_of_a_predecessor_are_waited_for(autojump_clock):
    """A service that was deleted and recreated at once is Pending, not Failed, until the collector is done."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.client.patch(Deployment, CHAT, {"metadata": {"finalizers": ["example.org/slow"]}})
        await hands.client.delete(InferenceService, CHAT, propagation="Background")
        await hands.create_service()
        assert await hands.where() == "Pending/NameTaken"
        conditions = (await hands.cluster.service()).status.conditions
        assert {one.type: (one.status, one.reason) for one in conditions}["Accepted"] == ("True", "Accepted")
        await hands.client.patch(Deployment, CHAT, {"metadata": {"finalizers": None}})
        assert await hands.where() == "Creating/Creating"


@pytest.mark.parametrize("kind", sample_rows(MADE), ids=lambda kind: kind.RESOURCE.kind)
async def test_without_a_version_the_late_object_is_overwritten(kind, autojump_clock, monkeypatch):
    """A controller that creates objects by a plain apply adopts the stranger's: the test above notices the race."""
    monkeypatch.setattr(owned_objects, "NO_VERSION", "")
    async with open_pods() as hands:
        _, before, after = await bring_up_in_a_race(hands, kind)
        assert after != before
