"""Choose the address at which a cluster reaches this host's engines, and the address that they listen on. Pure.

Engines listen on the advertised address itself, never on all addresses. If that address is not this machine's own (it
may be the gateway of a virtual machine that runs the cluster, and lead to this machine's loopback address), they listen
on the loopback address.

An engine that listens on an address that the host has lost is restarted on the new one. As long as the host has the
address, the engine keeps it, and its slice has it, too: a new route is no reason to unload a model.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import attrs

NAMES_FOR_NODES: Final = ("host.docker.internal", "host.minikube.internal")
"""Names for this machine in nodes of a cluster on the same machine (Docker Desktop and kind on it; minikube)."""

LOOPBACK: Final = {4: "127.0.0.1", 6: "::1"}


@attrs.frozen
class NetworkView:
    """Snapshot of this machine's network.

    Attributes:
        own: Addresses of this machine that others may reach.
        source: Source address of the route to the API server; "" without a route.
        same_machine: Whether the API server is reached over the loopback address.
        named: Names of `NAMES_FOR_NODES` that resolve here, with their addresses.
        lan: Source address of the default route; "" without one.
    """

    own: frozenset[str] = frozenset()
    source: str = ""
    same_machine: bool = False
    named: tuple[tuple[str, str], ...] = ()
    lan: str = ""


@attrs.frozen
class HostAddress:
    """The address at which others reach this host's engines.

    Attributes:
        address: Address in slices; None if nothing is published.
        bind: Address that engines listen on.
        why: Reason for this address, for people.
        problem: Why no address can be found now, for people; the other values are then the last good ones.
        own: Addresses of this machine that others may reach.
        closed: Reason why every request from elsewhere needs a key, for people; "" if some need none.
        seen: Whether the addresses were read; until then none is known to be lost.
    """

    address: str | None
    bind: str = LOOPBACK[4]
    why: str = ""
    problem: str = ""
    own: frozenset[str] = frozenset()
    seen: bool = True
    closed: str = ""

    def serves(self, engine_host: str) -> bool:
        """Whether an engine that listens on this address is reachable, or will be once there is a route."""
        return not self.seen or engine_host == self.bind or engine_host in self.own

    def advertised(self, engine_host: str) -> str | None:
        """Return the address in the slice of an engine that listens on `engine_host`; None if nothing is published."""
        if self.address is None or engine_host in {"", self.bind} or not self.serves(engine_host):
            return self.address
        return engine_host


def choose(given: str | None, seen: NetworkView) -> HostAddress:
    """Return the address at which this host is reached.

    Args:
        given: The operator's choice (`--host-ip`).
        seen: The network as it is now.
    """
    if given is not None:
        problem = "" if given in seen.own else f"this machine does not currently have the address {given} (--host-ip)"
        return HostAddress(given, given, "given by --host-ip", problem, seen.own)
    if seen.same_machine:
        return _choose_on_same_machine(seen)
    if is_usable(seen.source):
        why = "source address of this machine's connections to the API server"
        return HostAddress(seen.source, seen.source, why, "", seen.own)
    problem = "this machine has no route to the API server from an address that others can reach"
    return HostAddress(None, problem=problem, own=seen.own)


def _choose_on_same_machine(seen: NetworkView) -> HostAddress:
    """Return the address if the cluster is on this machine, whose nodes reach the machine from outside."""
    for name, address in seen.named:
        if is_usable(address):
            bind = address if address in seen.own else LOOPBACK[ipaddress.ip_address(address).version]
            why = f"address of {name}: the API server is on this machine, and its nodes use that name for it"
            return HostAddress(address, bind, why, "", seen.own)
    names = " and ".join(NAMES_FOR_NODES)
    if is_usable(seen.lan):
        why = f"LAN address: the API server is on this machine, and {names} do not resolve here"
        return HostAddress(seen.lan, seen.lan, why, "", seen.own)
    problem = (
        "no address found: the API server is on this machine, "
        f"{names} do not resolve here, and there is no network; set an address with --host-ip"
    )
    return HostAddress(None, problem=problem, own=seen.own)


def keep_last(before: HostAddress | None, now: HostAddress) -> HostAddress:
    """Return the new address; if none can be found, the last one with the problem."""
    # A laptop that changes networks has no address for a while, which is no reason to unload anything.
    if before is not None and now.address is None and now.problem:
        return attrs.evolve(before, problem=now.problem)
    return now


def is_usable(text: str) -> bool:
    """Whether kube-apiserver accepts an address in an EndpointSlice."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        return False
    return "%" not in text


def usable(addresses: Iterable[str]) -> frozenset[str]:
    """Return the addresses that others may reach."""
    return frozenset(filter(is_usable, addresses))
