"""`llmkube port-forward`: an engine at a port of this machine, followed wherever it is started again.

kubectl's own command looks for Pods behind a Service, and a Mac's engine has none. A pod is reached through the API
server, so that this works from outside the cluster's network; an engine on a host at its address.
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
"""How long a new connection is held while the engine restarts."""

_CLOSED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class Ports:
    """What the command line says about ports; 0 is any free one."""

    local: int = 0
    remote: int = SERVICE_PORT


class PortsType(click.ParamType[Ports]):
    """`8080`, `8080:8080`, `:8080`, or nothing."""

    name = "ports"

    def convert(self, value: str | Ports, param: click.Parameter | None, ctx: click.Context | None) -> Ports:
        """Read the text; a usage error names what is wrong with it."""
        if isinstance(value, Ports):
            return value
        local, colon, remote = value.partition(":")
        try:
            ports = Ports(int(local or 0), int(remote) if colon else SERVICE_PORT)
        except ValueError:
            self.fail(f'"{value}" is not {_PORTS}, such as 8080 or 9000:{SERVICE_PORT}', param, ctx)
        if not (0 <= ports.local <= 65535 and 1 <= ports.remote <= 65535):
            self.fail(f'"{value}": ports go from 1 to 65535, and 0 as LOCAL takes a free one', param, ctx)
        return ports


@command("port-forward")
@click.argument("name", shell_complete=services)
@click.argument("ports", metavar=_PORTS, type=PortsType(), default=Ports())
@cluster_options()
def port_forward(*, name: str, ports: Ports, where: ClusterFlags) -> None:
    """Listen on 127.0.0.1:LOCAL and forward to where the service NAME answers, until Ctrl-C.

    Without LOCAL a free port is taken. REMOTE is the service's port, 8080, or an engine's own, which chooses among
    several. When the engine is started again elsewhere, new connections go there. A pod is reached through the API
    server, which asks for the verbs get and create on pods/portforward. Behind the gateway of `llmkube up`, the port
    answers for this model alone, whether requests name it or none.
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
            f"Requests show `Authorization: Bearer KEY`, with a key of {ref.key} in Secret {key.namespace}/{ref.name}"
        )
    listeners = await open_listeners(LOOPBACK, ports.local, field="LOCAL")
    local_port = listeners[0].socket.getsockname()[1]
    if gateway is not None:
        click.echo(wrapped(f"Forwarding {LOOPBACK}:{local_port} -> {key} behind {gateway.name}"))
        await run_one_model(listeners, service, gateway, CurrentGateway(cluster.client, key, gateway).find)
    async with open_engines(cluster.client, key, ready[0].host) as current:
        click.echo(wrapped(f"Forwarding {LOOPBACK}:{local_port} -> {ready[0]} ({key} on {ready[0].host or 'a node'})"))
        await run_tunnel(listeners, current.find, _print, dial=partial(dial_engine, cluster.client))


async def dial_engine(client: Client, destination: Engine) -> trio.abc.Stream:
    """Open a connection to an engine: to a pod's through the API server, to a host's straight."""
    if destination.pod is None:
        return await dial_directly(destination)
    return await connect_to_pod(client, destination.pod, destination.port)


@attrs.define(eq=False)
class CurrentEngine:
    """Where a service answers now, by its slices, on one host rather than on others; a move is printed once."""

    host: str
    slices: Cache[EndpointSlice] = attrs.field(factory=Cache)
    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    _last: Engine | None = None

    async def find(self) -> Engine:
        """Return where it answers, waiting while it does not."""
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
    """Where the gateway of `llmkube up` is now; one that was started again may have another port."""

    client: Client
    key: Key
    route: Route

    async def find(self) -> Route:
        """Return where it is; while the API server does not say, where it was."""
        with contextlib.suppress(LLMKubeError), trio.move_on_after(_QUERY_SECONDS):
            self.route = gateway_route(await self.client.get(InferenceService, self.key)) or self.route
        return self.route


@asynccontextmanager
async def open_engines(client: Client, key: Key, host: str) -> AsyncIterator[CurrentEngine]:
    """Follow a service's slices; they are in when the block begins."""
    current = CurrentEngine(host)

    def notify(_key: Key) -> None:
        current.changed.put_nowait(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                run_reflector,
                client,
                EndpointSlice,
                current.slices,
                notify,
                namespace=key.namespace,
                label_selector=slice_selector(key.name),
                rng=random.Random(),  # noqa: S311 - jitter of reconnects
            )
        )
        await current.slices.synced.wait()
        yield current
        nursery.cancel_scope.cancel(reason="the listeners are closed")


