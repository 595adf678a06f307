import datetime

import attrs
import pytest

from llmkube.base.errors import UserError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import HostReplicas
from llmkube.k8s.errors import NameTakenError
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.status_manager import (
    StatusManager,
    all_endpoint_slots,
    endpoint_manifests,
    endpoint_slots,
    endpoints_manifest,
    service_manifest,
    slice_manifest,
)
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import ServiceView
from sim.world import agent_settings
from supervisor.service.known import HEADER, LOADED, LOADING, WEIGHTS, desired, new_facts

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Recorder:
    """A recorder without Events, which `test_events` covers."""

    def emit_nowait(self, about, reason, message, *, type):  # noqa: A002 (as the real one)
        pass


class Applier:
    """A recorder of writes, in order."""

    def __init__(self):
        self.written = []

    def apply_nowait(self, slot, manifest, *, is_published=False):
        self.written.append(slot.kind.__name__)

    def delete_nowait(self, slot, *, is_published=False):
        self.written.append(slot.kind.__name__.lower())

    def forget(self, slot):
        self.written.append(f"({slot.kind.__name__})")

    forget_once_applied = forget

    def take(self):
        """Return the kinds that were applied since the last time, deleted ones in lower case, forgotten ones in ()."""
        taken, self.written = self.written, []
        return taken


def new_manager(**given):
    applier = Applier()
    facts = attrs.evolve(new_facts(), host_address=HostAddress(None))
    host_address = Mailbox(HostAddress("192.0.2.1", "192.0.2.1", "given"))
    return StatusManager(
        facts, agent_settings(), applier, Recorder(), lambda: NOW, Mailbox(None), host_address, **given
    ), applier


SERVICE, SLICE = Service.__name__, EndpointSlice.__name__
STATUS, MODEL = InferenceService.__name__, Model.__name__


def test_each_change_is_written_once():
    """A start reports not ready and withdraws every other form; a change writes its own objects, and no more."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    assert applier.take() == ["endpoints", SLICE.lower(), STATUS, SERVICE, SLICE]
    manager.update(Facts.with_file, WEIGHTS, HEADER)
    assert applier.take() == [MODEL]
    manager.update(Facts.with_engine, LOADED, newest=True)
    assert applier.take() == [STATUS, SLICE]
    manager.update(Facts.with_engine, LOADED, newest=True)
    assert applier.take() == []


def test_the_status_of_an_earlier_agent_is_kept_during_adoption():
    """Other forms are withdrawn; there is no status before the engine was queried."""
    manager, applier = new_manager()
    manager.start(adopting=True)
    manager.update(Facts.with_plan, ())
    assert applier.take() == ["endpoints", SLICE.lower()]
    manager.update(Facts.with_view, LOADED)
    assert applier.take() == [STATUS, SERVICE, SLICE]


def test_one_of_several_hosts_writes_the_status():
    """The others publish their endpoints and write no status, until it is theirs to write."""
    manager, applier = new_manager(reports_status=False)
    manager.start(adopting=False)
    manager.update(Facts.with_file, WEIGHTS, HEADER)
    assert {STATUS, MODEL}.isdisjoint(applier.take())
    manager.set_reporting(True)
    assert applier.take() == [STATUS, MODEL]
    manager.set_reporting(False)
    assert applier.take() == [f"({STATUS})", f"({MODEL})"]


def test_another_object_of_the_same_name_gets_the_whole_status():
    """Its predecessor's status is dropped, and written again under its own uid."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    applier.take()
    manager.set_desired(desired(uid="s2"))
    assert applier.take() == [f"({STATUS})", STATUS, SERVICE, SLICE]


def test_another_address_family_is_another_slice():
    """The endpoint at the old address is withdrawn at the same time."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    applier.take()
    manager.host_address.put_nowait(HostAddress("2001:db8::1", "2001:db8::1"))
    manager.update(Facts.with_host_address, manager.host_address.value)
    assert applier.take() == [SLICE.lower(), SLICE]


def test_the_last_status_withdraws_the_endpoint():
    """The status names the host that stops serving, once; nothing of the Model's is withdrawn."""
    manager, applier = new_manager()
    manager.start(adopting=False)
    applier.take()
    manager.finish()
    assert applier.take() == [STATUS, SLICE.lower(), f"({SERVICE})", f"({STATUS})", f"({MODEL})"]
    assert (manager.view.reason, manager.view.message) == (Reason.RELEASED, "sim no longer serves it")


def test_a_change_of_the_snapshot_is_announced():
    """Subscribers to snapshots are notified; other facts are not announced."""
    manager, _ = new_manager()
    manager.update(Facts.with_view, LOADED)
    assert manager.changed.version == 1
    manager.update(Facts.with_plan, ())
    assert manager.changed.version == 1


FACTS = new_facts()
SERVING = FACTS.with_view(LOADED)


@pytest.mark.parametrize(
    ("host_address", "api", "kinds", "suffix"),
    [
        (HostAddress("192.0.2.1"), "slices", [EndpointSlice], ""),
        (HostAddress("2001:db8::1"), "slices", [EndpointSlice], ".ipv6"),
        (HostAddress("192.0.2.1"), "endpoints", [Endpoints], ""),
        (HostAddress(None), "slices", [], ""),
    ],
)
def test_the_objects_that_publish_an_engine(host_address, api, kinds, suffix):
    """The object has the form that is set for the host; there is none while no client could reach it."""
    slots = endpoint_slots(attrs.evolve(FACTS, host_address=host_address), api)
    assert [slot.kind for slot in slots] == kinds
    assert all(slot.key.name.endswith(suffix) for slot in slots)
    assert set(slots) <= set(all_endpoint_slots(FACTS))


