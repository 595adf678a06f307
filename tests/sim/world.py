"""The whole system in one nursery under a virtual clock: API server, controller, agent, and a machine made of scripts.

Nothing is patched: the programs are the real ones, with ports that a simulation provides. Hours pass in milliseconds.
"""

from __future__ import annotations

import datetime
import random
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import trio

from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.mount import open_transport
from llmkube.apiserver.store import Store
from llmkube.base.http import open_http_client
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import EndpointSlice, Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.schema import all_crds
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.supervisor.agent import AgentView, run_agent
from llmkube.supervisor.ports import Ports
from llmkube.supervisor.settings import AgentSettings
from sim.machine import Machine

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ADDRESS = "192.0.2.10"


def utcnow():
    """The wall clock of the simulation: the virtual clock since an epoch."""
    return EPOCH + datetime.timedelta(seconds=trio.current_time())


@attrs.define
class Faults:
    """What goes wrong between the programs and the API server; tests switch these on and off.

    Attributes:
        down: Connections are refused, and open watches break off.
        errors: The next so many requests are answered with 503.
    """

    down: bool = False
    errors: int = 0


@attrs.define(eq=False)
class Network(httpx.AsyncBaseTransport):
    """The way to the API server, with faults."""

    transport: httpx.AsyncBaseTransport
    faults: Faults
    cut: trio.Event = attrs.field(factory=trio.Event)
    dead: bool = False

    async def handle_async_request(self, request):
        if self.faults.down or self.dead:
            await trio.lowlevel.checkpoint()
            raise httpx.ConnectError("connection refused", request=request)
        if self.faults.errors:
            self.faults.errors -= 1
            await trio.lowlevel.checkpoint()
            return httpx.Response(503, json={"kind": "Status", "apiVersion": "v1", "code": 503, "message": "sorry"})
        response = await self.transport.handle_async_request(request)
        response.stream = _CutStream(response.stream, self.cut)
        return response

    def sever(self):
        """Break every open connection off."""
        self.cut.set()
        self.cut = trio.Event()


@attrs.define(eq=False)
class _CutStream(httpx.AsyncByteStream):
    inner: httpx.AsyncByteStream
    cut: trio.Event

    async def __aiter__(self):  # noqa: ASYNC900 - httpx asks for one
        chunks = self.inner.__aiter__()
        while True:
            chunk = None
            async with trio.open_nursery() as nursery:

                async def on_cut(scope=nursery.cancel_scope):
                    await self.cut.wait()
                    scope.cancel()

                nursery.start_soon(on_cut)
                chunk = await anext(chunks, b"")
                nursery.cancel_scope.cancel()
            if chunk is None:
                raise httpx.ReadError("connection reset")
            if not chunk:
                return
            yield chunk

    async def aclose(self):
        await self.inner.aclose()


