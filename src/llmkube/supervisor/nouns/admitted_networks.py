"""The networks whose requests published engines answer without a key: `--allow-from`, and those of the cluster's nodes.

An agent writes them into a file of its state directory, which its proxies, and `llmkube agent status`, read. Pure.
"""

import ipaddress
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.k8s.builtins import Node
from llmkube.supervisor.nouns.host_addresses import is_usable
from llmkube.supervisor.nouns.settings import EVERYWHERE
from llmkube.weights.address_policy import Network

WIDEST: Final = {4: 16, 6: 48}
"""The shortest prefix of a pod CIDR that is admitted, by IP version; kube-controller-manager gives /24 and /64."""

MAX_ADDRESSES: Final = 32
"""Addresses that count of one node: its kubelet writes them."""

_ADDRESS_TYPES: Final = frozenset({"InternalIP", "ExternalIP"})
_MAX_SHOWN: Final = 8


@attrs.frozen
class AdmittedNetworks:
    """The networks (CIDR) whose requests need no key, beside this host's own.

    Attributes:
        given: Those of `--allow-from`.
        nodes: The addresses of the cluster's nodes and their pod CIDRs.
        problem: Why the nodes are not known; "" where they are.
    """

    given: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def closed(self) -> str:
        """Why every request from elsewhere needs a key; "" where some need none."""
        if self.given or self.nodes:
            return ""
        return f"{self.problem or 'no nodes'}, and no --allow-from"

    @property
    def summary(self) -> str:
        """For people: who needs no key."""
        if self.given == EVERYWHERE:
            return "every address (--insecure-lan)"
        parts = ["this host"]
        parts += [f"nodes ({_shown(self.nodes)})"] if self.nodes else []
        parts += [f"--allow-from ({_shown(self.given)})"] if self.given else []
        return ", ".join(parts) + (f"; {self.problem}" if self.problem else "")

    def dump(self) -> str:
        """Return the text of the file."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def load(cls, text: str) -> "AdmittedNetworks":
        """Read what `dump` wrote.

        Raises:
            ValueError: It is none.
        """
        try:
            said: dict[str, Any] = json.loads(text)
            return cls(tuple(map(str, said["given"])), tuple(map(str, said["nodes"])), str(said["problem"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the file of admitted networks: {error!r}") from error


def networks_path(state_dir: Path) -> Path:
    """Return the file; it outlives the agent, as its engines may."""
    return state_dir / "admitted-networks.json"


def networks_of(nodes: Iterable[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the networks of nodes, joined where they are adjacent, and a sentence for each value that is refused.

    A value that is no address or network, or a network of far more than one node's pods, admits nothing.
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


def _shown(networks: tuple[str, ...]) -> str:
    more = len(networks) - _MAX_SHOWN
    return ", ".join(networks[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
