"""`llmkube port-forward`: forward a local port to an engine, even after the engine restarts elsewhere.

kubectl's command needs a Pod behind the Service, which the engine of a Mac does not have. Connections to a pod go
through the API server, so that they work from outside the cluster's network; those to a host's engine are direct.
"""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Never

import attrs
import click
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.dial import dial
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.base.mailbox import Mailbox
from llmkube.base.times import utcnow
from llmkube.cli.commands.inference.conversation import Route, gateway_route, not_ready_text
from llmkube.cli.object_names import get_service
from llmkube.cli.options import cluster_options, services
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view.live_view import summarize_outages
from llmkube.cli.view.locations import Engine, engines_in, find_engines, slice_selector
from llmkube.cli.view.output import wrapped
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.port_forward import connect_to_pod
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_PORT
from llmkube.programs.failures import CommandError
from llmkube.programs.options import command
from llmkube.programs.program import LOOPBACK
from llmkube.router.backends import Backend
from llmkube.router.front_door import PassThrough, passing_door
from llmkube.router.origin_policy import cors_lines, refuse_foreign_pages

_QUERY_SECONDS: Final = 2.0
_PORTS: Final = "[LOCAL][:REMOTE]"
MAX_CONNECTIONS: Final = 128
DIAL_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 30.0
"""Time for which a new connection is held while the engine restarts."""

_CLOSED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class Ports:
    """The ports on the command line; 0 means any free port."""

    local: int = 0
    remote: int = SERVICE_PORT


class PortsType(click.ParamType[Ports]):
    """A parameter of the form `8080`, `8080:8080`, `:8080`, or empty."""

    name = "ports"

    def convert(self, value: str | Ports, param: click.Parameter | None, ctx: click.Context | None) -> Ports:
        """Parse the text, or fail with a usage error."""
        if isinstance(value, Ports):
            return value
        local, colon, remote = value.partition(":")
        try:
            ports = Ports(int(local or 0), int(remote) if colon else SERVICE_PORT)
        except ValueError:
            self.fail(f'"{value}" is not {_PORTS}, such as 8080 or 9000:{SERVICE_PORT}', param, ctx)
        if not (0 <= ports.local <= 65535 and 1 <= ports.remote <= 65535):
            self.fail(f'"{value}": ports range from 1 to 65535; 0 as LOCAL selects a free one', param, ctx)
        return ports


@command("port-forward")
@click.argument("name", shell_complete=services)
@click.argument("ports", metavar=_PORTS, type=PortsType(), default=Ports())
@cluster_options()
def port_forward(*, name: str, ports: Ports, where: ClusterFlags) -> None:
    """Forward a local port to an engine of the service NAME.

    Listens on 127.0.0.1:LOCAL until Ctrl-C; without LOCAL, a free port is chosen. REMOTE is the service's port, 8080,
    or the port of an engine, to choose among several. When the engine restarts elsewhere, new connections go there. For
    a pod, the API server requires the verbs get and create on pods/portforward. With `llmkube up`, the port serves this
    model only, and requests need not name it.
    """
    summarize_outages()
    run_against(where, partial(_forward, name, ports))


