"""Watch the cluster's Nodes and publish their networks, which published engines answer without a key."""

import ipaddress
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import Node
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks
from llmkube.supervisor.values.host_addresses import is_usable
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.address_policy import Network

log = structlog.get_logger(__name__)

MIN_PREFIX: Final = {4: 16, 6: 48}
"""The shortest prefix of a pod CIDR that is admitted, by IP version; kube-controller-manager gives /24 and /64."""

MAX_ADDRESSES: Final = 32
"""Maximum number of addresses read from one Node: its kubelet may write any number."""

_ADDRESS_TYPES: Final = frozenset({"InternalIP", "ExternalIP"})


REFUSED_SECONDS: Final = 60.0
"""Pause before Nodes are listed again after a refusal: an administrator may have granted the right."""

_REFUSALS: Final = (403, 404)
"""Statuses of an API server that forbids this host to list Nodes, or does not serve them."""


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
        raise ValueError(f"{text!r} is not an address that a node may have")
    if network.prefixlen < MIN_PREFIX[network.version]:
        raise ValueError(f"{text!r} is wider than /{MIN_PREFIX[network.version]}")
    return network


@attrs.define(eq=False)
class NodeMonitor:
    """Keeps the admitted networks up to date.

    Attributes:
        client: The API server.
        settings: The agent's settings.
        publish: Writes the networks for the proxies.
        rng: Adds jitter to the pauses of the watch.
        admitted: The newest networks; None until the API server has listed the nodes, or refused to.
    """

    client: Client
    settings: AgentSettings
    publish: Callable[[AdmittedNetworks], Awaitable[None]]
    rng: random.Random
    admitted: AdmittedNetworks | None = None
    _nodes: Cache[Node] = attrs.field(factory=Cache)
    _updates: Mailbox[str] = attrs.field(factory=lambda: Mailbox(""))  # why the nodes cannot be listed
    _refused: frozenset[str] = frozenset()

    @property
    def closed(self) -> str:
        """Reason why every request from another host needs a key; "" if some need none, or it is not known yet."""
        return self.admitted.closed if self.admitted is not None else ""

    async def run(self) -> None:
        """Publish the networks whenever they change; never return.

        The networks that an earlier agent published stay in effect until the API server answers.
        """
        if self.settings.insecure_lan:
            await self._set(AdmittedNetworks(self.settings.keyless_networks))
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_nodes)
            nursery.start_soon(self._report_first_list)
            version = 0
            while True:
                await self._updates.wait_newer(version)
                version = self._updates.version
                await self._set(self._known())

    async def _watch_nodes(self) -> Never:
        while True:
            try:
                await run_reflector(self.client, Node, self._nodes, self._on_node, rng=self.rng, fatal=_REFUSALS)
            except ApiError as error:
                self._updates.put_nowait(f"no list of nodes (the API server answered HTTP {error.code})")
            await trio.sleep(REFUSED_SECONDS)

    async def _report_first_list(self) -> None:
        await self._nodes.synced.wait()
        self._updates.put_nowait("")  # even if there are no nodes

    def _on_node(self, _key: Key) -> None:
        self._updates.put_nowait("")

    def _known(self) -> AdmittedNetworks:
        """Return the networks; Nodes that were listed stay admitted if listing is forbidden later."""
        if not self._nodes.synced.is_set():
            return AdmittedNetworks(self.settings.allow_from, problem=self._updates.value)
        networks, refused = networks_of(self._nodes.values())
        for each in refused:
            if each not in self._refused:
                log.warning("network of a node not admitted", problem=each)
        self._refused = frozenset(refused)
        return AdmittedNetworks(self.settings.allow_from, networks)

    async def _set(self, now: AdmittedNetworks) -> None:
        if now == self.admitted:
            return
        self.admitted = now
        write_log = log.warning if now.closed else log.info
        write_log("networks admitted", admitted=now.summary)
        try:
            await self.publish(now)
        except OSError as error:
            log.warning("admitted networks not written; proxies keep the previous ones", error=str(error))
