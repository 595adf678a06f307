"""Which objects say where a service's engine is and whether it answers: a Service, and a slice or Endpoints. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.errors import NameTakenError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import service_name, slice_name
from llmkube.supervisor.cluster import endpoints
from llmkube.supervisor.nouns.slot import Slot
from llmkube.supervisor.service.facts import Facts


def service_object(facts: Facts) -> Slot:
    """Return the Service in front of the engine."""
    return Slot(Service, Key(facts.key.namespace, service_name(facts.key.name)))


def endpoint_objects(facts: Facts, endpoints_api: str) -> tuple[Slot, ...]:
    """Return where an agent with this setting says where the engine is; nowhere while the host has no address."""
    if facts.address is None:
        return ()
    if endpoints_api == "endpoints" and not facts.wish.beside_pods:  # Endpoints of such a Service are Kubernetes' own
        return (_endpoints(facts),)
    return (_slice(facts, endpoints.family(facts.address)),)


def all_endpoint_objects(facts: Facts) -> tuple[Slot, ...]:
    """Return where agents with any settings, at addresses of either family, would say so."""
    slices = (_slice(facts, "IPv4"), _slice(facts, "IPv6"))
    return slices if facts.wish.beside_pods else (_endpoints(facts), *slices)


def endpoint_manifests(facts: Facts, endpoints_api: str) -> Mapping[Slot, dict[str, Any]]:
    """Return what stands in the Service and the endpoint.

    Nothing while an engine is being adopted: what its last agent said stands. Where the Service's name is another
    owner's, nothing of ours is ready behind it.
    """
    service, view, address = facts.wish.service, facts.view.value, facts.address
    if address is None or not view.reason:
        return {}
    ready = view.ready and not any(isinstance(error, NameTakenError) for error in facts.refused.values())
    said = {} if facts.wish.beside_pods else {service_object(facts): endpoints.service_manifest(service)}
    for slot in endpoint_objects(facts, endpoints_api):
        if slot.kind is Endpoints:
            said[slot] = endpoints.endpoints_manifest(service, address, facts.endpoint_port, ready=ready)
        else:
            said[slot] = endpoints.slice_manifest(service, facts.host, address, facts.endpoint_port, ready=ready)
    return said


def _endpoints(facts: Facts) -> Slot:
    return Slot(Endpoints, Key(facts.key.namespace, service_name(facts.key.name)))


def _slice(facts: Facts, address_family: Literal["IPv4", "IPv6"]) -> Slot:
    name = slice_name(service_name(facts.key.name), facts.host, address_family)
    return Slot(EndpointSlice, Key(facts.key.namespace, name))