async def _forward(name: str, ports: Ports, cluster: Cluster) -> Never:
    key = Key(cluster.namespace, name)
    with answer_deadline():
        service = await get_service(cluster.client, key)
        engines = await find_engines(cluster, key.namespace, name)
        ready = sorted((each for each in engines if each.ready), key=lambda each: each.port != ports.remote)
        gateway = None if engines else gateway_route(service)
        if not ready and gateway is None:
            raise CommandError(await not_ready_text(cluster, service))
    known = {SERVICE_PORT, *(engine.port for engine in engines)} | ({gateway.port} if gateway else set())
    if ports.remote not in known:
        listed = ", ".join(map(str, sorted(known)))
        raise CommandError(f"{_PORTS}: InferenceService {key} has no port {ports.remote}; it has {listed}")
    ref = service.spec.api_key_secret_ref
    if ref is not None and gateway is None:
        _print(
            f"Requests need `Authorization: Bearer KEY`, with a key of {ref.key} in Secret {key.namespace}/{ref.name}"
        )
    listeners = await open_listeners(LOOPBACK, ports.local, field="LOCAL")
    local_port = listeners[0].socket.getsockname()[1]
    if gateway is not None:
        click.echo(wrapped(f"Forwarding {LOOPBACK}:{local_port} -> {key} through {gateway.name}"))
        await run_one_model(listeners, service, gateway, CurrentGateway(cluster.client, key, gateway).find)
    async with open_engines(cluster.client, key, ready[0].host) as current:
        click.echo(wrapped(f"Forwarding {LOOPBACK}:{local_port} -> {ready[0]} ({key} on {ready[0].host or 'a node'})"))
        await run_tunnel(listeners, current.find, _print, partial(dial_engine, cluster.client))


async def dial_engine(client: Client, destination: Engine) -> trio.abc.Stream:
    """Connect to an engine: in a pod through the API server, on a host directly."""
    if destination.pod is None:
        return await dial(destination.address, destination.port)
    return await connect_to_pod(client, destination.pod, destination.port)


@attrs.define(eq=False)
class CurrentEngine:
    """The current endpoint of a service by its EndpointSlices, preferably on `host`; each change is printed once."""

    host: str
    slices: Cache[EndpointSlice] = attrs.field(factory=Cache)
    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    _last: Engine | None = None

    async def find(self) -> Engine:
        """Return the endpoint, waiting until one is ready."""
        while True:
            version = self.changed.version
            ready = [engine for engine in engines_in(self.slices.values()) if engine.ready]
            ready.sort(key=lambda engine: engine.host != self.host)
            if ready:
                if self._last not in {None, ready[0]}:
                    _print(f"the engine is now at {ready[0]}")
                self._last = ready[0]
                return ready[0]
            await self.changed.wait_newer(version)


@attrs.define(eq=False)
class CurrentGateway:
    """The current route to the gateway of `llmkube up`; after a restart it may have another port."""

    client: Client
    key: Key
    route: Route

    async def find(self) -> Route:
        """Return the route; the last known one if the API server does not answer."""
        with contextlib.suppress(LLMKubeError), trio.move_on_after(_QUERY_SECONDS):
            self.route = gateway_route(await self.client.get(InferenceService, self.key)) or self.route
        return self.route


@asynccontextmanager
async def open_engines(client: Client, key: Key, host: str) -> AsyncIterator[CurrentEngine]:
    """Watch a service's EndpointSlices; they are synced when the block begins."""
    current = CurrentEngine(host)

    def notify(_key: Key) -> None:
        current.changed.put_nowait(None)

    async with trio.open_nursery() as nursery:
        selector, rng = slice_selector(key.name), random.Random()  # noqa: S311 - jitter of reconnects
        reflect = partial(run_reflector, namespace=key.namespace, label_selector=selector, rng=rng)
        nursery.start_soon(reflect, client, EndpointSlice, current.slices, notify)
        await current.slices.synced.wait()
        yield current
        nursery.cancel_scope.cancel(reason="the listeners are closed")


def _print(line: str) -> None:
    click.echo(line, err=True)


FindEngine = Callable[[], Awaitable[Engine]]
"""Waits for an engine; called for each connection."""

Dial = Callable[[Engine], Awaitable[trio.abc.Stream]]


async def run_tunnel(
    listeners: Sequence[trio.SocketListener], find: FindEngine, warn: Callable[[str], None], dial: Dial
) -> Never:
    """Forward connections until cancelled; a failed one is reported and does not affect others.

    Args:
        listeners: Listeners to accept connections from.
        find: Returns the engine for a new connection.
        warn: Reports a failed connection.
        dial: Connects to an engine.
    """
    limiter = trio.CapacityLimiter(MAX_CONNECTIONS)

    async def handle(stream: trio.SocketStream) -> None:
        if not limiter.available_tokens:
            warn(f"connection closed: {MAX_CONNECTIONS} are already open")
            await trio.aclose_forcefully(stream)
            return
        async with limiter:
            await relay(stream, find, warn, dial)

    await trio.serve_listeners(handle, list(listeners))
    raise AssertionError("serve_listeners never returns")


