"""The whole system in one nursery under a virtual clock: API server, controller, agent, and a scripted machine.

Nothing is patched: the programs are the real ones, with simulated dependencies. Hours pass in milliseconds.
"""

from __future__ import annotations

import datetime
import inspect
import json
import random
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import httpx
import trio

from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Ref, Store
from llmkube.base.http.client import open_http_client
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import EndpointSlice, Lease, Secret, Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CLAIM_LABEL, HOST_LABEL, SERVICE_NAME_LABEL, SLOT_ANNOTATION
from llmkube.supervisor.agent import AgentView, run_agent
from llmkube.supervisor.credentials import client_keys_of
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.ports import Door, Ports
from llmkube.supervisor.values.settings import AgentSettings
from memory_api_server import EVERY_KIND
from sim.freezing import be_a_program
from sim.machine import Machine

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ADDRESS = "192.0.2.10"


def utcnow():
    """Return the wall clock of the simulation: the virtual clock since an epoch."""
    return EPOCH + datetime.timedelta(seconds=trio.current_time())


@attrs.define
class Faults:
    """Faults between one host and the API server; tests switch them on and off.

    Attributes:
        down: Connections are refused, and open watches are aborted.
        no_route: There is no route to any LAN address, as macOS reports to a program without permission (errno 65).
        errors: Number of requests that are answered with 503.
        kind: Wrong form of every answer, one of `ANSWERS`; empty for none.
        slow_seconds: Duration of every answer.
        lost_answers: Number of writes that are applied before their connection is aborted.
        no_status: Writes of status are refused, as by a webhook.
        forbids: Requests that are answered with 403, as by a policy of the cluster.
        twice: Watches report everything twice.
        torn: An aborted watch ends in the middle of a line.
        endless: Watches begin with a line that never ends.
        newer: Watches report objects with fields and values of a later version.
        denies: Watches of services begin with a false deletion of every one, if there are several.
    """

    down: bool = False
    no_route: bool = False
    errors: int = 0
    kind: str = ""
    slow_seconds: float = 0.0
    lost_answers: int = 0
    no_status: bool = False
    forbids: Callable[[httpx.Request], bool] = lambda _: False
    twice: bool = False
    torn: bool = False
    endless: bool = False
    newer: bool = False
    denies: bool = False


def _refused(code, message="sorry"):
    def answer(request):
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
        headers = {"retry-after": "1"} if code == 429 else {}
        return httpx.Response(code, json=body, headers=headers)

    return answer


ANSWERS = {
    "401": _refused(401),
    "403": _refused(403),
    "429": _refused(429),
    "500": _refused(500),
    "503": _refused(503),
    "no such page": lambda request: httpx.Response(404, text="404 page not found"),
    "captive portal": lambda request: httpx.Response(200, html="<html>please log in</html>"),
    "no object": lambda request: httpx.Response(200, json={}),
}
"""Servers with wrong answers; `Network` makes `half-open` and the lists below."""

LISTS = {"empty lists": "", "old lists": "", "torn pages": "", "no services": "/inferenceservices"}
"""Lists that are empty although objects exist, or are aborted halfway: of all kinds, or of one."""

MEBIBYTE = b" " * (1 << 20)


