"""A look at this machine's network and memory, for real. Nothing here sends a packet, except to resolve a name."""

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
"""How long a name may take; a resolver that does not answer knows nothing."""

DOCUMENTATION_ADDRESSES = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849): the route to them is the route to the rest of the world."""

STABLE_SOURCE: Final = {"linux": (72, 2), "darwin": (63, 0)}
"""The socket option, and its value, by which IPv6 prefers the addresses that stay; Python has no names for them.

Linux: IPV6_ADDR_PREFERENCES, IPV6_PREFER_SRC_PUBLIC (RFC 5014; linux/in6.h). macOS: IPV6_PREFER_TEMPADDR, off
(netinet6/in6.h).
"""

CACHE_SECONDS = 60.0
"""How long a name's addresses are believed, while this machine's own stay the same: a look every few seconds must not
be a question to a name server every few seconds."""


@attrs.frozen
class _Resolved:
    own: frozenset[str]
    until: float
    targets: list[tuple[str, int]]


@attrs.define(eq=False)
class LocalNetwork:
    """This machine, as the clients of its engines see it.

    Attributes:
        api_server: The URL of the API server.
        given: What the operator says that the address is, or None.
    """

    api_server: str
    given: str | None = None
    _cache: dict[str, _Resolved] = attrs.field(factory=dict)

    async def look(self) -> HostAddress | None:
        """Say how this host is reached now; None when it cannot look: no descriptor is left for the question."""
        try:
            own = own_addresses()
        except OSError:
            await trio.lowlevel.checkpoint()
            return None
        return choose(self.given, await self._view(own))

    async def _view(self, own: frozenset[str]) -> NetworkView:
        """Look at routes and names."""
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
    """Return the addresses of this machine, as it is now, that others may reach.

    Raises:
        OSError: It cannot be asked: no descriptor is left for the question.
    """
    return usable(interface_addresses())


def host_facts() -> HostFacts:
    """Say how much memory programs may use here, and how much they could still get; nothing where that is not known.

    In a container, or a systemd service with a limit, that limit counts: it is what models are promised from.
    """
    try:
        seen = sample_here()
    except (OSError, ValueError, KeyError):
        return HostFacts()
    return HostFacts(seen.total_bytes, seen.available_bytes)


def machine_of(state_dir: Path) -> str:
    """Return which machine this is: its name now, and a number that it has made for itself when it first ran an agent.

    The system's own id will not do: copies of a virtual machine share it, and with it their default `--host-name`.

    Raises:
        OSError: The state directory cannot be written.
    """
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
    """Return the address from which this machine would talk to the first target that it has a route to.

    Of its IPv6 addresses one that stays: a temporary one (RFC 8981) is gone within days, and the engines on it end.
    """
    for host, port in targets:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                if family is socket.AF_INET6 and (option := STABLE_SOURCE.get(sys.platform)):
                    with contextlib.suppress(OSError):  # then the kernel chooses as it likes
                        probe.setsockopt(socket.IPPROTO_IPV6, *option)
                probe.connect((host, port))  # a datagram socket sends nothing here: it only asks the routing table
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
    return ""
