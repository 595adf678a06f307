"""The controller follows hosts over a real API server in memory, and does nothing without a change."""

import functools
import random

import pytest
import trio
from structlog.testing import capture_logs

from controller.cluster import SETTLED, open_cluster, utcnow
from controller.objects import service
from controller.podcluster import open_pods
from controller.second_controller import Second
from llmkube.controller.operator import run_controller
from llmkube.controller.reconcile import inference_services
from llmkube.controller.reconcile.context import Context
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.writes.status_writer import PhaseChanges
from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.leases.lease import DURATION_SECONDS, HOLD_SECONDS, RENEW_SECONDS
from llmkube.k8s.resource import Key
from llmkube.k8s.watch import WatchEvent
from llmkube.k8s.wire.conditions import find_condition
from llmkube.k8s.wire.names import CLAIM_LABEL, CLAIMED_ANNOTATION, service_name, slice_name

CHAT, PHI = Key("ml", "chat"), Key("ml", "phi")
STUDIO_LEASE = Key("llmkube-system", "studio")


async def test_a_service_goes_from_nothing_to_ready_and_away(autojump_clock):
    """Each arrival (Model, host, file, engine, slice) changes the phase; a deletion ends it without an error."""
    async with open_cluster() as cluster:
        await cluster.create_service()
        assert await cluster.where() == "Pending/ModelNotFound"
        await cluster.create_model()
        assert await cluster.where() == "Pending/NoHost"
        assert (await cluster.model()).status.phase == "Pending"
        await cluster.renew()
        assert await cluster.where() == "Pending/NotClaimed"
        await cluster.claim()
        assert await cluster.where() == "Pending/Pending"
        await cluster.report_model("Fetching")
        assert await cluster.where() == "Pending/Fetching"
        assert (await cluster.model()).status.phase == "Copying"
        await cluster.report_model("Fetched")
        assert await cluster.where() == "Creating/Creating"
        model = await cluster.model()
        assert (model.status.phase, model.status.accelerator_ready) == ("Ready", True)
        ready_since = model.status.last_updated
        assert ready_since == find_condition(model.status.conditions, "Available").last_transition_time
        await cluster.report_service("Loaded", "Loading")
        await cluster.publish(ready=False)
        assert await cluster.where() == "Creating/Creating"
        await cluster.report_service("Loaded", "Loaded")
        await cluster.publish(ready=True)
        assert await cluster.where() == "Ready/InferenceReady"
        status = (await cluster.service()).status
        assert (status.replicas, status.ready_replicas, status.desired_replicas) == (1, 1, 1)
        assert status.endpoint == "http://chat.ml.svc.cluster.local:8080/v1/chat/completions"
        assert (status.model_ready, status.mode, status.effective_priority) == (True, "chat", 10_000)
        assert status.last_updated > ready_since
        await cluster.client.delete(InferenceService, CHAT)
        await cluster.client.delete(Model, PHI)
        await trio.sleep(60)
        assert cluster.reconciles("inferenceservice", "error") == cluster.reconciles("inferenceservice", "retry") == 0


async def test_the_agents_conditions_survive(autojump_clock):
    """Writing our conditions does not change the host's own ones."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        types = {one.type for one in (await cluster.service()).status.conditions}
        assert types == {"Loaded", "Available", "Progressing", "Degraded", "Suspended"}
        assert {one.type for one in (await cluster.model()).status.conditions} == {
            "Fetched",
            "Available",
            "Progressing",
            "Degraded",
            "QuantizationMatches",
        }


async def test_nothing_is_written_while_nothing_changes(autojump_clock):
    """An hour of lease renewals and of the controller's own events causes not one write and no reconcile."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run_host)
        await cluster.bring_up()
        assert await cluster.where() == "Ready/InferenceReady"
        writes, reconciles = list(cluster.writes), cluster.reconciles("inferenceservice", "success")
        await trio.sleep(3600)
        assert cluster.writes == writes
        assert cluster.reconciles("inferenceservice", "success") == reconciles
        nursery.cancel_scope.cancel()