@attrs.define(eq=False)
class Network(httpx.AsyncBaseTransport):
    """The network to the API server, with faults."""

    transport: httpx.AsyncBaseTransport
    faults: Faults
    streams: set = attrs.field(factory=set)  # open responses
    silence: trio.Event = attrs.field(factory=trio.Event)
    dead: bool = False

    async def handle_async_request(self, request):
        if self.faults.down or self.dead:
            await trio.lowlevel.checkpoint()
            raise httpx.ConnectError("connection refused", request=request)
        if self.faults.no_route:
            await trio.lowlevel.checkpoint()
            raise httpx.ConnectError("[Errno 65] No route to host", request=request)
        if self.faults.errors:
            self.faults.errors -= 1
            await trio.lowlevel.checkpoint()
            return httpx.Response(503, json={"kind": "Status", "apiVersion": "v1", "code": 503, "message": "sorry"})
        await trio.sleep(self.faults.slow_seconds)
        if self.faults.kind == "half-open":
            await trio.sleep_forever()
        if self.faults.kind in ANSWERS:
            return ANSWERS[self.faults.kind](request)
        if (refusal := self._refusal(request)) is not None:
            return refusal
        response = await self.transport.handle_async_request(request)
        if self.faults.lost_answers and request.method != "GET":
            self.faults.lost_answers -= 1
            await response.aread()
            raise httpx.ReadError("connection reset", request=request)
        if self.faults.kind in LISTS and request.url.path.endswith(LISTS[self.faults.kind]) and _is_list(request):
            return await self._false_list(request, response)
        if response.is_stream_consumed:
            return response  # it is complete
        watches = self.faults if "watch" in request.url.params else Faults()
        stream = _Stream(response.stream, self.streams, self.silence, watches)
        stream.first = await self._preamble(request)
        response.stream = stream
        return response

    def _refusal(self, request):
        """Return an error in place of the answer, or None."""
        if self.faults.no_status and request.url.path.endswith("/status"):
            return _refused(422, "the webhook says no")(request)
        return ANSWERS["403"](request) if self.faults.forbids(request) else None

    async def _preamble(self, request):
        """Return the first lines of a watch."""
        if self.faults.endless and "watch" in request.url.params:
            return (MEBIBYTE,) * 17  # above every limit for a line
        if self.faults.denies and _is_watch_of_services(request):
            return (await self._deletions(request),)
        return ()

    async def _deletions(self, request):
        """Report that all objects have been deleted, as a server that has lost its data may."""
        url = request.url.copy_remove_param("watch").copy_remove_param("resourceVersion")
        listing = json.loads(await (await self.transport.handle_async_request(httpx.Request("GET", url))).aread())
        if len(listing["items"]) < 2:
            return b"\n"  # a single deletion is always believed
        events = []
        for item in listing["items"]:
            item["metadata"]["resourceVersion"] = listing["metadata"]["resourceVersion"]
            deleted = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", **item}
            events.append(json.dumps({"type": "DELETED", "object": deleted}).encode() + b"\n")
        return b"".join(events)

    async def _false_list(self, request, response):
        """Return an empty list, or an old one; or expire the list between two pages."""
        if "continue" in request.url.params:
            return _refused(410, "the continue token has expired")(request)
        listing = json.loads(await response.aread())
        if self.faults.kind == "torn pages":
            listing["items"], listing["metadata"]["continue"] = listing["items"][:1], "more"
            return httpx.Response(200, json=listing)
        listing["items"] = []
        if self.faults.kind == "old lists":
            listing["metadata"]["resourceVersion"] = "1"
        return httpx.Response(200, json=listing)

    def hush(self):
        """Keep open connections open, but silent from now on."""
        self.silence.set()
        self.silence = trio.Event()

    def sever(self):
        """Abort every open connection."""
        for stream in tuple(self.streams):
            stream.sever()


def _is_list(request):
    return (
        request.method == "GET"
        and "watch" not in request.url.params
        and request.url.path.rpartition("/")[2] in {"inferenceservices", "models", "leases"}
    )


def _of_later_version(line):
    """Return the event as a server with a later version of our definitions sends it."""
    event = json.loads(line)
    if event["type"] == "ERROR":  # a Status, which is of no version of ours
        return line
    for part in ("spec", "status"):
        if part in event["object"]:
            event["object"][part]["ofLater"] = {"unheardOf": [1]}
    if "status" in event["object"]:
        event["object"]["status"]["phase"] = "Hibernating"
    return json.dumps(event).encode() + b"\n"


def _is_watch_of_services(request):
    return "watch" in request.url.params and request.url.path.endswith("/inferenceservices")


@attrs.define(eq=False)
class _Stream(httpx.AsyncByteStream):
    """A response in transit; severing it cancels the server's task, as when a reader leaves."""

    inner: httpx.AsyncByteStream
    open_streams: set
    silence: trio.Event
    faults: Faults
    severed: trio.Event = attrs.field(factory=trio.Event)
    first: tuple[bytes, ...] = ()  # lines before the real ones

    def __attrs_post_init__(self):
        self.open_streams.add(self)

    def sever(self):
        self.severed.set()
        self.inner._exchange.abandon()

    async def __aiter__(self):  # noqa: ASYNC900 - httpx asks for one
        chunks = self.inner.__aiter__()
        for chunk in self.first:
            yield chunk
        while True:
            try:
                chunk = await anext(chunks, b"")
            except httpx.ReadError:
                if self.faults.torn:
                    yield b'{"type":"MODIFIED","object":{"kind":"Infer'
                raise
            if self.silence.is_set():
                await self.severed.wait()
                raise httpx.ReadError("connection reset")
            if not chunk:
                return
            if self.faults.newer:
                chunk = b"".join(_of_later_version(line) for line in chunk.splitlines())
            yield chunk
            if self.faults.twice:
                yield chunk

    async def aclose(self):
        self.open_streams.discard(self)
        await self.inner.aclose()