@pytest.mark.parametrize(
    ("facts", "ready"),
    [
        (FACTS, None),
        (FACTS.with_view(LOADING), []),
        (SERVING, [True]),
        (SERVING.with_view(LOADING), [False]),
        (SERVING.with_host_address(HostAddress(None)), None),
    ],
)
def test_the_content_of_the_slice(facts, ready):
    """Empty during adoption and before an endpoint was first ready; then its readiness."""
    manifests = {slot.kind: manifest for slot, manifest in endpoint_manifests(facts, "slices").items()}
    assert (Service in manifests) is (ready is not None)
    found = manifests.get(EndpointSlice, {}).get("endpoints")
    assert (None if found is None else [one["conditions"]["ready"] for one in found]) == ready


@pytest.mark.parametrize(
    ("view", "ready"),
    [
        (ServiceView("Idle"), True),
        (LOADING, True),
        (ServiceView("Stopping"), True),
        (ServiceView("LoadStalled"), True),
        (ServiceView("ScaledToZero"), False),
        (ServiceView("Released"), False),
    ],
)
def test_the_slice_of_a_service_at_the_door_names_the_door(view, ready):
    """It is ready although nothing is loaded, which its label shows; it is written once the door listens."""
    behind = attrs.evolve(SERVING.view.value, behind_door=True, host="127.0.0.1", port=1)
    unknown = attrs.evolve(FACTS, door=None).with_view(behind)
    assert EndpointSlice not in {slot.kind for slot in endpoint_manifests(unknown, "slices")}
    at_door = unknown.with_door(("192.0.2.5", 20_000))
    for facts, is_ready, label in ((at_door, True, None), (at_door.with_view(view), ready, "false")):
        manifests = {slot.kind: manifest for slot, manifest in endpoint_manifests(facts, "slices").items()}
        found = manifests[EndpointSlice]
        assert (found["endpoints"][0]["conditions"]["ready"], found["ports"][0]["port"]) == (is_ready, 20_000)
        assert found["endpoints"][0]["addresses"] == [at_door.host_address.address]
        assert found["metadata"]["labels"].get("inference.llmkube.dev/loaded") == label
    assert at_door.with_door(()).endpoint_port == 0  # other machines never reached that engine


@pytest.mark.parametrize("api", ["slices", "endpoints"])
def test_next_to_pods_only_a_slice_is_this_host_s(api):
    """Service and Endpoints of a service with pods are the controller's and Kubernetes' own: neither is written."""
    service = FACTS.desired.service
    spec = attrs.evolve(service.spec, hosts=HostReplicas(model_ref="mac"))
    beside = SERVING.with_desired(attrs.evolve(FACTS.desired, service=attrs.evolve(service, spec=spec)))
    assert {slot.kind for slot in endpoint_manifests(beside, api)} == {EndpointSlice}
    assert {slot.kind for slot in all_endpoint_slots(beside)} == {EndpointSlice}


@pytest.mark.parametrize(("error", "ready"), [(NameTakenError("taken"), False), (UserError("no"), True)])
def test_behind_the_service_of_another_owner_nothing_of_ours_is_ready(error, ready):
    """Clients would be routed to us under another owner's name."""
    refused = SERVING.with_refusal(endpoint_slots(SERVING, "slices")[0], error)
    manifests = {slot.kind: manifest for slot, manifest in endpoint_manifests(refused, "slices").items()}
    assert manifests[EndpointSlice]["endpoints"][0]["conditions"]["ready"] is ready


METADATA = {"name": "chat", "namespace": "ns", "uid": "u1"}
CHAT = decode(InferenceService, {"metadata": METADATA, "spec": {"modelRef": "m"}})


def test_the_service_has_no_selector_and_belongs_to_its_object():
    """Kubernetes routes the Service by our slices alone, and collects it with the InferenceService."""
    manifest = service_manifest(CHAT)
    assert "selector" not in manifest["spec"]
    assert manifest["spec"]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_a_ready_slice_names_the_engine():
    """A ready slice has the advertised address, the engine's port and the labels that tie it to its Service."""
    manifest = slice_manifest(CHAT, "mac", "192.0.2.5", 4711, ready=True)
    assert manifest["endpoints"] == [{"addresses": ["192.0.2.5"], "conditions": {"ready": True}}]
    assert manifest["ports"] == [{"name": "http", "port": 4711, "protocol": "TCP"}]
    assert manifest["addressType"] == "IPv4"
    assert manifest["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
    assert manifest["metadata"]["labels"]["inference.llmkube.dev/host"] == "mac"


def test_without_an_engine_a_slice_claims_nothing():
    """Before the first engine has a port, an older agent's slice is replaced by an empty one."""
    manifest = slice_manifest(CHAT, "mac", "2001:db8::5", 0, ready=False)
    assert manifest["endpoints"] == []
    assert manifest["addressType"] == "IPv6"


def test_the_classic_object_moves_an_address_that_is_not_ready():
    """In a classic Endpoints object the address of an engine that does not answer is under notReadyAddresses."""
    ready = endpoints_manifest(CHAT, "192.0.2.5", 4711, ready=True)["subsets"][0]
    assert ready["addresses"] == [{"ip": "192.0.2.5"}]
    waiting = endpoints_manifest(CHAT, "192.0.2.5", 4711, ready=False)["subsets"][0]
    assert waiting["notReadyAddresses"] == [{"ip": "192.0.2.5"}]
    assert "addresses" not in waiting