async def test_one_change_is_one_write(autojump_clock):
    """The event of its own write wakes the controller, which then finds nothing to do."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        before = len(cluster.writes)
        await cluster.publish(ready=False)
        assert await cluster.where() == "Creating/Creating"
        assert cluster.writes[before:] == ["chat"]


async def test_a_successor_does_not_get_its_predecessors_status(autojump_clock):
    """A service that is replaced while its status is in flight has its own status only, after one refused write."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        cluster.faults.delays["status"] = 5.0
        await cluster.publish(ready=False)
        await trio.sleep(2)
        before = len(cluster.writes)  # counted when they arrive: this one is still in flight
        await cluster.client.delete(InferenceService, CHAT)
        cluster.faults.delays["status"] = 0.0
        await cluster.create_service(modelRef="nowhere")
        successor = await cluster.service()
        seen = []
        with trio.move_on_after(10):
            while True:
                seen.append((await cluster.service()).status)
                await trio.sleep(0.1)
        verdicts = {status.phase for status in seen}
        assert verdicts <= {"", "Pending"}
        assert await cluster.where() == "Pending/ModelNotFound"
        assert (await cluster.service()).metadata.uid == successor.metadata.uid
        assert cluster.writes[before:] == ["chat", "chat"]  # its own, and the late one of its predecessor
        assert cluster.reconciles("inferenceservice", "error") == 0


async def test_an_overtaken_write_is_not_a_hot_loop(autojump_clock):
    """A write between our read and our write costs us one refused write each time, and the end is right."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        cluster.faults.delays["status"] = 0.4
        before, retries = len(cluster.writes), cluster.reconciles("inferenceservice", "retry")
        for step in range(5):
            await cluster.publish(ready=bool(step % 2))
            await trio.sleep(0.2)
            await cluster.client.patch(InferenceService, CHAT, {"metadata": {"labels": {"step": str(step)}}})
            await trio.sleep(5)
        assert len(cluster.writes) - before == 10
        assert cluster.reconciles("inferenceservice", "retry") - retries == 5
        assert await cluster.where() == "Creating/Creating"
        await trio.sleep(600)
        assert len(cluster.writes) - before <= 12  # the host's Lease has expired in the meantime


@pytest.mark.parametrize("named", ["", "a/b/c", "/", "ml/chat/"])
async def test_a_claim_that_names_no_service_claims_nothing(autojump_clock, named):
    """An invalid Lease is logged, and the other ones still apply."""
    async with open_cluster() as cluster:
        metadata = {"name": "claim.x", "namespace": "llmkube-system", "labels": {CLAIM_LABEL: "x"}}
        claim = decode(Lease, {"metadata": {**metadata, "annotations": {CLAIMED_ANNOTATION: named}}})
        with capture_logs() as logs:
            await cluster.client.create(claim)
            await cluster.bring_up()
        assert await cluster.where() == "Ready/InferenceReady"
        lines = [line for line in logs if line["event"] == "claim ignored: no service named"]
        assert [line["lease"] for line in lines] == ["llmkube-system/claim.x"]


async def test_a_silent_host_loses_its_services(autojump_clock):
    """Forty seconds after the last renewal nothing is ready any more, whatever slices and conditions still claim."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await trio.sleep(40 - 2 * SETTLED)
        assert await cluster.where_now() == "Ready/InferenceReady"
        await trio.sleep(2 * SETTLED)
        assert await cluster.where() == "Pending/NoHost"
        status = (await cluster.service()).status
        assert (status.ready_replicas, status.phase) == (0, "Pending")
        available = find_condition(status.conditions, "Available")
        assert (available.status, available.reason) == ("False", "NoHost")
        assert not (await cluster.model()).status.accelerator_ready
        assert [each.conditions.ready for each in await cluster.endpoints()] == [False], "a cluster still routes to it"
        await cluster.renew()
        assert await cluster.where() == "Creating/Creating"
        await cluster.publish()
        assert await cluster.where() == "Ready/InferenceReady"


async def test_a_host_that_comes_back_in_time_keeps_its_endpoints(autojump_clock):
    """A slice that is published before the controller sees the renewed Lease stays in service."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await trio.sleep(60)
        assert await cluster.where() == "Pending/NoHost"
        cluster.faults.delays["leases"] = 3600.0
        await cluster.faults.cut()
        cluster.faults.down = False
        await cluster.renew()
        await cluster.publish()
        await trio.sleep(30)
        assert [each.conditions.ready for each in await cluster.endpoints()] == [True]


async def test_a_slice_without_a_host_is_ignored(autojump_clock):
    """A slice of ours without the name of a host is taken out of service, once."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.client.patch(
            EndpointSlice, Key("ml", "chat.studio"), {"metadata": {"labels": {"inference.llmkube.dev/host": None}}}
        )
        await trio.sleep(SETTLED)
        (piece,) = (await cluster.client.list(EndpointSlice)).items
        assert [each.conditions.ready for each in piece.endpoints] == [False]
        await trio.sleep(30)
        (again,) = (await cluster.client.list(EndpointSlice)).items
        assert again.metadata.resource_version == piece.metadata.resource_version