def _print(line: str) -> None:
    click.echo(line, err=True)


FindEngine = Callable[[], Awaitable[Engine]]
"""Waits until there is one; asked anew for each connection."""

Dial = Callable[[Engine], Awaitable[trio.abc.Stream]]


async def dial_directly(destination: Engine) -> trio.abc.Stream:
    """Open a connection from this machine to an address; raises OSError."""
    return await dial(destination.address, destination.port)


async def run_tunnel(
    listeners: Sequence[trio.SocketListener],
    find: FindEngine,
    warn: Callable[[str], None],
    *,
    dial: Dial = dial_directly,
) -> Never:
    """Serve connections until cancelled; one that fails is reported and ends alone.

    Args:
        listeners: Where to accept.
        find: Says where a new connection goes.
        warn: Takes a sentence about a connection that could not be made.
        dial: Opens connections.
    """
    limiter = trio.CapacityLimiter(MAX_CONNECTIONS)

    async def handle(stream: trio.SocketStream) -> None:
        if not limiter.available_tokens:
            warn(f"a connection was closed: {MAX_CONNECTIONS} are open already")
            await trio.aclose_forcefully(stream)
            return
        async with limiter:
            await relay(stream, find, warn, dial)

    await trio.serve_listeners(handle, list(listeners))
    raise AssertionError("serve_listeners never ends")


async def relay(near: trio.abc.HalfCloseableStream, find: FindEngine, warn: Callable[[str], None], dial: Dial) -> None:
    """Join one connection with a new one to the destination; return when both directions have ended."""
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
        warn(f"a connection was closed: nothing answers for {WAIT_SECONDS:g} s")
        return None
    with trio.move_on_after(DIAL_SECONDS):
        try:
            return await dial(destination)
        except LLMKubeError as exc:
            warn(f"a connection was closed: {exc}")
            return None
        except OSError as exc:
            warn(f"a connection was closed: {destination} cannot be reached ({exc.strerror or exc})")
            return None
    warn(f"a connection was closed: {destination} did not answer within {DIAL_SECONDS:g} s")
    return None


async def _pump(
    source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, scope: trio.CancelScope, warn: Callable[[str], None]
) -> None:
    """Copy until the source ends, and say so to the sink; a broken connection ends the other direction too.

    So does the end of the source, where the sink cannot be told without being closed.
    """
    try:
        async for piece in source:
            await sink.send_all(piece)
        if isinstance(sink, trio.abc.HalfCloseableStream):
            await sink.send_eof()
        else:
            scope.cancel(reason="one side has ended, and the other knows no half-close")
    except _CLOSED as exc:
        if isinstance(exc.__cause__, LLMKubeError):
            warn(f"a connection broke: {exc.__cause__}")
        scope.cancel(reason="one side broke off")


@attrs.define(eq=False)
class OneModel:
    """The directory of a gateway that has one model, behind another gateway.

    Attributes:
        name: What the model is called here.
        other_names: The other ids under which it may be asked for.
        route: Where the other gateway is now, and the id that the model has there.
    """

    name: str
    other_names: Sequence[str]
    route: Route

    def model_ids(self) -> Sequence[str]:
        """Return its name: a request that names no model means this one."""
        return [self.name]

    def aliases(self) -> Sequence[str]:
        """Return the ids of `spec.aliases`."""
        return self.other_names

    def lookup(self, model_id: str) -> Backend | None:
        """Return the other gateway for this model's ids, and nothing for those of others."""
        if model_id not in {self.name, self.route.model_id, *self.other_names}:
            return None
        return Backend(self.route.host, self.route.port, self.route.model_id)


async def run_one_model(
    listeners: Sequence[trio.SocketListener],
    service: InferenceService,
    route: Route,
    find: Callable[[], Awaitable[Route]],
) -> Never:
    """Serve until cancelled.

    Args:
        listeners: Where to accept.
        service: The model.
        route: Where its gateway is.
        find: Says where it is by now, before each request.
    """
    directory = OneModel(service.key.name, service.spec.aliases, route)
    async with open_http_client() as client:
        gateway = passing_door(PassThrough(directory, client), utcnow)

        async def handle(exchange: StreamExchange) -> None:
            directory.route = await find()
            await gateway(exchange)

        await run_server(handle, listeners, judge=refuse_foreign_pages, stamp=cors_lines)