@attrs.define(eq=False)
class Host:
    """One machine with its agent, and its own network to the API server.

    `asleep_seconds` is how far its wall clock is ahead of the others': the time that its own clocks missed in sleep.
    """

    settings: AgentSettings
    machine: Machine
    seed: int
    _transport: httpx.AsyncBaseTransport
    _nursery: trio.Nursery
    faults: Faults = attrs.field(factory=Faults)
    asleep_seconds: float = 0.0
    running: bool = False
    door: Door | None = None  # the simulation has none; a test may be one
    starts: int = 0  # no two agents have the same random seed: cookies would be the same
    network: Network = attrs.field(init=False)
    agent: AgentView = attrs.field(init=False)
    gone: trio.Event = attrs.field(init=False)  # set when the agent's process has ended, or is killed
    program: trio.lowlevel.Task = attrs.field(init=False)  # the agent's first task
    _stop: trio.CancelScope = attrs.field(init=False)
    _stopped: trio.Event = attrs.field(init=False)

    @property
    def name(self):
        """The name of the host."""
        return self.settings.host_name

    async def start_agent(self):
        """Start a new agent process on the same machine; it finds the state that the last one left."""
        self.machine.agent_killed = False
        self.starts, self.gone = self.starts + 1, trio.Event()
        self.network = Network(self._transport, self.faults)
        self.agent = await self._nursery.start(self._run_agent)
        self.running = True

    def utcnow(self):
        """Return the wall clock of this host."""
        return utcnow() + datetime.timedelta(seconds=self.asleep_seconds)

    async def _run_agent(self, task_status):
        self._stop, self._stopped = trio.CancelScope(), trio.Event()
        self.program = be_a_program()
        machine, rng = self.machine, random.Random(self.seed + 2 + 1000 * self.starts)
        with self._stop:
            async with open_http_client(machine.connect) as engines_http:
                client = Client(TransportSender(self.network, "http://apiserver"))
                ports = Ports(
                    machine,
                    machine,
                    machine,
                    engines_http,
                    self.utcnow,
                    rng,
                    machine.match_processes(self.settings),
                    facts=machine.facts,
                    address=machine.find_address if machine.reach else None,
                    memory=machine.memory,
                    learned=machine.learned,
                    client_keys=partial(client_keys_of, partial(client.get, Secret)),
                    cordon=lambda: machine.cordon,
                    door=self.door,
                )
                await run_agent(client, self.settings, ports, task_status=task_status)
        self.gone.set()
        self._stopped.set()

    async def stop_agent(self):
        """Send SIGTERM: the agent shuts down in order."""
        self.running = False
        self._stop.cancel(reason="the agent is stopped")
        await self.wait_stopped()

    async def wait_stopped(self):
        """Wait until the agent has exited."""
        await self._stopped.wait()

    async def kill_agent(self):
        """Send SIGKILL: no later action of the agent has an effect."""
        self.machine.agent_killed = self.network.dead = True
        self.gone.set()
        self.network.sever()
        await self.stop_agent()

    async def die(self):
        """Let the power fail: agent and engines are gone at once, without a shutdown."""
        await self.kill_agent()
        for child in self.machine.live():
            child.end(-9)

    def cordon(self, seconds=None):
        """Cordon the host as `llmkube agent cordon` does, with `--for` or without."""
        until = None if seconds is None else self.utcnow() + datetime.timedelta(seconds=seconds)
        self.machine.cordon = Cordon(until)

    def cut_off(self, yes=True):
        """Disconnect the host's network, or connect it again."""
        self.faults.down = yes
        self.network.sever()


@attrs.define(eq=False)
class Controller:
    """The controller, with its own network to the API server."""

    settings: ControllerSettings
    seed: int
    _transport: httpx.AsyncBaseTransport
    _nursery: trio.Nursery
    faults: Faults = attrs.field(factory=Faults)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    network: Network = attrs.field(init=False)

    def start(self):
        """Start a new controller process."""
        self.scope = trio.CancelScope()
        self.network = _open_network(self._transport, self.faults)
        self._nursery.start_soon(self._run)

    def kill(self):
        """SIGKILL."""
        self.network.dead = True
        self.scope.cancel(reason="killed")

    async def _run(self):
        with self.scope:
            client = Client(TransportSender(self.network, "http://apiserver"))
            await run_controller(client, self.settings, utcnow=utcnow, rng=random.Random(self.seed + 1))


_open_network = Network  # replaced by a test that records the agents' requests


