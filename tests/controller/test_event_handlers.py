"""Each of many services costs the API server no more than a single one; unchanged objects cost it nothing."""

from collections import Counter

import trio

from controller.cluster import SETTLED, open_cluster
from controller.podcluster import open_pods
from llmkube.controller.event_handlers import HOST_STARTS_SECONDS
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, PersistentVolumeClaim

SERVICES = 25
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "weights", "namespace": "ml"},
    "spec": {"accessModes": ["ReadWriteOnce"]},
}


async def bring_up(hands):
    """Create the services at once on an existing Model; return the controller's requests for them."""
    await hands.client.apply(PersistentVolumeClaim, CLAIM, field_manager="user")
    await hands.bind("weights")
    await hands.create_model(source="pvc://weights/model.gguf")
    await trio.sleep(SETTLED)
    hands.cluster.faults.calls.clear()
    for number in range(SERVICES):
        await hands.create_service(f"chat-{number}")
    await trio.sleep(SETTLED)
    return asked(hands)


def asked(hands):
    """Requests since the calls were cleared, except for lists of collections."""
    return asked_by(hands.cluster)


def asked_by(cluster):
    """Requests of a cluster's controller, in the same form."""
    calls = [(max(call.verbs), call.resource) for call in cluster.faults.calls]
    return Counter(call for call in calls if call[0] not in ("list", "watch"))


async def test_a_new_service_costs_four_writes(autojump_clock):
    """Deployment, Service, budget and status are written once each, and nothing is read; the Model is shared."""
    async with open_pods() as hands:
        calls = await bring_up(hands)
        of_services = {("patch", "deployments"), ("patch", "services"), ("patch", "inferenceservices/status")}
        of_services.add(("patch", "poddisruptionbudgets"))
        assert {call: calls.pop(call) for call in of_services} == dict.fromkeys(of_services, SERVICES)
        assert calls.pop(("get", "persistentvolumeclaims")) <= 4
        assert not calls


async def test_a_service_that_gets_ready_costs_a_status_and_an_event(autojump_clock):
    """Readiness is written once as status and once as Event, and the budget that protected the start is deleted."""
    async with open_pods() as hands:
        await bring_up(hands)
        hands.cluster.faults.calls.clear()
        for number in range(SERVICES):
            await hands.roll_out(f"chat-{number}")
        await trio.sleep(SETTLED)
        costs = (("patch", "inferenceservices/status"), ("create", "events"), ("delete", "poddisruptionbudgets"))
        assert asked(hands) == dict.fromkeys(costs, SERVICES)


async def test_a_label_expedites_a_failed_reconcile(autojump_clock):
    """After failures in a row the next attempt is far away; a change of any kind may be its fix."""
    async with open_pods() as hands:
        await bring_up(hands)
        faults = hands.cluster.faults
        faults.refusals["inferenceservices/status"], faults.refused = "overtaken", (409, "Conflict")
        await hands.roll_out("chat-0")
        await trio.sleep(100)
        faults.refusals.clear()
        labels = {"metadata": {"labels": {"edited": "yes"}}}
        await hands.client.patch(InferenceService, Key("ml", "chat-0"), labels)
        await trio.sleep(0.5)
        assert (await hands.cluster.service("chat-0")).status.phase == "Ready"


async def test_a_label_costs_nothing(autojump_clock):
    """An edit that changes no spec, of services or of their Model, wakes no service; after it, drift is repaired."""
    async with open_pods() as hands:
        await bring_up(hands)
        hands.cluster.faults.calls.clear()
        looks = hands.cluster.reconciles("inferenceservice", "success")
        labels = {"metadata": {"labels": {"edited": "yes"}, "annotations": {"edited": "yes"}}}
        for number in range(SERVICES):
            await hands.client.patch(InferenceService, Key("ml", f"chat-{number}"), labels)
        await trio.sleep(SETTLED)
        assert not asked(hands)
        await hands.client.patch(Model, Key("ml", "phi"), labels)
        await trio.sleep(SETTLED)
        assert hands.cluster.reconciles("inferenceservice", "success") == looks
        hands.cluster.faults.calls.clear()
        await hands.client.patch(Deployment, Key("ml", "chat-0"), {"spec": {"replicas": 5}})
        await trio.sleep(SETTLED)
        assert (await hands.json(Deployment, "chat-0"))["spec"]["replicas"] == 1
        assert asked(hands) == {("patch", "deployments"): 1}


async def test_where_only_hosts_serve_a_new_service_is_reported_after_its_engine_has_started(autojump_clock):
    """A controller without nodes may share a process with the host; one with nodes creates pods without a pause."""
    async with open_cluster() as cluster:
        await cluster.create_service()
        await trio.sleep(HOST_STARTS_SECONDS / 2)
        assert ("patch", "inferenceservices/status") not in asked_by(cluster)
        await trio.sleep(HOST_STARTS_SECONDS)
        assert ("patch", "inferenceservices/status") in asked_by(cluster)
    async with open_pods() as hands:
        await hands.create_service("chat")
        await trio.sleep(HOST_STARTS_SECONDS / 2)
        assert ("patch", "inferenceservices/status") in asked(hands)
