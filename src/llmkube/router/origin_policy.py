"""Which web pages may use the gateway: those of this machine and of the networks around it.

A browser lets any page post to 127.0.0.1, and llama-server's answer tells it that the page may read what comes back. A
page can even move its own name to 127.0.0.1 (DNS rebinding): `Host` and `Origin` then agree. So `Origin` is judged,
which browsers set and pages cannot. Programs send none: they may come by any name, through any proxy or tunnel.
A page that may use the gateway may read its answers (CORS), and no other may: one rule, and not two that drift apart.

One thing is left to a page that has moved its name: a browser sends no `Origin` when a page gets something from its own
address, so it can read what models there are. To generate, it has to post, and that always carries one.
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
"""Names that are not in the internet's DNS (RFC 6761, 6762 and 8375, ICANN on `.internal`; `.lan` by custom)."""

_SINGLE_LABEL: Final = re.compile(r"(?!xn--)[a-z0-9_-]{3,}")
"""A name without a dot, as networks at home give one to a machine.

In the internet's DNS a name without a dot is a top-level domain. Those of countries may have an address of their own,
as `http://ai` had (RFC 7085); they have two letters, or begin with `xn--`. ICANN forbids it to all others (SAC 053).
"""

_FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a form can send (HTML, 4.10.21.8)."""

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
"""Schemes whose pages come from a network. Every other one was registered on this machine by a program on it."""

_METHODS: Final = "GET, HEAD, POST"
_DELETE_PREFIX: Final = "/v1/responses/"
"""What a client may delete: responses that a router keeps for it."""

_PREFLIGHT_SECONDS: Final = 600
"""How long a browser remembers what it was allowed."""

_FIELD_NAMES: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+( *, *[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")  # RFC 9110, 5.6


def is_foreign_origin(headers: Headers) -> bool:
    """Whether a web page from elsewhere makes this request, or one that does not say where it is from.

    A page that came over https by the very name that it asks is behind a proxy of the user's: no attacker moves a name
    to a server that has no certificate for it, and what such a page fetches over http, a browser blocks. Forms it lets
    go: a page that moves its name can send one here, with that Origin, under the referrer policy `unsafe-url`. Other
    schemes are those of desktop programs and browser extensions.
    """
    origin, host = headers.get("origin"), headers.get("host")
    if origin is None:
        return False
    try:
        page, requested = urlsplit(origin), urlsplit(f"//{host}")
    except ValueError:
        return True
    if page.scheme not in _WEB_SCHEMES:
        return page.scheme == ""  # "null": a sandboxed frame, which any page can make
    behind_proxy = page.scheme == "https" and page.hostname == requested.hostname
    return not (behind_proxy and not _could_be_form(headers)) and not is_local(page.hostname or "")


def _could_be_form(headers: Headers) -> bool:
    kind = (headers.get("content-type") or "").partition(";")[0].strip().lower()
    return kind in _FORM_TYPES


def refuse_foreign_pages(head: RequestHead, peer: str) -> Response | None:
    """Let web pages from elsewhere use nothing here: the `Judge` of the gateway's server."""
    if not is_foreign_origin(head.lines):
        return None
    hint = "pages of this machine and its networks may, and those of an https proxy that passes their Host on"
    message = f"the web page {head.lines.get('origin')} may not use this gateway; {hint}"
    return refused(403, message, "origin_refused").response


def cors_lines(head: RequestHead) -> bytes:
    """Return the lines by which a browser lets a page read an answer, for pages that may use the gateway: its `Stamp`.

    The page is named, and no `*`: a browser that has kept an answer gives it to no other page. Cookies are not granted;
    the gateway has none, so that no page acts with what a user has shown to another one.
    """
    origin = head.lines.get("origin")
    if origin is None or not origin.isprintable() or is_foreign_origin(head.lines):
        return b""
    lines = [("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", "*"), ("Vary", "Origin")]
    return encode_lines(lines)


def is_preflight(head: RequestHead) -> bool:
    """Whether a browser asks, without a body and without the page's key, what the page may send (Fetch, 3.3.2)."""
    asks = head.method == "OPTIONS" and "origin" in head.lines and "access-control-request-method" in head.lines
    return asks and not head.length and not head.chunked


def preflight_answer(head: RequestHead) -> Response:
    """Allow the page, which `cors_lines` names, every header that it asks for: programs may send them all as well."""
    methods = f"{_METHODS}, DELETE" if head.path.startswith(_DELETE_PREFIX) else _METHODS
    lines = [("Access-Control-Allow-Methods", methods), ("Access-Control-Max-Age", str(_PREFLIGHT_SECONDS))]
    requested = head.lines.get("access-control-request-headers") or ""
    if _FIELD_NAMES.fullmatch(requested):
        lines.append(("Access-Control-Allow-Headers", requested))
    if head.lines.get("access-control-request-private-network") == "true":
        lines.append(("Access-Control-Allow-Private-Network", "true"))
    return Response(204, Headers(lines))


def is_local(host: str) -> bool:
    """Whether a name or an address is of this machine or of the networks around it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _SINGLE_LABEL.fullmatch(host) is not None or host.endswith(_LOCAL_DOMAINS)
    plain = embedded_ipv4(address)
    return any(plain in network for network in _NEAR_NETWORKS)
