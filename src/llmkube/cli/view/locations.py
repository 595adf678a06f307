"""Hosts and addresses of a service's engines, from EndpointSlices, Leases and the field managers of its status.

All of it is a snapshot for display. Whether a host is alive is decided by this machine's clock, with a tolerance for
clock skew; the controller compares no clocks.
"""

import datetime
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from llmkube.base.http.message import netloc
from llmkube.cli.target_cluster import Cluster
from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import ForbiddenError
from llmkube.k8s.leases.live_hosts import DEFAULT_LEASE_SECONDS
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import (
    ACCELERATORS_ANNOTATION,
    AGENT_MANAGER,
    HOST_LABEL,
    MEMORY_BUDGET_ANNOTATION,
    MEMORY_FREE_ANNOTATION,
    SERVICE_NAME_LABEL,
    SERVICES_ANNOTATION,
    service_name,
)
from llmkube.k8s.wire.times import parse_timestamp

SKEW_SECONDS: Final = 60.0
"""Clock skew up to which a live host is shown as alive."""


@attrs.frozen
class Engine:
    """An endpoint of a service in an EndpointSlice, with its pod if it has one."""

    host: str
    address: str
    port: int
    ready: bool
    pod: Key | None = None

    @property
    def netloc(self) -> str:
        """`10.0.0.5:51234`, or `[fd00::5]:51234`."""
        return netloc((self.address, self.port))

    def __str__(self) -> str:
        return f"port {self.port} of pod {self.pod}" if self.pod is not None else self.netloc


@attrs.frozen
class Host:
    """A host, as its Lease describes it.

    Attributes:
        name: Its id.
        accelerators: Accelerators that it serves.
        services: Number of services that it manages, as text; empty if the Lease does not state it.
        budget_bytes: Memory budget of all models together; None if the Lease does not state it.
        free_bytes: Memory available to one more model; None if the Lease does not state it.
    """

    name: str
    accelerators: frozenset[str]
    services: str = ""
    budget_bytes: int | None = None
    free_bytes: int | None = None


def engines_in(slices: Iterable[EndpointSlice]) -> tuple[Engine, ...]:
    """Return the endpoints of a service, ready ones first; a slice without a port has none."""
    found = []
    for piece in slices:
        port = next((each.port for each in piece.ports if each.port), 0)
        for endpoint in (each for each in piece.endpoints if each.addresses and port):
            host = piece.metadata.labels.get(HOST_LABEL) or endpoint.node_name or ""
            is_ready, target = endpoint.conditions.ready is not False, endpoint.target_ref  # None means ready
            pod = Key(piece.metadata.namespace, target.name) if target and target.kind == "Pod" else None
            found.append(Engine(host, endpoint.addresses[0], port, is_ready, pod))
    return tuple(sorted(found, key=lambda each: (not each.ready, each.host, each.address, each.port)))


def reporting_hosts(service: InferenceService) -> tuple[str, ...]:
    """Return the hosts whose agents write a service's status, by its field managers."""
    managers = (str(each.get("manager", "")) for each in service.metadata.managed_fields)
    prefix = f"{AGENT_MANAGER}-"
    return tuple(sorted({name.removeprefix(prefix) for name in managers if name.startswith(prefix)}))


def live_hosts(leases: Iterable[Lease], now: datetime.datetime) -> tuple[Host, ...]:
    """Return the hosts whose Leases have not expired, allowing for clock skew, by name."""
    alive = [_host_of(each) for each in leases if each.metadata.labels.get(HOST_LABEL) and _is_alive(each, now)]
    return tuple(sorted(alive, key=lambda each: each.name))


def _host_of(lease: Lease) -> Host:
    noted, sizes = lease.metadata.annotations, (MEMORY_BUDGET_ANNOTATION, MEMORY_FREE_ANNOTATION)
    accelerators = frozenset(filter(None, noted.get(ACCELERATORS_ANNOTATION, "").split(",")))
    services, memory = noted.get(SERVICES_ANNOTATION, ""), (_parse_int(noted.get(name, "")) for name in sizes)
    return Host(lease.metadata.labels[HOST_LABEL], accelerators, services, *memory)


async def find_engines(cluster: Cluster, namespace: str, name: str) -> tuple[Engine, ...]:
    """List the endpoints of a service, of all hosts."""
    selector = slice_selector(name)
    return engines_in((await cluster.client.list(EndpointSlice, namespace=namespace, label_selector=selector)).items)


async def find_hosts(cluster: Cluster, now: datetime.datetime) -> tuple[Host, ...] | None:
    """List the live hosts; return None if this user may not read Leases."""
    try:
        leases = (await cluster.client.list(Lease, label_selector=HOST_LABEL)).items
    except ForbiddenError:
        return None
    return live_hosts(leases, now)


async def find_all_engines(cluster: Cluster, namespace: str | None) -> Mapping[Key, tuple[Engine, ...]]:
    """List the endpoints of every Kubernetes Service."""
    slices: dict[Key, list[EndpointSlice]] = {}
    for piece in (await cluster.client.list(EndpointSlice, namespace=namespace)).items:
        name = piece.metadata.labels.get(SERVICE_NAME_LABEL, "")
        slices.setdefault(Key(piece.metadata.namespace, name), []).append(piece)
    return {key: engines_in(pieces) for key, pieces in slices.items()}


def slice_selector(name: str) -> str:
    """Return the label selector for the EndpointSlices of a service."""
    return f"{SERVICE_NAME_LABEL}={service_name(name)}"


def _parse_int(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _is_alive(lease: Lease, now: datetime.datetime) -> bool:
    renewed = parse_timestamp(lease.spec.renew_time)
    if renewed is None:
        return False
    return (now - renewed).total_seconds() < (lease.spec.lease_duration_seconds or DEFAULT_LEASE_SECONDS) + SKEW_SECONDS
