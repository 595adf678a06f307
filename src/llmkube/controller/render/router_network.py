"""Whom a router's pods may talk to: an allow-list, so that what the router must not send it cannot send. Pure.

| destination | what is open |
|---|---|
| every router | DNS, to the pods of the cluster and to a node's own cache |
| an InferenceService in pods | its pods, at their port |
| an InferenceService on hosts | each host's address and port, as its EndpointSlice has them |
| a provider that is `cloud` | its port, at public addresses only |
| a provider that is `local`, by name | its port, at private addresses only: the name cannot lead the data out |
| a provider inside the cluster (`http://NAME.NAMESPACE.svc…`) | the pods of that namespace |
| a provider by address | that address and port |

A cluster's network has to enforce NetworkPolicies; one that does not lets everything pass.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from llmkube.k8s.wire.names import SERVICE_LABEL, label_value
from llmkube.runtimes.container.container_plan import PORT_NAME

Rule = dict[str, Any]

_PRIVATE_IPV4: Final = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
)
_PRIVATE_IPV6: Final = ("::1/128", "fc00::/7", "fe80::/10")
_NODE_DNS_CACHE: Final = "169.254.20.10/32"
"""Where NodeLocal DNSCache listens (Kubernetes, "Using NodeLocal DNSCache in Kubernetes Clusters")."""

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"


@attrs.frozen(kw_only=True)
class ServicePods:
    """An InferenceService of the router's namespace, as far as pods serve it."""

    name: str


@attrs.frozen(kw_only=True)
class Host:
    """An address outside the pods."""

    address: str
    port: int


@attrs.frozen(kw_only=True)
class Provider:
    """What a URL names.

    Attributes:
        url: Where it is.
        local: Whether what is sent stays here.
    """

    url: str
    local: bool


Destination = ServicePods | Host | Provider


def network_policy(pods: Mapping[str, str], destinations: Iterable[Destination]) -> dict[str, Any]:
    """Return the spec of the NetworkPolicy of pods with these labels."""
    egress = [_dns()]
    for rule in map(_rule, destinations):
        if rule not in egress:
            egress.append(rule)
    return {"podSelector": {"matchLabels": dict(pods)}, "policyTypes": ["Egress"], "egress": egress}


def _dns() -> Rule:
    ports = [{"port": number, "protocol": protocol} for number in (53, 5353) for protocol in ("UDP", "TCP")]
    return {"to": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": _NODE_DNS_CACHE}}], "ports": ports}


def _rule(to: Destination) -> Rule:
    match to:
        case ServicePods(name=name):
            selector = {"podSelector": {"matchLabels": {SERVICE_LABEL: label_value(name)}}}
            return {"to": [selector], "ports": [_tcp(PORT_NAME)]}
        case Host(address=address, port=port):
            return {"to": [_block(address)], "ports": [_tcp(port)]}
        case Provider(url=url, local=local):
            return _provider_rule(url, local=local)


def _provider_rule(url: str, *, local: bool) -> Rule:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        return {"to": [_block(str(ipaddress.ip_address(host)))], "ports": [_tcp(port)]}
    except ValueError:
        pass
    labels = host.split(".")
    if len(labels) >= 3 and labels[2] == "svc":
        return {"to": [{"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: labels[1]}}}]}
    if local:
        return {"to": [{"ipBlock": {"cidr": one}} for one in (*_PRIVATE_IPV4, *_PRIVATE_IPV6)], "ports": [_tcp(port)]}
    public = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(_PRIVATE_IPV4)}},
        {"ipBlock": {"cidr": "::/0", "except": list(_PRIVATE_IPV6)}},
    ]
    return {"to": public, "ports": [_tcp(port)]}


def _block(address: str) -> Rule:
    return {"ipBlock": {"cidr": str(ipaddress.ip_network(address))}}


def _tcp(port: int | str) -> dict[str, Any]:
    return {"port": port, "protocol": "TCP"}
