"""Which web pages may use the gateway: those of this machine and of the networks around it.

A browser lets any page post to 127.0.0.1, and llama-server's answer tells it that the page may read what comes back. A
page can even move its own name to 127.0.0.1 (DNS rebinding): `Host` and `Origin` then agree. So `Origin` is judged,
which browsers set and pages cannot. Programs send none: they may come by any name, through any proxy or tunnel.

One thing is left to a page that has moved its name: a browser sends no `Origin` when a page gets something from its own
address, so it can read what models there are. To generate, it has to post, and that always carries one.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from llmkube.base.http.message import Headers

_OWN_DOMAINS: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan")
"""Names that are not in the internet's DNS (RFC 6761, 6762 and 8375, ICANN on `.internal`; `.lan` by custom)."""


_NEAR_NETWORKS: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"),
            *("::1/128", "fc00::/7", "fe80::/10"),
        ),
    )
)
"""Loopback, private and link-local networks (RFC 1122, 1918, 3927, 4193, 4291), and those of VPNs (RFC 6598)."""


def is_foreign_origin(headers: Headers) -> bool:
    """Whether a web page from elsewhere makes this request, or one that does not say where it is from.

    A page that came over https by the very name that it asks is behind a proxy of the user's: no attacker moves a name
    to a server that has no certificate for it. Other schemes are those of desktop programs and browser extensions.
    """
    origin, host = headers.get("origin"), headers.get("host")
    if origin is None:
        return False
    try:
        page, asked = urlsplit(origin), urlsplit(f"//{host}")
    except ValueError:
        return True
    if page.scheme not in ("http", "https"):
        return page.scheme == ""  # "null": a sandboxed frame, which any page can make
    behind_proxy = page.scheme == "https" and page.hostname == asked.hostname
    return not behind_proxy and not _is_near(page.hostname or "")


def _is_near(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_OWN_DOMAINS)
    return any(address in network for network in _NEAR_NETWORKS)
