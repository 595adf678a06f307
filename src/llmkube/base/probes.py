"""Endpoints for the liveness, readiness and metrics of a process."""

import math
from collections.abc import Callable, Sequence
from typing import Final, Never

import attrs
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from llmkube.base.http.exchange import Exchange, Handler
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server

ReadinessCheck = Callable[[], tuple[bool, str]]
"""Returns whether the process is ready, and the reason."""


def with_metrics(handler: Handler, registry: CollectorRegistry) -> Handler:
    """Serve `GET /metrics` as `probes_handler` does, and pass all other requests to another handler."""
    metrics = _CachedMetrics(registry)

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if request.path == "/metrics" and request.method in ("GET", "HEAD"):
            await exchange.respond(metrics.get(request.headers.get("accept") or ""))
        else:
            await handler(exchange)

    return handle


METRICS_SECONDS: Final = 1.0
"""Greatest age of metrics."""

_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"

LIMITS: Final = Limits(max_connections=16, max_head_bytes=8192, max_body_bytes=0, drain_seconds=1.0)
"""Enough for a few monitoring tools, which send no bodies; beyond that, waiting connections are closed for new ones."""


async def run_probes(
    ready: ReadinessCheck,
    registry: CollectorRegistry,
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> Never:
    """Serve the endpoints until cancelled."""
    await run_server(probes_handler(ready, registry), listeners, limits=LIMITS, task_status=task_status)


def probes_handler(ready: ReadinessCheck, registry: CollectorRegistry) -> Handler:
    """Serve `/healthz`, `/readyz` and `/metrics`, without waiting for anything.

    `/healthz` only shows that the process answers: a failed liveness probe causes a restart, which does not help if
    a dependency has failed. `/readyz` is 503 with the reason while `ready`, called each time, returns False.
    `/metrics` is in Prometheus text format, or in OpenMetrics for a client that accepts it, and up to a second old.
    """
    metrics = _CachedMetrics(registry)

    def answer(path: str, accept: str) -> Response:
        if path == "/healthz":
            return Response.json(200, {"status": "ok"})
        if path == "/readyz":
            is_ready, reason = ready()
            status = "ok" if is_ready else "not ready"
            return Response.json(200 if is_ready else 503, {"status": status, "reason": reason})
        if path == "/metrics":
            return metrics.get(accept)
        return Response.json(404, {"error": f"{path} not found; use /healthz, /readyz or /metrics"})

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if request.method not in ("GET", "HEAD"):
            refusal = {"error": f"{request.method} is not allowed; use GET or HEAD"}
            await exchange.respond(Response.json(405, refusal, headers=Headers.of({"Allow": "GET, HEAD"})))
            return
        await exchange.respond(answer(request.path, request.headers.get("accept") or ""))

    return handle


@attrs.define(eq=False)
class _CachedMetrics:
    """The metrics in each format, computed once per `METRICS_SECONDS`.

    With many series, this takes the event loop tens of milliseconds, for every user of the machine who asks.
    """

    registry: CollectorRegistry
    _responses: dict[str, tuple[float, Response]] = attrs.field(factory=dict)

    def get(self, accept: str) -> Response:
        # two formats, and not every version and escaping that a client may name: each would be computed
        _, accepted = choose_encoder(accept)
        encode, content_type = choose_encoder(_OPENMETRICS if accepted.startswith("application/openmetrics") else "")
        now = trio.current_time()
        computed_at, response = self._responses.get(content_type, (-math.inf, None))
        if response is None or now - computed_at >= METRICS_SECONDS:
            response = Response(200, Headers.of({"Content-Type": content_type}), encode(self.registry))
            self._responses[content_type] = now, response
        return response
