import attrs
import pytest

from llmkube.base.errors import UserError
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.crd.rollout import HostReplicas
from llmkube.k8s.errors import NameTakenError
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.service.endpoint_objects import all_endpoint_objects, endpoint_manifests, endpoint_objects
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
