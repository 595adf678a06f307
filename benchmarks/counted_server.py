"""The embedded API server as a program of its own, on two ports: one counts requests, one does not.

    python benchmarks/counted_server.py FOLDER

A contender gets the counting port (`FOLDER/contender`, a kubeconfig), the stopwatch the other one
(`FOLDER/stopwatch`), where `GET /counts` answers with the requests so far, as "VERB RESOURCE", and with the processor
time that the server has used. It is as fast as it can be, for it is not what is measured: nothing is encrypted, and
nothing is written to the disk. It serves the kinds of a cluster, which `llmkube up` does not.
"""

import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
import yaml

from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.storage.revisions import Store
from llmkube.base.http.exchange import Exchange, Handler
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Request, Response
from llmkube.base.http.server import run_server
from llmkube.k8s.crd.definitions import all_crds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from memory_api_server import EVERY_KIND

LOOPBACK: Final = "127.0.0.1"
READY: Final = "serving"
COUNTS: Final = "/counts"
APPLY: Final = "application/apply-patch+yaml"


def named(request: Request) -> str:
    """Return a request's verb and resource, as RBAC would name them; "apply" is a verb of its own here."""
    words = request.path.strip("/").split("/")
    place = words[2:] if words[0] == "api" else words[3:]
    if place[:1] == ["namespaces"] and len(place) > 2:
        place = place[2:]
    if not place:
        return f"{request.method} discovery"
    resource = "/".join((place[0], *place[2:]))
    if request.method == "GET":
        verb = "watch" if "watch=" in request.target else "get" if len(place) > 1 else "list"
    elif request.method == "PATCH":
        verb = "apply" if (request.headers.get("content-type") or "").startswith(APPLY) else "patch"
    else:
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}[request.method]
    return f"{verb} {resource}"


def counted(handler: Handler, counts: Counter[str]) -> Handler:
    """Return a handler that counts the requests that it passes on."""

    async def handle(exchange: Exchange) -> None:
        counts[named(exchange.request)] += 1
        await handler(exchange)

    return handle


def telling(handler: Handler, counts: Counter[str]) -> Handler:
    """Return a handler that answers what has been counted, and passes everything else on."""

    async def handle(exchange: Exchange) -> None:
        if exchange.request.path == COUNTS:
            found = {"counts": dict(counts), "cpuSeconds": time.process_time()}
            await exchange.respond(Response.json(200, found))
        else:
            await handler(exchange)

    return handle


def write_kubeconfig(path: Path, port: int) -> None:
    """Write a kubeconfig without credentials."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": f"http://{LOOPBACK}:{port}"}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": "default"}}],
        "current-context": "bench",
    }
    path.write_text(yaml.safe_dump(config), "utf-8")


async def serve(folder: Path) -> None:
    """Serve until killed."""
    counts: Counter[str] = Counter()
    server = ApiServer(Store(), kinds=EVERY_KIND, utcnow=lambda: datetime.now(UTC), rng=random.SystemRandom())
    await server.ensure_namespaces()
    await server.ensure(all_crds())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run_housekeeping)
        for name, handler in (
            ("contender", counted(server.handle, counts)),
            ("stopwatch", telling(server.handle, counts)),
        ):
            listeners = await open_listeners(LOOPBACK, 0)
            await nursery.start(partial(run_server, handler, listeners))
            write_kubeconfig(folder / name, listeners[0].socket.getsockname()[1])
        print(READY, flush=True)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    trio.run(serve, Path(sys.argv[1]))