async def test_a_host_that_shuts_down_cleanly_is_not_waited_for(autojump_clock):
    """Deleting the Lease takes the host's services out at once."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.client.delete(Lease, STUDIO_LEASE)
        assert await cluster.where() == "Pending/NoHost"


async def test_an_outage_kills_no_host(autojump_clock):
    """Ten minutes without the API server, in which no Lease can change, never make a service NoHost."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run_host)
        await cluster.bring_up()
        assert await cluster.where() == "Ready/InferenceReady"
        before = len(cluster.writes)
        await cluster.faults.cut()
        await trio.sleep(600)
        cluster.faults.down = False
        await trio.sleep(120)
        assert await cluster.where_now() == "Ready/InferenceReady"
        assert cluster.writes[before:] == []
        nursery.cancel_scope.cancel()


async def test_after_an_outage_hosts_get_a_whole_lease_to_renew(autojump_clock):
    """A host that could not renew either gets its Lease's duration once the API server is back, and no more."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.faults.cut()
        await trio.sleep(600)
        cluster.faults.down = False
        await trio.sleep(35)
        assert await cluster.where_now() == "Ready/InferenceReady"
        await trio.sleep(60)
        assert await cluster.where_now() == "Pending/NoHost"


async def test_changes_during_an_outage_are_caught_up_with(autojump_clock):
    """A slice that became not ready while the controller was cut off shows in the status soon after."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run_host)
        await cluster.bring_up()
        await cluster.faults.cut()
        await cluster.publish(ready=False)
        await trio.sleep(300)
        assert await cluster.where_now() == "Ready/InferenceReady"
        cluster.faults.down = False
        await trio.sleep(60)
        assert await cluster.where_now() == "Creating/Creating"
        nursery.cancel_scope.cancel()


async def test_other_accelerators_are_ignored(autojump_clock):
    """A cuda Model and its service are never written; a service that moves to one stays unchanged."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.create_model("big", accelerator="cuda")
        await cluster.create_service("train", modelRef="big")
        await cluster.create_service("chat", modelRef="big")
        before = len(cluster.writes)
        await cluster.publish(ready=False)
        await trio.sleep(60)
        assert await cluster.where() == "Ready/InferenceReady"
        assert cluster.writes[before:] == ["phi"]  # the host is dead now, which affects only the metal Model
        assert not {"big", "train"} & set(cluster.writes)


async def test_a_missing_model_is_reported_for_every_kind_of_service(autojump_clock):
    """The accelerator of a missing Model is unknown."""
    async with open_cluster() as cluster:
        await cluster.create_service("train", modelRef="nowhere")
        assert await cluster.where("train") == "Pending/ModelNotFound"


@pytest.mark.parametrize("name", ["chat.v2", "7b", "x" * 70])
async def test_odd_names_are_woken_by_their_slices(autojump_clock, name):
    """A service whose Service has another name is still woken by its slices."""
    async with open_cluster() as cluster:
        await cluster.create_model()
        await cluster.create_service(name)
        await cluster.renew()
        await cluster.report_model("Fetched")
        await cluster.publish(name)
        assert await cluster.where(name) == "Ready/InferenceReady"
        await cluster.client.delete(EndpointSlice, Key("ml", slice_name(service_name(name), "studio")))
        assert await cluster.where(name) == "Pending/NotClaimed"
        await cluster.claim(name)
        assert await cluster.where(name) == "Creating/Creating"


async def test_one_machine_without_slices(autojump_clock):
    """Without any slice the host's report is used, the endpoint is the gateway's, and a crash shows as Failed."""
    async with open_cluster("cpu", gateway_url="http://127.0.0.1:8080") as cluster:
        await cluster.create_model(accelerator="cpu")
        await cluster.create_service()
        await cluster.renew(accelerators="cpu,metal")
        await cluster.report_model("Fetched")
        await cluster.report_service("Loaded", "Loaded")
        assert await cluster.where() == "Ready/InferenceReady"
        assert (await cluster.service()).status.endpoint == "http://127.0.0.1:8080/v1/chat/completions"
        await cluster.report_service("Loaded", "CrashLoopBackOff", message="exit code 1\nout of memory")
        assert await cluster.where() == "Failed/CrashLoopBackOff"
        degraded = find_condition((await cluster.service()).status.conditions, "Degraded")
        assert (degraded.status, degraded.message) == ("True", "exit code 1\nout of memory")


async def test_a_refused_edit_leaves_the_service_ready_and_is_reported(autojump_clock):
    """While the engine of the last good spec answers, the service is Ready and Degraded/Invalid; a fix ends that."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.create_service(extraArgs=["--port", "1"])
        await cluster.report_service("Accepted", "Invalid", message="spec.extraArgs: --port is ours")
        assert await cluster.where() == "Ready/InferenceReady"
        degraded = find_condition((await cluster.service()).status.conditions, "Degraded")
        assert (degraded.status, degraded.reason) == ("True", "Invalid")
        await cluster.create_service(extraArgs=[])
        await cluster.where()
        degraded = find_condition((await cluster.service()).status.conditions, "Degraded")
        assert degraded.status == "False"


