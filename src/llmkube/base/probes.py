"""What an operator's tools ask a process: is it alive, is it ready, how is it doing."""

from collections.abc import Callable, Sequence
from typing import Final, Never

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from llmkube.base.http.exchange import Exchange, Handler
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server

ReadinessCheck = Callable[[], tuple[bool, str]]
"""Returns whether the process does its work, and why (not)."""


def with_metrics(handler: Handler, registry: CollectorRegistry) -> Handler:
    """Answer `GET /metrics` as `probes_handler` does, and leave everything else to another handler."""

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if request.path == "/metrics" and request.method in ("GET", "HEAD"):
            await exchange.respond(_metrics(registry, request.headers.get("accept") or ""))
        else:
            await handler(exchange)

    return handle


LIMITS: Final = Limits(max_connections=16, max_head_bytes=8192, max_body_bytes=0, drain_seconds=1.0)
"""A handful of operators' tools, and no bodies: a crowd at this port gives way to the next one that asks."""


async def run_probes(
    ready: ReadinessCheck,
    registry: CollectorRegistry,
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> Never:
    """Never return: answer operators' tools."""
    await run_server(probes_handler(ready, registry), listeners, limits=LIMITS, task_status=task_status)


def probes_handler(ready: ReadinessCheck, registry: CollectorRegistry) -> Handler:
    """Answer `/healthz`, `/readyz` and `/metrics`; nothing here waits for anything.

    `/healthz` says only that the process answers: a supervisor that restarts on it must not be told of a world in
    trouble. `/readyz` is 503 with the reason while `ready` says no. `/metrics` is Prometheus text, or OpenMetrics for a
    client that accepts it.

    Args:
        ready: Called at each `/readyz`.
        registry: What `/metrics` shows.
    """

    def answer(path: str, accept: str) -> Response:
        if path == "/healthz":
            return Response.json(200, {"status": "ok"})
        if path == "/readyz":
            is_ready, reason = ready()
            status = "ok" if is_ready else "not ready"
            return Response.json(200 if is_ready else 503, {"status": status, "reason": reason})
        if path == "/metrics":
            return _metrics(registry, accept)
        return Response.json(404, {"error": f"nothing at {path}; there are /healthz, /readyz and /metrics"})

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if request.method not in ("GET", "HEAD"):
            refusal = {"error": f"{request.method} is not allowed here"}
            await exchange.respond(Response.json(405, refusal, headers=Headers.of({"Allow": "GET, HEAD"})))
            return
        await exchange.respond(answer(request.path, request.headers.get("accept") or ""))

    return handle


def _metrics(registry: CollectorRegistry, accept: str) -> Response:
    encode, content_type = choose_encoder(accept)
    return Response(200, Headers.of({"Content-Type": content_type}), encode(registry))