@attrs.define(eq=False)
class World:
    """The handle of a timeline; without a host's name, methods use the first one."""

    client: Client
    first: Host
    seed: int
    server: ApiServer
    controller: Controller
    _transport: httpx.AsyncBaseTransport
    _nursery: trio.Nursery
    store: Store
    hosts: dict[str, Host] = attrs.field(factory=dict)

    def __attrs_post_init__(self):
        self.hosts[self.first.name] = self.first

    @property
    def machine(self):
        """The first machine."""
        return self.first.machine

    @property
    def faults(self):
        """The faults between the first host and the API server."""
        return self.first.faults

    @property
    def network(self):
        """The first host's network to the API server."""
        return self.first.network

    @property
    def agent(self):
        """The first host's agent."""
        return self.first.agent

    @property
    def settings(self):
        """The first host's settings."""
        return self.first.settings

    async def start_agent(self):
        """Start a new agent process on the first machine."""
        await self.first.start_agent()

    async def stop_agent(self):
        """Send SIGTERM to the first agent."""
        await self.first.stop_agent()

    async def kill_agent(self):
        """Send SIGKILL to the first agent."""
        await self.first.kill_agent()

    async def add_host(self, name, *, reach=None, memory=None, **changes):
        """Add a machine, with an address and an agent of its own."""
        number = len(self.hosts)
        address = f"192.0.2.{10 + number}"
        settings = attrs.evolve(
            self.settings, host_name=name, **{"advertise_address": address, "bind_address": address, **changes}
        )
        machine = Machine(self._nursery, reach=reach)
        machine.memory = memory(machine) if memory else None
        host = Host(settings, machine, self.seed + 10 * number, self._transport, self._nursery)
        self.hosts[name] = host
        await host.start_agent()
        return host

    def live(self, service=None):
        """Return the hosts on which an engine of a service runs, in order."""
        return sorted(name for name, host in self.hosts.items() for _ in host.machine.live(service))

    async def apply(
        self,
        name="chat",
        *,
        source="builtin://demo",
        model=None,
        accelerator="metal",
        labels=None,
        weights="gguf",
        **spec,
    ):
        """Create or change a Model and an InferenceService as a user would."""
        model = model or name
        body = {"source": source, "format": weights, "hardware": {"accelerator": accelerator}}
        await self._apply(Model, model, body)
        await self._apply(InferenceService, name, {"modelRef": model, **spec}, labels)

    async def apply_model(self, name, spec):
        """Create or change a Model alone."""
        await self._apply(Model, name, spec)

    async def apply_service(self, name, spec):
        """Create or change an InferenceService alone."""
        await self._apply(InferenceService, name, spec)

    async def apply_pool(self, name, spec):
        """Create or change a ModelPool."""
        await self._apply(ModelPool, name, spec)

    async def _apply(self, kind, name, spec, labels=None):
        manifest = {
            "apiVersion": kind.RESOURCE.api_version,
            "kind": kind.RESOURCE.kind,
            "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": spec,
        }
        await self.client.apply(kind, manifest, field_manager="user")

    async def serve(self, *names, **spec):
        """Create or change services, one `chat` if none is named; return the first one's engine once all are Ready."""
        names = names or ("chat",)
        for name in names:
            await self.apply(name, **spec)
        for name in names:
            await self.until(self.phase, "Ready", name)
        return next((child for host in self.hosts.values() for child in host.machine.live(names[0])), None)

    async def serve_on_one_of_two(self):
        """Add the host `mini` and serve `chat`; return the host on which it runs, and the other one."""
        await self.add_host("mini")
        await trio.sleep(10)
        await self.serve()
        (holder,) = self.live("chat")
        (other,) = self.hosts.keys() - {holder}
        return self.hosts[holder], self.hosts[other]

    async def delete(self, name="chat"):
        """Delete the InferenceService."""
        await self.client.delete(InferenceService, Key("default", name))

    async def service(self, name="chat"):
        """Return the InferenceService as JSON, or None."""
        return await self._get(InferenceService, name)

    async def model(self, name="chat"):
        """Return the Model as JSON."""
        return await self._get(Model, name)

    async def cluster_ip(self, name="chat"):
        """Return the ClusterIP of the published Service."""
        found = await self._get(Service, name)
        return found["spec"]["clusterIP"] if found else None

    async def _get(self, kind, name):
        try:
            return encode(await self.client.get(kind, Key("default", name)))
        except NotFoundError:
            return None

    async def slices(self, name="chat"):
        """Return the published endpoints of a service: (host, address, ready), in order."""
        return sorted(
            (one["metadata"]["labels"][HOST_LABEL], endpoint["addresses"][0], endpoint["conditions"]["ready"])
            for one in await self._stored(EndpointSlice, SERVICE_NAME_LABEL, name)
            for endpoint in one.get("endpoints") or ()
        )

    async def claims(self, name="chat"):
        """Return the host that claims each replica of a service."""
        leases = await self._stored(Lease, CLAIM_LABEL, name)
        return {int(one["metadata"]["annotations"][SLOT_ANNOTATION]): one["spec"]["holderIdentity"] for one in leases}

    async def _stored(self, kind, label, value):
        """Return the objects of a kind with a label from the API server's store: tests poll ten times a second."""
        await trio.lowlevel.checkpoint()
        objects = (found for _, found in self.store.list(kind.RESOURCE.full_name))
        return [found for found in objects if found["metadata"].get("labels", {}).get(label) == value]

    async def host_lease(self, name="sim"):
        """Return a host's Lease, or None."""
        try:
            return await self.client.get(Lease, Key("llmkube-system", name))
        except NotFoundError:
            return None

    async def ready_addresses(self, name="chat"):
        """Return the number of ready endpoints of a service."""
        return sum(ready for _, _, ready in await self.slices(name))

    async def condition(self, kind="Loaded", name="chat"):
        """Return a condition of the service as (status, reason, message)."""
        for one in (await self._status(name)).get("conditions", []):
            if one["type"] == kind:
                return one["status"], one["reason"], one.get("message", "")
        return None

    async def phase(self, name="chat"):
        """Return the service's phase."""
        return (await self._status(name)).get("phase")

    async def _status(self, name):
        await trio.lowlevel.checkpoint()
        found = self.store.get(Ref(InferenceService.RESOURCE.full_name, Key("default", name)))
        return (found or {}).get("status", {})

    async def until(self, what, wanted, *args, seconds=600.0, step_seconds=0.5):
        """Wait in virtual time until an observation has a value; fail with the last one."""
        seen = None
        with trio.move_on_after(seconds):
            while True:
                seen = what(*args)
                if inspect.isawaitable(seen):
                    seen = await seen
                else:
                    await trio.lowlevel.checkpoint()
                if wanted(seen) if callable(wanted) else seen == wanted:
                    return seen
                await trio.sleep(step_seconds)
        raise AssertionError(f"after {seconds:g} virtual seconds {what.__name__} is {seen!r}")


