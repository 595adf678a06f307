"""Addresses and pod CIDRs of Nodes. Pure."""

import ipaddress
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from llmkube.k8s.builtins import Node
from llmkube.supervisor.nouns.host_addresses import is_usable
from llmkube.weights.address_policy import Network

WIDEST: Final = {4: 16, 6: 48}
"""The shortest prefix of a pod CIDR that is admitted, by IP version; kube-controller-manager gives /24 and /64."""

MAX_ADDRESSES: Final = 32
"""Addresses that are read from one Node, whose status its kubelet writes."""

_ADDRESS_TYPES: Final = frozenset({"InternalIP", "ExternalIP"})


def networks_of(nodes: Iterable[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the networks of nodes, adjacent ones merged, and an error message for each rejected value.

    A value is rejected if it is not an address or network, or wider than the pods of one node need.
    """
    found: dict[int, list[Any]] = {4: [], 6: []}
    refused = []
    for node in nodes:
        for field, text in _values(node):
            try:
                network = _checked(text, address=field.startswith("status"))
                found[network.version].append(network)
            except ValueError as error:
                refused.append(f"node {node.metadata.name}: {field}: {error}")
    joined = (str(one) for version in (4, 6) for one in ipaddress.collapse_addresses(found[version]))
    return tuple(joined), tuple(sorted(refused))


def _values(node: Node) -> Iterator[tuple[str, str]]:
    addresses = (each.address for each in node.status.addresses if each.type in _ADDRESS_TYPES)
    yield from (("status.addresses", text) for text in islice(addresses, MAX_ADDRESSES))
    yield from (("spec.podCIDRs", text) for text in node.spec.pod_cidrs)


def _checked(text: str, *, address: bool) -> Network:
    network = ipaddress.ip_network(text)
    if not is_usable(str(network.network_address)) or (address and network.num_addresses > 1):
        raise ValueError(f"{text!r} is no address that a node may have")
    if network.prefixlen < WIDEST[network.version]:
        raise ValueError(f"{text!r} is wider than /{WIDEST[network.version]}")
    return network
