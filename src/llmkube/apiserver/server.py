"""The embedded API server as `llmkube up` runs it: durable, over TLS, with a kubeconfig that kubectl can use at once.

```
STATE_DIR/api.db        the objects (SQLite)
STATE_DIR/ca/           private CA, server certificate, token
STATE_DIR/kubeconfig    URL, CA certificate and token; 0600
```
"""

import base64
import hmac
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.heavy_work import ThreadRunner
from llmkube.apiserver.pki import ensure_pki, run_renewal, server_context
from llmkube.apiserver.protocol.request_bodies import MAX_BODY_BYTES
from llmkube.apiserver.storage.revisions import Store
from llmkube.apiserver.storage.write_ahead_log import (
    DATABASE,
    StorageDamagedError,
    WriteAheadLog,
    move_aside,
    open_write_ahead_log,
)
from llmkube.apiserver.values.api_errors import unauthorized
from llmkube.base.http.connection import RequestFilter
from llmkube.base.http.exchange import Handler
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Response, netloc
from llmkube.base.http.server import run_server
from llmkube.base.private_files import ensure_token, write_private
from llmkube.base.probes import with_metrics
from llmkube.base.times import utcnow

log = structlog.get_logger()

DEFAULT_PORT: Final = 7443

_DRAIN_SECONDS: Final = 2.0  # requests take milliseconds, and `end_watches` ends the watches


@attrs.frozen(eq=False)
class ApiServerHandle:
    """A running server.

    Attributes:
        url: Its base URL.
        kubeconfig: A file for kubectl and our own client.
        handler: The same server without TLS and token, for callers in this process.
        server: The server itself, for `ensure`.
    """

    url: str
    kubeconfig: Path
    handler: Handler
    server: ApiServer


@asynccontextmanager
async def open_api_server(
    state_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    port_field: str = "",
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[ApiServerHandle]:
    """Serve the API from `state_dir` until the block is left, with all writes acknowledged by earlier runs.

    Args:
        state_dir: An existing private folder.
        host: Address to listen on, and the server's name in the kubeconfig.
        port: TCP port; 0 selects a free one.
        port_field: The flag that a PortTakenError names.
        registry: Metrics for `/metrics`, which requires the token; None serves no such path.

    Raises:
        PortTakenError: Another program has the port.
        StorageError: The database cannot be used. A damaged one is moved aside instead, and logged.
    """
    async with AsyncExitStack() as stack:
        listeners = await open_listeners(host, port, field=port_field)  # first: a taken port changes nothing on disk
        for listener in listeners:
            stack.push_async_callback(trio.aclose_forcefully, listener)  # until run_server owns them
        bound_port: int = listeners[0].socket.getsockname()[1]
        url = f"https://{netloc((host, bound_port))}"
        hosts = list(dict.fromkeys(["127.0.0.1", "localhost", "::1", host]))
        pki = await trio.to_thread.run_sync(ensure_pki, state_dir / "ca", hosts, utcnow())
        token = ensure_token(state_dir / "ca" / "token")
        context = server_context(pki)
        sockets = await stack.enter_async_context(open_sockets())
        secured = [trio.SSLListener(listener, context, https_compatible=True) for listener in sockets.listen(listeners)]
        server = await _start(stack, state_dir / DATABASE)
        kubeconfig = state_dir / "kubeconfig"
        write_kubeconfig(kubeconfig, url=url, ca_certificate=pki.ca_certificate, token=token)
        limits = Limits(max_body_bytes=2 * MAX_BODY_BYTES, drain_seconds=_DRAIN_SECONDS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run_housekeeping)
            nursery.start_soon(run_renewal, pki, hosts, context, utcnow)
            handler = server.handle if registry is None else with_metrics(server.handle, registry)
            await nursery.start(partial(run_server, handler, secured, limits=limits, judge=token_authenticator(token)))
            try:
                yield ApiServerHandle(url, kubeconfig, server.handle, server)
            finally:
                server.end_watches()
                nursery.cancel_scope.cancel()


async def _start(stack: AsyncExitStack, path: Path) -> ApiServer:
    """Start on the database; a damaged one is moved aside and replaced with an empty one."""
    try:
        write_ahead_log, store = await _open_database(stack, path)
    except StorageDamagedError as exc:
        moved_to = move_aside(path, utcnow())
        log.error(  # noqa: TRY400  # a traceback does not help with a damaged file
            "database moved aside: the file is damaged; starting with an empty one, apply your manifests again",
            error=str(exc),
            moved_to=str(moved_to),
        )
        write_ahead_log, store = await _open_database(stack, path)
    rng = random.SystemRandom()
    server = ApiServer(store, persist=write_ahead_log.commit, work=ThreadRunner(), utcnow=utcnow, rng=rng)
    await server.ensure_namespaces()
    return server


async def _open_database(stack: AsyncExitStack, path: Path) -> tuple[WriteAheadLog, Store]:
    """Return an open log, to be closed with the stack, and its store; on failure the log is closed already."""
    with ExitStack() as opened:
        write_ahead_log = opened.enter_context(open_write_ahead_log(path))
        store = await trio.to_thread.run_sync(write_ahead_log.load)
        stack.push(opened.pop_all())
    return write_ahead_log, store


OPEN_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})
"""Health checks, which need no token."""

CONTEXT_NAME: Final = "llmkube"
"""Name of the context, the cluster and the user in the kubeconfig."""


def token_authenticator(token: str) -> RequestFilter:
    """Accept only requests with the token; refuse others with a 401 Status, before reading their bodies."""
    expected = token.encode("ascii")

    def authenticate(head: RequestHead, peer: str) -> Response | None:
        scheme, _, given = (head.headers.get("authorization") or "").partition(" ")
        known = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), expected)
        if known or head.path in OPEN_PATHS:
            return None
        return Response.json(401, unauthorized().to_status())

    return authenticate


def write_kubeconfig(path: Path, *, url: str, ca_certificate: Path, token: str) -> None:
    """Write a kubeconfig, mode 0600, with the certificate and the token embedded in it."""
    authority = base64.b64encode(ca_certificate.read_bytes()).decode("ascii")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT_NAME, "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": CONTEXT_NAME, "user": {"token": token}}],
        "contexts": [
            {"name": CONTEXT_NAME, "context": {"cluster": CONTEXT_NAME, "user": CONTEXT_NAME, "namespace": "default"}}
        ],
        "current-context": CONTEXT_NAME,
    }
    write_private(path, json.dumps(config, indent=2).encode("utf-8"))
