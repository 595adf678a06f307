"""What an operator's tools ask a process: is it alive, is it ready, how is it doing."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from llmkube.base.http.exchange import Exchange, Handler
from llmkube.base.http.message import Headers, Response

Ready = Callable[[], tuple[bool, str]]
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


def probes_handler(ready: Ready, registry: CollectorRegistry) -> Handler:
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
