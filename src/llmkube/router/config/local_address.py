"""Whether a URL can only name something in this network: what leaves it is not local, whatever a ModelRouter says."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_LOCAL_ENDINGS: Final = (".svc", ".cluster.local", ".local", ".internal", ".home.arpa", ".localhost")
"""Names that no server of the Internet answers for: the cluster's, mDNS's, those that are set aside for networks."""

_LABEL: Final = re.compile(r"[a-z][a-z0-9-]*")
"""Begins with a letter: `0x08080808` is an address to a resolver, and no name."""


def stays_here(url: str) -> bool:
    """Return whether the host is a private address, or a name that only a local name server knows."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A name without a dot is completed with the cluster's own domains first
        return _LABEL.fullmatch(host) is not None or host.endswith(_LOCAL_ENDINGS)
    mapped = getattr(address, "ipv4_mapped", None)
    return _is_private(mapped or address)


def _is_private(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(address.version == network.version and address in network for network in _PRIVATE)


_PRIVATE: Final = tuple(
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1/128", "fc00::/7")
)
"""RFC 1918, the range of carriers that tailnets use, loopback, and unique local addresses."""
