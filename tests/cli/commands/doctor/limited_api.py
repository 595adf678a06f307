"""The embedded API server on a socket, for a token with limited rights and with its own clock."""

import datetime
import email.utils
import json
import random
from contextlib import asynccontextmanager
from functools import partial

import trio

from cli.cli_objects import kubeconfig
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.server import token_authenticator
from llmkube.apiserver.storage.revisions import Store
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.doctor.cluster import REVIEWS
from llmkube.k8s.crd.definitions import all_crds
from memory_api_server import EVERY_KIND

TOKEN = "limited-token-that-no-report-may-print"


def utcnow():
    return datetime.datetime.now(datetime.UTC)


def allowed_by(refused):
    """Answer a review as kube-apiserver does; `refused` has the denied (verb, plural) pairs."""

    def review(body):
        asked = body["spec"]["resourceAttributes"]
        plural = "/".join(filter(None, (asked["resource"], asked.get("subresource", ""))))
        return {**body, "status": {"allowed": (asked["verb"], plural) not in refused}}

    return review


@asynccontextmanager
async def open_limited_api(folder, *, refused=(), ahead_seconds=0.0, installed=True):
    """Serve until the block ends; yield a kubeconfig with a token."""
    server = ApiServer(Store(), kinds=EVERY_KIND, utcnow=utcnow, rng=random.Random(7))
    await server.ensure_namespaces()
    if installed:
        await server.ensure(all_crds())
    review = allowed_by(frozenset(refused))

    async def answer(exchange):
        request = exchange.request
        if request.raw_path == REVIEWS:
            await exchange.respond(Response.json(201, review(json.loads(request.body))))
        elif request.raw_path == "/version":
            at = utcnow() + datetime.timedelta(seconds=ahead_seconds)
            version = Response.json(200, {"gitVersion": "v1.34.1"})
            date = email.utils.format_datetime(at, usegmt=True)
            await exchange.respond(Response(200, version.headers.with_("Date", date), version.body))
        else:
            await server.handle(exchange)

    listeners = await open_listeners("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    path = kubeconfig(folder / "limited-kubeconfig", f"http://127.0.0.1:{port}", "lab", TOKEN)
    path.chmod(0o600)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, answer, listeners, judge=token_authenticator(TOKEN)))
        yield path
        server.end_watches()
        nursery.cancel_scope.cancel()
