"""Where a cluster reaches this host's engines: which address, why that one, and what to listen on for it. Pure.

Engines listen on the advertised address itself, never on all addresses. Where an address is not this machine's own (it
is the gateway of a virtual machine in which the cluster runs, and leads to this machine's loopback address) they listen
on the loopback address.

An engine that listens on an address which the host has lost cannot be reached and is started again on the
new one. As long as the host has the address, the engine stays where it is and its slice says so: a new route is no
reason to unload a model.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import attrs

NAMES_FOR_NODES: Final = ("host.docker.internal", "host.minikube.internal")
"""How the nodes of a cluster on the same machine call that machine (Docker Desktop and kind on it; minikube)."""

LOOPBACK: Final = {4: "127.0.0.1", 6: "::1"}


@attrs.frozen
class NetworkView:
    """What a look at this machine's network has shown.

    Attributes:
        own: The addresses of this machine that others may reach.
        source: From where it talks to the API server; empty when there is no route.
        same_machine: The API server is reached over the loopback address.
        named: What each of `NAMES_FOR_NODES` resolves to here, if it does.
        lan: From where it talks to the rest of the world; empty when there is no route.
    """

    own: frozenset[str] = frozenset()
    source: str = ""
    same_machine: bool = False
    named: tuple[tuple[str, str], ...] = ()
    lan: str = ""


@attrs.frozen
class HostAddress:
    """How others reach this host's engines.

    Attributes:
        address: What slices say; None when nothing is published.
        bind: What engines listen on.
        why: Why that one, in words.
        problem: What is wrong, in words; the rest is then what was right last.
        own: The addresses of this machine that others may reach.
        closed: Why every request from elsewhere needs a key, in words; "" where that is not so.
        seen: Whether the addresses were read; before that nothing is known to be lost.
    """

    address: str | None
    bind: str = LOOPBACK[4]
    why: str = ""
    problem: str = ""
    own: frozenset[str] = frozenset()
    seen: bool = True
    closed: str = ""

    def serves(self, engine_host: str) -> bool:
        """Whether an engine that listens there can be reached by those who should, as soon as there is a way to it."""
        return not self.seen or engine_host == self.bind or engine_host in self.own

    def advertised(self, engine_host: str) -> str | None:
        """Return what the slice of an engine says that listens there; of none yet, where it will be."""
        if self.address is None or engine_host in {"", self.bind} or not self.serves(engine_host):
            return self.address
        return engine_host


def choose(given: str | None, seen: NetworkView) -> HostAddress:
    """Return how this host is reached.

    Args:
        given: What the operator says (`--host-ip`).
        seen: The network as it is now.
    """
    if given is not None:
        problem = "" if given in seen.own else f"this host does not have the address {given} (--host-ip) at the moment"
        return HostAddress(given, given, "given by --host-ip", problem, seen.own)
    if seen.same_machine:
        return _choose_on_same_machine(seen)
    if is_usable(seen.source):
        return HostAddress(seen.source, seen.source, "this host talks to the API server from it", "", seen.own)
    problem = "this host has no route to the API server from an address that others reach"
    return HostAddress(None, problem=problem, own=seen.own)


def _choose_on_same_machine(seen: NetworkView) -> HostAddress:
    """The cluster is on this very machine, and its nodes see that from outside."""
    for name, address in seen.named:
        if is_usable(address):
            bind = address if address in seen.own else LOOPBACK[ipaddress.ip_address(address).version]
            why = f"the API server is on this machine, whose clusters call it {name}"
            return HostAddress(address, bind, why, "", seen.own)
    names = " and ".join(NAMES_FOR_NODES)
    if is_usable(seen.lan):
        why = f"the API server is on this machine, {names} do not resolve here, and this is its address in its network"
        return HostAddress(seen.lan, seen.lan, why, "", seen.own)
    return HostAddress(
        None,
        problem=f"the API server is on this machine, but no address of it is known that a cluster on it could reach: "
        f"{names} do not resolve here, and there is no network; give an address with --host-ip",
        own=seen.own,
    )


def keep_last(before: HostAddress | None, now: HostAddress) -> HostAddress:
    """Return what counts from now on: while no address can be found, the last one stays, with the problem noted.

    A laptop that changes networks has none for a while; nothing is unloaded for that.
    """
    if before is not None and now.address is None and now.problem:
        return attrs.evolve(before, problem=now.problem)
    return now


def is_usable(text: str) -> bool:
    """Whether an address may stand in an EndpointSlice; kube-apiserver refuses the other ones."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        return False
    return "%" not in text


def usable(addresses: Iterable[str]) -> frozenset[str]:
    """Return those addresses that others may reach."""
    return frozenset(filter(is_usable, addresses))
