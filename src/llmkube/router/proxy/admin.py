"""Admin port of a router: probes, metrics, health of its backends, and draining before it stops.

Programs that use an address, or a name of a local network, have access; web pages do not.
"""

import re
from typing import Final

import trio
from prometheus_client import CollectorRegistry

from llmkube.base.http.exchange import Exchange, Handler
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.base.probes import probes_handler
from llmkube.router.origin_policy import is_foreign_origin, is_local
from llmkube.router.proxy.router import Router
from llmkube.router.refusals import refused

SETTLE_SECONDS: Final = 5.0
"""Time for which a terminating pod still accepts requests, until the cluster's proxies have removed its endpoint."""

MAX_DRAIN_SECONDS: Final = 300.0
"""Time limit for requests in flight after that."""

MAX_DRAINS: Final = 4
"""Concurrent requests for `/drained`: a kubelet sends one, and probes need the other connections."""

_POLL_SECONDS: Final = 0.25
_CLUSTER_DOMAINS: Final = (".svc", ".cluster.local")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")  # RFC 9110, 7.2


def admin_handler(router: Router, registry: CollectorRegistry) -> Handler:
    """Serve `/healthz`, `/readyz`, `/metrics`, `/backends` and `/drained`.

    `/backends` lists whether each backend gets requests, the reason if not, and the use of each budget.
    `/drained` responds once no requests are in flight or the time limit has passed: it is the preStop hook that a
    kubelet calls before SIGTERM.
    """
    probes = probes_handler(router.ready, registry)
    limiter = trio.CapacityLimiter(MAX_DRAINS)

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if request.path == "/backends" and request.method in ("GET", "HEAD"):
            backends = [{"name": name, "healthy": not why, "message": why} for name, why in router.states().items()]
            await exchange.respond(Response.json(200, {"backends": backends, "budgets": list(router.budgets())}))
        elif request.path == "/drained" and request.method in ("GET", "HEAD"):
            if not limiter.available_tokens:
                refusal = {"error": f"{MAX_DRAINS} requests for /drained are already pending; retry later"}
                await exchange.respond(Response.json(429, refusal))
                return
            async with limiter:
                await _drain(router)
            await exchange.respond(Response.json(200, {"requests": router.in_flight()}))
        else:
            await probes(exchange)

    return handle


async def _drain(router: Router) -> None:
    await trio.sleep(SETTLE_SECONDS)
    with trio.move_on_after(MAX_DRAIN_SECONDS):
        while router.in_flight():  # noqa: ASYNC110 (an event would have to be set by every request)
            await trio.sleep(_POLL_SECONDS)


def admin_filter(head: RequestHead, peer: str) -> Response | None:
    """Refuse web pages, and requests for public names, whose owners may point them here: a `RequestFilter`."""
    host = _host_of(head)
    if is_foreign_origin(head.lines) or not (is_local(host) or host.endswith(_CLUSTER_DOMAINS)):
        message = "this port is for the operator's tools: use its address, or a name of its own network"
        return refused(403, message, "host_refused").response
    return None


def _host_of(head: RequestHead) -> str:
    """Return the name or address in a Host header; "" if the header is anything but that and an optional port.

    A URL parser would accept `a.svc/@evil.example` and `[::1].evil.example` as local names.
    """
    host = _HOST.fullmatch(head.lines.get("host") or "")
    return (host[1] or host[2]).lower().rstrip(".") if host else ""
