"""A router's port for its operator: probes and metrics, how its backends do, and when it may end.

Programs that come by an address, or by a name of these networks, may ask; a page in a browser may not.
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
"""How long a pod that has to end still takes requests: until the proxies of its cluster know that it goes."""

MAX_DRAIN_SECONDS: Final = 300.0
"""How long requests in flight may take after that."""

MAX_DRAINS: Final = 4
"""Who may wait for the end of the requests at once: a kubelet asks one time, and probes need the other connections."""

_POLL_SECONDS: Final = 0.25
_CLUSTER_DOMAINS: Final = (".svc", ".cluster.local")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")  # RFC 9110, 7.2


def admin_handler(router: Router, registry: CollectorRegistry) -> Handler:
    """Answer `/healthz`, `/readyz`, `/metrics`, `/backends` and `/drained`.

    `/backends` says of each backend whether requests are sent to it, and why not; of each budget, how much is taken.
    `/drained` is answered once a router that is about to end has no request left, or has had its time: a kubelet asks
    it before it sends TERM.
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
                refusal = {"error": f"{MAX_DRAINS} others wait for the end of the requests already; ask again later"}
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
        while router.in_flight():  # noqa: ASYNC110 (the last of many requests: each would have to tell)
            await trio.sleep(_POLL_SECONDS)


def admin_judge(head: RequestHead, peer: str) -> Response | None:
    """Refuse web pages, and requests by a name that its owner in the internet may point here: a `Judge`."""
    host = _host_of(head)
    if is_foreign_origin(head.lines) or not (is_local(host) or host.endswith(_CLUSTER_DOMAINS)):
        message = "this port is for the operator's tools: ask it by its address, or by a name of its own network"
        return refused(403, message, "host_refused").response
    return None


def _host_of(head: RequestHead) -> str:
    """Return the name or address that a Host header consists of, "" of one that is more than that and a port.

    A URL parser would read `a.svc/@evil.example` and `[::1].evil.example` as names of these networks.
    """
    host = _HOST.fullmatch(head.lines.get("host") or "")
    return (host[1] or host[2]).lower().rstrip(".") if host else ""
