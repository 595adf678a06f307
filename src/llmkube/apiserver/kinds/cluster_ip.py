"""A Service gets a ClusterIP so that it reads as it would in a cluster; nothing routes to that address here.

The embedded server has no network: clients on this machine reach an engine through the gateway. The address is stable
for as long as the Service exists, unique, and from Kubernetes' usual range.
"""

import hashlib
import ipaddress
from collections.abc import Collection
from typing import Final

SERVICE_NETWORK: Final = ipaddress.ip_network("10.96.0.0/12")
_RESERVED: Final = 16  # the first addresses are those of well-known services (10.96.0.1 kubernetes, 10.96.0.10 DNS)


def allocate_cluster_ip(name: str, taken: Collection[str]) -> str:
    """Return a free address; where possible the same one for the same name, so that a Service made anew keeps it."""
    size = SERVICE_NETWORK.num_addresses - _RESERVED - 1  # without the broadcast address
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    for offset in range(size):
        address = str(SERVICE_NETWORK[_RESERVED + (start + offset) % size])
        if address not in taken:
            return address
    raise OverflowError("all addresses of the service network are taken")