async def test_kubectl_wait_sees_the_current_generation(autojump_clock):
    """After an edit Available soon has the new generation, and keeps its transition time."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        before = find_condition((await cluster.service()).status.conditions, "Available")
        await cluster.create_service(priority="high")
        await cluster.where()
        edited = await cluster.service()
        after = find_condition(edited.status.conditions, "Available")
        assert after.observed_generation == edited.metadata.generation > before.observed_generation
        assert after.last_transition_time == before.last_transition_time
        assert after.status == "True"


async def test_scaling_and_suspending(autojump_clock):
    """More replicas than hosts is NoHost, none is Stopped once the engine has exited, and suspension keeps the spec."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.create_service(replicas=2)
        assert await cluster.where() == "Progressing/NoHost"
        await cluster.renew("mini")
        await cluster.publish(host="mini")
        assert await cluster.where() == "Ready/InferenceReady"
        assert (await cluster.service()).status.ready_replicas == 2
        await cluster.create_service(replicas=2, suspend=True)
        assert await cluster.where() == "Suspended/Suspended"
        assert (await cluster.service()).status.desired_replicas == 0
        await cluster.create_service(replicas=0)
        assert await cluster.where() == "Progressing/Creating"
        await cluster.publish(ready=False)
        await cluster.publish(host="mini", ready=False)
        assert await cluster.where() == "Stopped/ManuallyScaledToZero"


async def test_a_hand_edited_status_is_repaired(autojump_clock):
    """Our fields have the derived values, even after another program has written them."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        await cluster.client.patch(InferenceService, CHAT, {"status": {"phase": "Failed"}}, subresource="status")
        assert await cluster.where() == "Ready/InferenceReady"
        assert (await cluster.service()).status.phase == "Ready"


async def test_a_bug_in_one_reconcile_harms_no_other(autojump_clock, monkeypatch):
    """A service whose status cannot be derived is logged and retried, and the other one continues."""
    derive, broken = inference_services.derive_service_status, True

    def derive_or_raise(observed, *args, **kwargs):
        if broken and observed.key == CHAT:
            raise ZeroDivisionError("a bug")
        return derive(observed, *args, **kwargs)

    monkeypatch.setattr(inference_services, "derive_service_status", derive_or_raise)
    async with open_cluster() as cluster:
        with capture_logs() as logs:
            await cluster.create_service("chat")
            await cluster.create_service("embed")
            assert await cluster.where("embed") == "Pending/ModelNotFound"
        assert {line["key"] for line in logs if line["event"] == "reconcile crashed"} == {"ml/chat"}
        assert cluster.reconciles("inferenceservice", "error") >= 1
        assert not (await cluster.service()).status.phase
        broken = False
        await trio.sleep(30)
        assert await cluster.where() == "Pending/ModelNotFound"


@pytest.mark.parametrize("slow", ["models", "inferenceservices", "endpointslices", "leases"])
async def test_nothing_is_written_before_everything_is_known(autojump_clock, slow):
    """A restarted controller that lists one kind last does not call a ready service anything else in between."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        await cluster.bring_up()
        writes, before = list(cluster.writes), await cluster.service()
        cluster.controller_scope.cancel()
        cluster.faults.delays[slow] = 5.0
        start = functools.partial(run_controller, utcnow=utcnow, rng=random.Random(3))
        await nursery.start(start, cluster.network, ControllerSettings())
        await trio.sleep(SETTLED)
        assert cluster.writes == writes
        assert await cluster.service() == before
        nursery.cancel_scope.cancel()


