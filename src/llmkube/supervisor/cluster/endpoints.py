"""What a served model looks like to the cluster: a Service without a selector, and this host's EndpointSlice. Pure.

The Service and its ClusterIP belong to the InferenceService and outlive every process; the slice says where the engine
is and whether it answers right now.
"""

import ipaddress
from typing import Any, Literal

from llmkube.k8s.crd.inferenceservice import InferenceService
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
from llmkube.k8s.wire.owners import controller_reference


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
