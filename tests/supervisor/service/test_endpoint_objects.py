import attrs
import pytest

from llmkube.base.errors import UserError
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import HostReplicas
from llmkube.k8s.errors import NameTakenError
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.service.status_manager import (
    all_endpoint_objects,
    endpoint_manifests,
    endpoint_objects,
    endpoints_manifest,
    service_manifest,
    slice_manifest,
)
from supervisor.service.known import LOADED, LOADING, new_facts

FACTS = new_facts()
SERVING = FACTS.with_view(LOADED)


@pytest.mark.parametrize(
    ("reach", "api", "kinds", "suffix"),
    [
        (Reach("192.0.2.1"), "slices", [EndpointSlice], ""),
        (Reach("2001:db8::1"), "slices", [EndpointSlice], ".ipv6"),
        (Reach("192.0.2.1"), "endpoints", [Endpoints], ""),
        (Reach(None), "slices", [], ""),
    ],
)
def test_where_the_engine_is_said_to_be(reach, api, kinds, suffix):
    """In one object of the form that the host is set to; none while no client could reach it."""
    slots = endpoint_objects(attrs.evolve(FACTS, reach=reach), api)
    assert [slot.kind for slot in slots] == kinds
    assert all(slot.key.name.endswith(suffix) for slot in slots)
    assert set(slots) <= set(all_endpoint_objects(FACTS))


@pytest.mark.parametrize(
    ("facts", "ready"),
    [
        (FACTS, None),
        (FACTS.with_view(LOADING), []),
        (SERVING, [True]),
        (SERVING.with_view(LOADING), [False]),
        (SERVING.with_reach(Reach(None)), None),
    ],
)
def test_what_the_slice_says(facts, ready):
    """Nothing of an engine that is being adopted; no endpoint before one was ready; then whether it is."""
    said = {slot.kind: manifest for slot, manifest in endpoint_manifests(facts, "slices").items()}
    assert (Service in said) is (ready is not None)
    found = said.get(EndpointSlice, {}).get("endpoints")
    assert (None if found is None else [one["conditions"]["ready"] for one in found]) == ready


@pytest.mark.parametrize("api", ["slices", "endpoints"])
def test_beside_pods_only_a_slice_is_this_host_s(api):
    """Service and Endpoints of a service with pods are the controller's and Kubernetes' own: neither is written."""
    service = FACTS.wish.service
    spec = attrs.evolve(service.spec, hosts=HostReplicas(model_ref="mac"))
    beside = SERVING.with_wish(attrs.evolve(FACTS.wish, service=attrs.evolve(service, spec=spec)))
    assert {slot.kind for slot in endpoint_manifests(beside, api)} == {EndpointSlice}
    assert {slot.kind for slot in all_endpoint_objects(beside)} == {EndpointSlice}


@pytest.mark.parametrize(("error", "ready"), [(NameTakenError("taken"), False), (UserError("no"), True)])
def test_behind_the_service_of_another_owner_nothing_of_ours_is_ready(error, ready):
    """Clients would be sent to us under another owner's name."""
    refused = SERVING.with_refusal(endpoint_objects(SERVING, "slices")[0], error)
    said = {slot.kind: manifest for slot, manifest in endpoint_manifests(refused, "slices").items()}
    assert said[EndpointSlice]["endpoints"][0]["conditions"]["ready"] is ready


METADATA = {"name": "chat", "namespace": "ns", "uid": "u1"}
CHAT = decode(InferenceService, {"metadata": METADATA, "spec": {"modelRef": "m"}})


def test_the_service_has_no_selector_and_belongs_to_its_object():
    """Kubernetes routes the Service by our slices alone, and collects it with the InferenceService."""
    manifest = service_manifest(CHAT)
    assert "selector" not in manifest["spec"]
    assert manifest["spec"]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_a_ready_slice_names_the_engine():
    """A ready slice carries the advertised address, the engine's port and the labels that tie it to its Service."""
    manifest = slice_manifest(CHAT, "mac", "192.0.2.5", 4711, ready=True)
    assert manifest["endpoints"] == [{"addresses": ["192.0.2.5"], "conditions": {"ready": True}}]
    assert manifest["ports"] == [{"name": "http", "port": 4711, "protocol": "TCP"}]
    assert manifest["addressType"] == "IPv4"
    assert manifest["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
    assert manifest["metadata"]["labels"]["inference.llmkube.dev/host"] == "mac"


def test_without_an_engine_a_slice_claims_nothing():
    """Before the first engine has a port, an older agent's claim is replaced by an empty one."""
    manifest = slice_manifest(CHAT, "mac", "2001:db8::5", 0, ready=False)
    assert manifest["endpoints"] == []
    assert manifest["addressType"] == "IPv6"


def test_the_classic_object_moves_an_address_that_is_not_ready():
    """In a classic Endpoints object an engine that does not answer stands under notReadyAddresses."""
    ready = endpoints_manifest(CHAT, "192.0.2.5", 4711, ready=True)["subsets"][0]
    assert ready["addresses"] == [{"ip": "192.0.2.5"}]
    waiting = endpoints_manifest(CHAT, "192.0.2.5", 4711, ready=False)["subsets"][0]
    assert waiting["notReadyAddresses"] == [{"ip": "192.0.2.5"}]
    assert "addresses" not in waiting
