"""The built-in kinds that we read or write; only the fields that we use are typed, the others are kept as they are."""

from collections.abc import Mapping
from typing import ClassVar

import attrs

from llmkube.k8s.crd.meta import ObjectReference
from llmkube.k8s.fields import REQUIRED, IntOrString, Wired, field
from llmkube.k8s.resource import Object, Resource

# -- core/v1 ----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Phase(Wired):
    """A status of which only the phase is read."""

    phase: str = ""


@attrs.frozen(kw_only=True)
class Namespace(Object):
    """A scope for names."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "Namespace", "namespaces", namespaced=False, short_names=("ns",), subresources=("status",)
    )
    status: Phase = Phase()  # `Active`, or `Terminating` while its objects are deleted


@attrs.frozen(kw_only=True)
class NodeSpec(Wired):
    """The pod networks of a node, where kube-controller-manager assigns them."""

    pod_cidrs: tuple[str, ...] = field("", (), name="podCIDRs")


@attrs.frozen(kw_only=True)
class NodeAddress(Wired):
    """One address of a node: `InternalIP`, `ExternalIP` or a name."""

    type: str = ""
    address: str = ""


@attrs.frozen(kw_only=True)
class NodeStatus(Wired):
    """The status that a kubelet reports."""

    addresses: tuple[NodeAddress, ...] = ()


@attrs.frozen(kw_only=True)
class Node(Object):
    """A machine of the cluster."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "Node", "nodes", namespaced=False, subresources=("status",))
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


@attrs.frozen(kw_only=True)
class PriorityClass(Object):
    """A named priority of pods."""

    RESOURCE: ClassVar[Resource] = Resource(
        "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False
    )


@attrs.frozen(kw_only=True)
class ServicePort(Wired):
    """One port of a Service and its target port."""

    port: int = field("", REQUIRED)
    name: str = ""
    protocol: str = "TCP"
    target_port: IntOrString | None = None


@attrs.frozen(kw_only=True)
class ServiceSpec(Wired):
    """A stable address; without a selector, the agent writes its endpoints."""

    type: str = "ClusterIP"
    ports: tuple[ServicePort, ...] = ()
    selector: Mapping[str, str] = field("", dict)
    cluster_ip: str = field("", "", name="clusterIP")


@attrs.frozen(kw_only=True)
class Service(Object):
    """A name and an address for a set of endpoints."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "Service", "services", short_names=("svc",), subresources=("status",), categories=("all",)
    )
    spec: ServiceSpec = ServiceSpec()


@attrs.frozen(kw_only=True)
class EndpointPort(Wired):
    """A port of endpoints, named like the Service's port."""

    port: int | None = None  # optional in a slice; always set in ours
    name: str = ""
    protocol: str = "TCP"


@attrs.frozen(kw_only=True)
class Endpoints(Object):
    """The legacy form of a Service's endpoints, deprecated since Kubernetes 1.33 but still read by scripts."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "Endpoints", "endpoints", short_names=("ep",))


@attrs.frozen(kw_only=True)
class Secret(Object):
    """Confidential data; left out of `repr`, so that it never reaches a log."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "Secret", "secrets")
    type: str = "Opaque"
    data: Mapping[str, str] = field("", dict, repr=False)  # values are base64


@attrs.frozen(kw_only=True)
class ConfigMap(Object):
    """Plain configuration data."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "ConfigMap", "configmaps", short_names=("cm",))
    data: Mapping[str, str] = field("", dict)


@attrs.frozen(kw_only=True)
class ServiceAccount(Object):
    """An identity for pods."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "ServiceAccount", "serviceaccounts", short_names=("sa",))


@attrs.frozen(kw_only=True)
class Event(Object):
    """An occurrence concerning an object; `count` rises when it repeats (core/v1, which `kubectl describe` reads)."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "Event", "events", short_names=("ev",))
    involved_object: ObjectReference = field("", REQUIRED)
    reason: str = ""
    message: str = ""
    type: str = ""  # Normal or Warning
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


# -- discovery.k8s.io/v1 ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class EndpointConditions(Wired):
    """The current condition of an endpoint; None means unknown, which consumers treat as ready."""

    ready: bool | None = None


@attrs.frozen(kw_only=True)
class Endpoint(Wired):
    """One backend process with its addresses, of which consumers use the first."""

    addresses: tuple[str, ...] = field("", REQUIRED)
    conditions: EndpointConditions = EndpointConditions()
    node_name: str | None = None
    target_ref: ObjectReference | None = None


@attrs.frozen(kw_only=True)
class EndpointSlice(Object):
    """Part of a Service's endpoints, tied to it by the label `kubernetes.io/service-name`."""

    RESOURCE: ClassVar[Resource] = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
    address_type: str = field("", REQUIRED)  # IPv4, IPv6 or FQDN; immutable
    endpoints: tuple[Endpoint, ...] = field("", (), required=True)
    ports: tuple[EndpointPort, ...] = ()


# -- coordination.k8s.io/v1 -------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LeaseSpec(Wired):
    """The holder, the duration and the renewal time; times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


@attrs.frozen(kw_only=True)
class Lease(Object):
    """A lock or a heartbeat, renewed by its holder."""

    RESOURCE: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "Lease", "leases")
    spec: LeaseSpec = LeaseSpec()


# -- apiextensions.k8s.io/v1 ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class CustomResourceDefinition(Object):
    """A kind that the API server is extended with."""

    RESOURCE: ClassVar[Resource] = Resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
        short_names=("crd", "crds"),
        subresources=("status",),
        categories=("api-extensions",),
    )