async def test_a_model_that_cannot_be_read_is_not_a_missing_one():
    """A service keeps its status while its Model has a shape that this version does not understand."""
    unused = None  # no client: nothing is sent
    context = Context(unused, ControllerSettings(), utcnow, unused, PhaseChanges(unused, unused, utcnow))
    informers, reconciler = context.informers, inference_services.ServiceReconciler(context)
    for cache in (informers.models.cache, informers.slices.cache, informers.host_claims.cache, context.hosts.leases):
        cache.synced.set()
    wire = encode(service())
    informers.services.cache.apply(WatchEvent(type="ADDED", kind=InferenceService, raw=wire))
    newer = {"metadata": {"name": "phi", "namespace": "ml", "resourceVersion": "9"}, "spec": {"source": {"url": "x"}}}
    informers.models.cache.apply(WatchEvent(type="ADDED", kind=Model, raw=newer))
    await reconciler.reconcile(CHAT)
    informers.models.cache.apply(WatchEvent(type="DELETED", kind=Model, raw=newer))
    with pytest.raises(AttributeError, match="apply"):  # now it is missing, and that would be written
        await reconciler.reconcile(CHAT)


async def test_nothing_of_a_cluster_is_touched_when_switched_off(autojump_clock):
    """Without the setting no Job and no Deployment is created, for any Model."""
    async with open_pods(workloads=None) as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(60)
        assert hands.cluster.writes == []


LEADER = Key("llmkube-system", "llmkube-controller")


async def test_only_the_holder_of_the_lease_writes(autojump_clock):
    """Of two controllers one writes; when it shuts down cleanly the other continues within a few seconds."""
    async with open_cluster(identity="one") as cluster, trio.open_nursery() as nursery:
        second = Second(cluster)
        nursery.start_soon(second.run, ControllerSettings(identity="two"))
        await cluster.bring_up()
        assert await cluster.where() == "Ready/InferenceReady"
        assert second.faults.writes == []
        assert (await cluster.client.get(Lease, LEADER)).spec.holder_identity.startswith("one_")
        cluster.controller_scope.cancel()
        await trio.sleep(RENEW_SECONDS + SETTLED)
        assert second.acting.is_set()
        writes = len(cluster.writes)
        await cluster.publish(ready=False)
        assert await cluster.where() == "Creating/Creating"
        assert len(cluster.writes) == writes
        assert second.faults.writes == ["chat"]
        nursery.cancel_scope.cancel()


async def test_a_controller_that_is_cut_off_stops_before_the_next_begins(autojump_clock):
    """A controller without a network gives up its lease; back online, it waits, and never acts on stale data."""
    async with open_cluster(identity="one") as cluster, trio.open_nursery() as nursery:
        second = Second(cluster)
        nursery.start_soon(second.run, ControllerSettings(identity="two"))
        await cluster.bring_up()
        with capture_logs() as logs:
            await cluster.faults.cut()
            await trio.sleep(HOLD_SECONDS)
            assert [line for line in logs if line["event"] == "leader lease lost"]
            assert not second.acting.is_set()
            await trio.sleep(DURATION_SECONDS)
            assert second.acting.is_set()
        writes = len(cluster.writes)
        cluster.faults.down = False
        await cluster.renew()
        await cluster.publish(ready=False)
        await trio.sleep(60)
        assert len(cluster.writes) == writes
        second.scope.cancel()
        await trio.sleep(RENEW_SECONDS + SETTLED)
        await cluster.renew()
        assert await cluster.where() == "Creating/Creating"
        await cluster.publish()
        assert await cluster.where() == "Ready/InferenceReady"
        nursery.cancel_scope.cancel()


async def test_a_lone_controller_needs_no_lease(autojump_clock):
    """Without an identity there is no Lease of a leader."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        with pytest.raises(NotFoundError):
            await cluster.client.get(Lease, LEADER)


def test_controllers_of_different_namespaces_do_not_wait_for_each_other():
    """Each choice of namespaces has a Lease of its own."""
    assert ControllerSettings().leader_lease == LEADER
    assert ControllerSettings(namespace="ml").leader_lease == Key("llmkube-system", "llmkube-controller.ml")
