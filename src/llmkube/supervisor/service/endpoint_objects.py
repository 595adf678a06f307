"""Which objects say where a service's engine is and whether it answers: a Service, and a slice or Endpoints. Pure.

The Service and its ClusterIP belong to the InferenceService and outlive every process; the slice says where the engine
is and whether it answers right now.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal

from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import NameTakenError
from llmkube.k8s.resource import Key, controller_reference
from llmkube.k8s.wire.names import (
    AGENT_MANAGER,
    HOST_LABEL,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    SERVICE_NAME_LABEL,
    SERVICE_PORT,
    host_id,
    label_value,
    service_name,
    slice_name,
)
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.service.facts import Facts


def service_manifest(service: InferenceService) -> dict[str, Any]:
    """Return the selector-less Service in front of one InferenceService.

    `targetPort` says nothing here: for a Service without a selector, kube-proxy takes the port from the slice.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service, service_name(service.key.name)),
        "spec": {
            "type": "ClusterIP",
            "ports": [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP"}],
        },
    }


def slice_manifest(service: InferenceService, host: str, address: str, port: int, *, ready: bool) -> dict[str, Any]:
    """Return this host's EndpointSlice: one address, ready only while the engine is known to answer.

    With port 0 (no engine has been ready yet) it lists nothing, which replaces whatever an earlier agent claimed.
    """
    name = service_name(service.key.name)
    metadata = _metadata(service, slice_name(name, host, family(address)))
    metadata["labels"] |= {SERVICE_NAME_LABEL: name, MANAGED_BY_LABEL: AGENT_MANAGER, HOST_LABEL: host_id(host)}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": family(address),
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}] if port else [],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}] if port else [],
    }


def family(address: str) -> Literal["IPv4", "IPv6"]:
    """Return an address's family as EndpointSlices spell it."""
    return "IPv4" if ipaddress.ip_address(address).version == 4 else "IPv6"


def endpoints_manifest(service: InferenceService, address: str, port: int, *, ready: bool) -> dict[str, Any]:
    """Return the classic Endpoints object, deprecated since Kubernetes 1.33, for scripts that still read it.

    Never beside a slice of ours: Kubernetes mirrors Endpoints into slices, and clients would see both.
    """
    where = "addresses" if ready else "notReadyAddresses"
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": _metadata(service, service_name(service.key.name)),
        "subsets": [{where: [{"ip": address}], "ports": [{"name": "http", "port": port, "protocol": "TCP"}]}]
        if port
        else [],
    }


def _metadata(service: InferenceService, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": service.key.namespace,
        "labels": {"app": label_value(service.key.name), SERVICE_LABEL: label_value(service.key.name)},
        "ownerReferences": [controller_reference(service)],
    }


def service_object(facts: Facts) -> Slot:
    """Return the Service in front of the engine."""
    return Slot(Service, Key(facts.key.namespace, service_name(facts.key.name)))


def endpoint_objects(facts: Facts, endpoints_api: str) -> tuple[Slot, ...]:
    """Return where an agent with this setting says where the engine is; nowhere while the host has no address."""
    if facts.address is None:
        return ()
    if endpoints_api == "endpoints" and not facts.wish.beside_pods:  # Endpoints of such a Service are Kubernetes' own
        return (_endpoints(facts),)
    return (_slice(facts, family(facts.address)),)


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
    said = {} if facts.wish.beside_pods else {service_object(facts): service_manifest(service)}
    for slot in endpoint_objects(facts, endpoints_api):
        if slot.kind is Endpoints:
            said[slot] = endpoints_manifest(service, address, facts.endpoint_port, ready=ready)
        else:
            said[slot] = slice_manifest(service, facts.host, address, facts.endpoint_port, ready=ready)
    return said


def _endpoints(facts: Facts) -> Slot:
    return Slot(Endpoints, Key(facts.key.namespace, service_name(facts.key.name)))


def _slice(facts: Facts, address_family: Literal["IPv4", "IPv6"]) -> Slot:
    name = slice_name(service_name(facts.key.name), facts.host, address_family)
    return Slot(EndpointSlice, Key(facts.key.namespace, name))