@attrs.define(eq=False)
class World:
    """What a timeline holds in its hands."""

    client: Client
    machine: Machine
    faults: Faults
    settings: AgentSettings
    seed: int
    _transport: httpx.AsyncBaseTransport
    _nursery: trio.Nursery
    network: Network = attrs.field(init=False)
    agent: AgentView = attrs.field(init=False)
    _stop: trio.CancelScope = attrs.field(init=False)
    _stopped: trio.Event = attrs.field(init=False)

    async def start_agent(self):
        """A new agent process on the same machine; what the last one left is what it finds."""
        self.machine.agent_killed = False
        self.network = Network(self._transport, self.faults)
        self.agent = await self._nursery.start(self._run_agent)

    async def _run_agent(self, task_status):
        self._stop, self._stopped = trio.CancelScope(), trio.Event()
        machine, rng = self.machine, random.Random(self.seed + 2)
        with self._stop:
            async with (
                httpx.AsyncClient(transport=self.network, base_url="http://apiserver", timeout=None) as http,
                open_http_client(machine.connect) as engines_http,
            ):
                ports = Ports(
                    machine,
                    machine,
                    machine,
                    engines_http,
                    utcnow,
                    rng,
                    machine.take_stock(),
                    facts=machine.facts,
                    look=machine.look if machine.reach else None,
                )
                await run_agent(Client(http), self.settings, ports, task_status=task_status)
        self._stopped.set()

    async def stop_agent(self):
        """SIGTERM: the agent ends in its own order."""
        self._stop.cancel(reason="the agent is stopped")
        await self._stopped.wait()

    async def kill_agent(self):
        """SIGKILL: nothing that the agent does from now on reaches anybody."""
        self.machine.agent_killed = self.network.dead = True
        self.network.sever()
        await self.stop_agent()

    async def apply(self, name="chat", *, source="builtin://demo", model=None, accelerator="metal", **spec):
        """Create or change a Model and an InferenceService as a user would."""
        model = model or name
        body = {"source": source, "hardware": {"accelerator": accelerator}}
        await self._apply(Model, model, body)
        await self._apply(InferenceService, name, {"modelRef": model, **spec})

    async def _apply(self, kind, name, spec):
        manifest = {
            "apiVersion": kind.RESOURCE.api_version,
            "kind": kind.RESOURCE.kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }
        await self.client.apply(kind, manifest, field_manager="user")

    async def delete(self, name="chat"):
        """Delete the InferenceService."""
        await self.client.delete(InferenceService, Key("default", name))

    async def service(self, name="chat"):
        """The InferenceService as JSON, or None."""
        return await self._get(InferenceService, name)

    async def model(self, name="chat"):
        """The Model as JSON."""
        return await self._get(Model, name)

    async def cluster_ip(self, name="chat"):
        """The ClusterIP of the published Service."""
        found = await self._get(Service, name)
        return found["spec"]["clusterIP"] if found else None

    async def _get(self, kind, name):
        try:
            return encode(await self.client.get(kind, Key("default", name)))
        except NotFoundError:
            return None

    async def ready_addresses(self, name="chat"):
        """How many endpoints of a service are published as ready."""
        slices = await self.client.list(EndpointSlice, label_selector=f"kubernetes.io/service-name={name}")
        endpoints = [endpoint for one in slices.items for endpoint in encode(one).get("endpoints") or []]
        return sum(endpoint["conditions"]["ready"] for endpoint in endpoints)

    async def condition(self, kind="Loaded", name="chat"):
        """A condition of the service as (status, reason, message)."""
        found = await self.service(name)
        for one in (found or {}).get("status", {}).get("conditions", []):
            if one["type"] == kind:
                return one["status"], one["reason"], one.get("message", "")
        return None

    async def phase(self, name="chat"):
        """The service's phase."""
        return ((await self.service(name)) or {}).get("status", {}).get("phase")

    async def until(self, what, wanted, *args, seconds=600.0, step_seconds=0.5):
        """Wait in virtual time until an observation has a value; fail with the last one."""
        seen = None
        with trio.move_on_after(seconds):
            while True:
                seen = await what(*args)
                if wanted(seen) if callable(wanted) else seen == wanted:
                    return seen
                await trio.sleep(step_seconds)
        raise AssertionError(f"after {seconds:g} virtual seconds {what.__name__} is {seen!r}")


def agent_settings(**changes):
    """The settings of the simulated host."""
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
async def open_world(*, seed=0, settings=None):
    """Start everything; leaving the block stops the agent in order and checks that nothing is left."""
    settings = settings or agent_settings()
    server = ApiServer(Store(), utcnow=utcnow, rng=random.Random(seed))
    await server.ensure_namespaces()
    await server.ensure(all_crds())
    faults = Faults()
    async with trio.open_nursery() as outer, open_transport(server.handle) as transport:
        outer.start_soon(server.run_housekeeping)
        machine = Machine(outer, settings.grace_seconds)
        async with httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as direct:
            controller = ControllerSettings(host_accelerators=settings.accelerators)
            outer.start_soon(
                lambda: run_controller(Client(direct), controller, utcnow=utcnow, rng=random.Random(seed + 1))
            )
            world = World(Client(direct), machine, faults, settings, seed, transport, outer)
            await world.start_agent()
            yield world
            machine.finish_requests()
            await world.stop_agent()
            assert not machine.live(), "an engine outlived its agent"
            if not faults.down:
                await _assert_withdrawn(world)
        outer.cancel_scope.cancel()


async def _assert_withdrawn(world):
    for one in (await world.client.list(EndpointSlice)).items:
        for endpoint in encode(one).get("endpoints") or []:
            assert not endpoint["conditions"]["ready"], "a ready endpoint outlived its engine"
