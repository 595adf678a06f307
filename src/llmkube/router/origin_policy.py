"""Origin policy of the gateway: web pages of this machine and of the networks around it may use it.

A browser lets any page post to 127.0.0.1, and llama-server's CORS headers let the page read the response. A page can
even point its own name at 127.0.0.1 (DNS rebinding): `Host` and `Origin` then agree. So the policy checks `Origin`,
which browsers set and pages cannot. Programs send none: they may use any name, through any proxy or tunnel.
The same rule decides which pages may use the gateway and which may read its responses (CORS).

A rebinding page can still list the models: a browser sends no `Origin` with a same-origin GET. To generate text it has
to POST, which always carries one.
"""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response, encode_lines
from llmkube.router.refusals import refused
from llmkube.weights.address_policy import embedded_ipv4

_LOCAL_DOMAINS: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan")
"""Domains outside the public DNS (RFC 6761, 6762 and 8375, ICANN on `.internal`; `.lan` by custom)."""

_SINGLE_LABEL: Final = re.compile(r"(?!xn--)[a-z0-9_-]{3,}")
"""A name without a dot, as home networks give one to a machine.

In the public DNS a name without a dot is a top-level domain. Those of countries may have an address, as `http://ai` had
(RFC 7085); they have two letters, or begin with `xn--`. ICANN forbids addresses of all others (SAC 053).
"""

_FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Content types that a form can send (HTML, 4.10.21.8)."""

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


_WEB_SCHEMES: Final = frozenset({"http", "https", "ws", "wss", "ftp"})
"""Schemes whose pages come from a network. Programs on this machine register all others, except `_OPAQUE_SCHEMES`."""

_OPAQUE_SCHEMES: Final = frozenset(
    {"", "about", "blob", "content", "data", "file", "filesystem", "javascript", "view-source"}
)
"""Schemes of pages that anyone can make, such as downloaded files, and of `null`: sandboxed frames (HTML, 7.1.1)."""

_HTTPS_PORT: Final = 443

_METHODS: Final = "GET, HEAD, POST"
_DELETE_PREFIX: Final = "/v1/responses/"
"""Path prefix where DELETE is allowed: stored responses."""

_PREFLIGHT_SECONDS: Final = 600
"""Time for which a browser caches a preflight response."""

_FIELD_NAMES: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+( *, *[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")  # RFC 9110, 5.6


def is_foreign_origin(headers: Headers, *, https_proxy_pages: bool = True) -> bool:
    """Return whether a request comes from a foreign web page, or from a page with an opaque origin.

    An https page with the same name and port as `Host` is behind the user's own proxy: DNS rebinding fails there,
    because this server has no certificate for the attacker's name, and a browser blocks what such a page fetches over
    http. But browsers let a page submit a form over http: a rebinding page can send one with that Origin, under the
    referrer policy `unsafe-url`, so content types of forms are excluded. Schemes other than those of the web belong to
    desktop programs and browser extensions.

    Args:
        headers: Headers of the request.
        https_proxy_pages: Whether pages behind an https proxy are near.
    """
    origin, host = headers.get("origin"), headers.get("host")
    if origin is None:
        return False
    try:
        page, requested = urlsplit(origin), urlsplit(f"//{host}")
        is_same = (page.hostname, page.port or _HTTPS_PORT) == (requested.hostname, requested.port or _HTTPS_PORT)
    except ValueError:
        return True
    if page.scheme not in _WEB_SCHEMES:
        return page.scheme in _OPAQUE_SCHEMES
    could_be_form = (headers.get("content-type") or "").partition(";")[0].strip().lower() in _FORM_TYPES
    behind_proxy = https_proxy_pages and page.scheme == "https" and is_same and not could_be_form
    return not behind_proxy and not is_local(page.hostname or "")


def refuse_foreign_pages(head: RequestHead, peer: str, *, https_proxy_pages: bool = True) -> Response | None:
    """Refuse requests of foreign web pages: the `RequestFilter` of the gateway's server."""
    if not is_foreign_origin(head.lines, https_proxy_pages=https_proxy_pages):
        return None
    hint = "pages of this machine and its networks may"
    if https_proxy_pages:
        hint += ", and pages behind an https proxy that forwards the Host header with its port"
    message = f"the web page {head.lines.get('origin')} may not use this gateway; {hint}"
    return refused(403, message, "origin_refused").response


def cors_lines(head: RequestHead, *, https_proxy_pages: bool = True) -> bytes:
    """Return the CORS header lines for a page that may use the gateway, none for others: the gateway's `Stamp`.

    The origin is named instead of `*`, so that a browser does not give a cached response to another page. Credentials
    are not allowed: the gateway has no cookies, so no page can act with the login of another.
    """
    origin = head.lines.get("origin")
    if origin is None or not origin.isprintable():
        return b""
    if is_foreign_origin(head.lines, https_proxy_pages=https_proxy_pages):
        return b""
    lines = [("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", "*"), ("Vary", "Origin")]
    return encode_lines(lines)


def is_preflight(head: RequestHead) -> bool:
    """Return whether a request is a CORS preflight, which has no body and no key of the page (Fetch, 3.3.2)."""
    asks = head.method == "OPTIONS" and "origin" in head.lines and "access-control-request-method" in head.lines
    return asks and not head.length and not head.chunked


def preflight_answer(head: RequestHead) -> Response:
    """Return a preflight response that allows every requested header, as programs may send any.

    `cors_lines` adds the origin.
    """
    methods = f"{_METHODS}, DELETE" if head.path.startswith(_DELETE_PREFIX) else _METHODS
    lines = [("Access-Control-Allow-Methods", methods), ("Access-Control-Max-Age", str(_PREFLIGHT_SECONDS))]
    requested = head.lines.get("access-control-request-headers") or ""
    if _FIELD_NAMES.fullmatch(requested):
        lines.append(("Access-Control-Allow-Headers", requested))
    if head.lines.get("access-control-request-private-network") == "true":
        lines.append(("Access-Control-Allow-Private-Network", "true"))
    return Response(204, Headers(lines))


def names_near_host(head: RequestHead) -> bool:
    """Return whether the `Host` of a request belongs to this machine or to the networks around it."""
    try:
        return is_local(urlsplit(f"//{head.lines.get('host')}").hostname or "")
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Return whether an address, as written by a socket, is this machine's own."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Return whether a name or an address belongs to this machine or to the networks around it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _SINGLE_LABEL.fullmatch(host) is not None or host.endswith(_LOCAL_DOMAINS)
    plain = embedded_ipv4(address)
    return any(plain in network for network in _NEAR_NETWORKS)