async def relay(near: trio.abc.HalfCloseableStream, find: FindEngine, warn: Callable[[str], None], dial: Dial) -> None:
    """Connect to an engine and relay both directions until both have ended."""
    async with near:
        far = await _connect(find, warn, dial)
        if far is None:
            return
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(partial(_pump, near, far, nursery.cancel_scope, warn))
            nursery.start_soon(partial(_pump, far, near, nursery.cancel_scope, warn))


async def _connect(find: FindEngine, warn: Callable[[str], None], dial: Dial) -> trio.abc.Stream | None:
    with trio.move_on_after(WAIT_SECONDS) as waiting:
        destination = await find()
    if waiting.cancelled_caught:
        warn(f"connection closed: no engine became ready within {WAIT_SECONDS:g} s")
        return None
    with trio.move_on_after(DIAL_SECONDS):
        try:
            return await dial(destination)
        except LLMKubeError as exc:
            warn(f"connection closed: {exc}")
            return None
        except OSError as exc:
            warn(f"connection closed: {destination} cannot be reached ({exc.strerror or exc})")
            return None
    warn(f"connection closed: {destination} did not answer within {DIAL_SECONDS:g} s")
    return None


async def _pump(
    source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, scope: trio.CancelScope, warn: Callable[[str], None]
) -> None:
    """Copy from source to sink until EOF, and forward the EOF; a broken connection ends the other direction too.

    A sink without half-close cannot forward EOF: then EOF also ends both directions.
    """
    try:
        async for piece in source:
            await sink.send_all(piece)
        if isinstance(sink, trio.abc.HalfCloseableStream):
            await sink.send_eof()
        else:
            scope.cancel(reason="EOF on one side, and the other has no half-close")
    except _CLOSED as exc:
        if isinstance(exc.__cause__, LLMKubeError):
            warn(f"connection lost: {exc.__cause__}")
        scope.cancel(reason="connection lost on one side")


@attrs.define(eq=False)
class OneModel:
    """The directory of a gateway with one model, which another gateway serves.

    Attributes:
        name: Id of the model.
        other_names: Further ids of the model.
        route: Current route to the other gateway, with the model's id there.
    """

    name: str
    other_names: Sequence[str]
    route: Route

    def model_ids(self) -> Sequence[str]:
        """Return the only id: a request that names no model is for it."""
        return [self.name]

    def aliases(self) -> Sequence[str]:
        """Return the ids of `spec.aliases`."""
        return self.other_names

    def lookup(self, model_id: str) -> Backend | None:
        """Return the other gateway for an id of this model; None for other ids."""
        if model_id not in {self.name, self.route.model_id, *self.other_names}:
            return None
        return Backend(self.route.host, self.route.port, self.route.model_id)


async def run_one_model(
    listeners: Sequence[trio.SocketListener],
    service: InferenceService,
    route: Route,
    find: Callable[[], Awaitable[Route]],
) -> Never:
    """Serve one model through another gateway until cancelled.

    Args:
        listeners: Listeners to accept connections from.
        service: The service of the model.
        route: Route to the other gateway.
        find: Returns the current route; called before each request.
    """
    directory = OneModel(service.key.name, service.spec.aliases, route)
    async with open_http_client() as client:
        gateway = passing_door(PassThrough(directory, client), utcnow)

        async def handle(exchange: StreamExchange) -> None:
            directory.route = await find()
            await gateway(exchange)

        await run_server(handle, listeners, judge=refuse_foreign_pages, stamp=cors_lines)
