"""Read this machine's network addresses and memory. No packets are sent, except to resolve names."""

import contextlib
import ipaddress
import secrets
import socket
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.private_files import write_private
from llmkube.supervisor.host.processes import interface_addresses
from llmkube.supervisor.host.this_machine import sample_here
from llmkube.supervisor.values.host_addresses import NAMES_FOR_NODES, HostAddress, NetworkView, choose, usable
from llmkube.supervisor.values.ports import HostFacts

RESOLVE_SECONDS = 2.0
"""Time limit for resolving a name; after it, the name has no addresses."""

DOCUMENTATION_ADDRESSES = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849), which are reached over the default route."""

STABLE_SOURCE: Final = {"linux": (72, 2), "darwin": (63, 0)}
"""Socket option and value with which IPv6 prefers permanent source addresses; Python has no names for them.

Linux: IPV6_ADDR_PREFERENCES, IPV6_PREFER_SRC_PUBLIC (RFC 5014; linux/in6.h). macOS: IPV6_PREFER_TEMPADDR, off
(netinet6/in6.h).
"""

CACHE_SECONDS = 60.0
"""Time for which the addresses of a name are cached while this machine's own do not change, so that a check every few
seconds does not query a name server each time."""


@attrs.frozen
class _Resolved:
    own: frozenset[str]
    until: float
    targets: list[tuple[str, int]]


@attrs.define(eq=False)
class LocalNetwork:
    """This machine's network, for the address of its engines.

    Attributes:
        api_server: URL of the API server.
        given: Address that the operator chose, or None.
    """

    api_server: str
    given: str | None = None
    _cache: dict[str, _Resolved] = attrs.field(factory=dict)

    async def find_address(self) -> HostAddress | None:
        """Return this host's current address; None if it cannot be read because no file descriptor is left."""
        try:
            own = own_addresses()
        except OSError:
            await trio.lowlevel.checkpoint()
            return None
        return choose(self.given, await self._view(own))

    async def _view(self, own: frozenset[str]) -> NetworkView:
        """Read routes and resolve names."""
        if self.given is not None:
            await trio.lowlevel.checkpoint()
            return NetworkView(own)
        url = urlsplit(self.api_server)
        targets = await self._addresses(url.hostname or "", url.port or 443, own)
        source = _route_source(targets)
        same_machine = bool(source) and ipaddress.ip_address(source).is_loopback
        if not same_machine:
            return NetworkView(own, source)
        named = tuple([(name, host) for name in NAMES_FOR_NODES for host, _ in await self._addresses(name, 443, own)])
        lan = next(filter(None, (_route_source([(address, 9)]) for address in DOCUMENTATION_ADDRESSES)), "")
        return NetworkView(own, source, same_machine, named, lan)

    async def _addresses(self, name: str, port: int, own: frozenset[str]) -> list[tuple[str, int]]:
        known = self._cache.get(name)
        if known is None or known.own != own or known.until <= trio.current_time():
            targets = await _resolve(name, port)
            known = self._cache[name] = _Resolved(own, trio.current_time() + CACHE_SECONDS, targets)
        return known.targets


def own_addresses() -> frozenset[str]:
    """Return the current addresses of this machine that others may reach.

    Raises:
        OSError: They cannot be read because no file descriptor is left.
    """
    return usable(interface_addresses())


def host_facts() -> HostFacts:
    """Return this host's total and available memory; zeros if not known.

    In a container, or a systemd service with a memory limit, the limit applies.
    """
    try:
        sample = sample_here()
    except (OSError, ValueError, KeyError):
        return HostFacts()
    return HostFacts(sample.total_bytes, sample.available_bytes)


def machine_of(state_dir: Path) -> str:
    """Return the identity of this machine: its current name, and a number that its first agent generated.

    Raises:
        OSError: The state directory cannot be written.
    """
    # Not the system's own id: copies of a virtual machine share it, and with it their default `--host-name`.
    path = state_dir / "machine"
    try:
        number = path.read_text("ascii").strip()
    except FileNotFoundError:
        number = secrets.token_hex(8)
        write_private(path, f"{number}\n")
    return f"{socket.gethostname()} ({number})"


async def _resolve(host: str, port: int) -> list[tuple[str, int]]:
    with trio.move_on_after(RESOLVE_SECONDS):
        try:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError:
            return []
        return [(str(target[0]), int(target[1])) for *_, target in found]
    return []


def _route_source(targets: list[tuple[str, int]]) -> str:
    """Return the source address of the route to the first target that has one.

    IPv6 addresses are permanent ones: temporary addresses (RFC 8981) expire within days, and engines on them would have
    to restart.
    """
    for host, port in targets:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                if family is socket.AF_INET6 and (option := STABLE_SOURCE.get(sys.platform)):
                    with contextlib.suppress(OSError):  # then the kernel's default applies
                        probe.setsockopt(socket.IPPROTO_IPV6, *option)
                probe.connect((host, port))  # a datagram socket sends nothing here; it only queries the routing table
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
    return ""