def agent_settings(**changes):
    """Return the settings of the simulated host."""
    defaults = {
        "host_name": "sim",
        "state_dir": Path("/sim/state"),
        "store_dir": Path("/sim/store"),
        "llama_server": "/sim/llama-server",
        "advertise_address": ADDRESS,
        # Every write costs real milliseconds, and days have many.
        "lease_renew_seconds": 120.0,
        "reassert_seconds": 3600.0,
    }
    return AgentSettings(**(defaults | changes))


@asynccontextmanager
async def open_world(*, seed=0, settings=None, store=None, reach=None, memory=None, workloads=None):
    """Start everything; leaving the block stops the agent in order and checks that nothing is left."""
    settings = settings or agent_settings()
    store = store or Store()
    kinds = BUILTIN_KINDS if workloads is None else EVERY_KIND
    server = ApiServer(store, kinds=kinds, utcnow=utcnow, rng=random.Random(seed))
    await server.ensure_namespaces()
    await server.ensure(all_crds())
    async with trio.open_nursery() as outer, open_transport(server.handle) as transport:
        outer.start_soon(server.run_housekeeping)
        machine = Machine(outer, reach=reach)
        machine.memory = memory(machine) if memory else None
        direct = Client(TransportSender(transport, "http://apiserver"))
        chosen = ControllerSettings(host_accelerators=settings.accelerators, workloads=workloads)
        controller = Controller(chosen, seed, transport, outer)
        controller.start()
        first = Host(settings, machine, seed, transport, outer)
        world = World(direct, first, seed, server, controller, transport, outer, store)
        await world.start_agent()
        yield world
        for host in world.hosts.values():
            host.machine.finish_requests()
            await host.stop_agent()
            assert not host.machine.live(), "an engine outlived its agent"
            assert not host.machine.doubles, "two live engines for one service"
        cut_off = [host.faults.down or host.faults.no_route or host.faults.kind for host in world.hosts.values()]
        if not any(cut_off) and not any(host.network.dead for host in world.hosts.values()):
            await _assert_withdrawn(world)
        outer.cancel_scope.cancel()


async def _assert_withdrawn(world):
    for one in (await world.client.list(EndpointSlice)).items:
        for endpoint in encode(one).get("endpoints") or []:
            assert not endpoint["conditions"]["ready"], "a ready endpoint outlived its engine"
