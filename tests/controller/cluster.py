"""An embedded API server in memory under virtual time, a controller on it, and helpers that play the hosts."""

import datetime
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import trio
from prometheus_client import CollectorRegistry

from k8s.api_calls import DISCOVERY, ApiCall
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.controller.operator import run_controller
from llmkube.controller.reconcile.routers import RouterPlacement
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Endpoint, EndpointSlice, Lease
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import (
    ACCELERATORS_ANNOTATION,
    AGENT_MANAGER,
    CLAIM_LABEL,
    CLAIMED_ANNOTATION,
    CONTROLLER_FIELD_MANAGER,
    HOST_LABEL,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    SERVICE_NAME_LABEL,
    SLOT_ANNOTATION,
    claim_name,
    label_value,
    service_name,
    slice_name,
)
from memory_api_server import EVERY_KIND

AGENT = "llmkube-agent-studio"
SETTLED = 2.0
"""Seconds of virtual time after which one change has settled, while nothing fails."""


def utcnow() -> datetime.datetime:
    return datetime.datetime(2025, 6, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=trio.current_time())


FORGOTTEN = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version","reason":"Expired","code":410}}\n'
)


class Faults(httpx.AsyncBaseTransport):
    """The network between the controller and the API server: it counts requests, and fails where configured."""

    def __init__(self, inner: httpx.AsyncBaseTransport, store: Store) -> None:
        self._inner = inner
        self.store = store
        self._streams: list[httpx.AsyncByteStream] = []
        self.down = False
        self.delays: dict[str, float] = {}  # by the end of a path, in seconds
        self.writes: list[str] = []
        self.calls: list[ApiCall] = []
        self.changes = 0  # requests that change something, so far
        self.events = 0  # pieces of watches, so far
        self.crash_at = 0  # the change, from 1, that is the last of this controller
        self.crash_after = False  # the server executes it, but the controller gets no response
        self.refuse_at = 0  # the change, from 1, that the server cannot make at that moment
        self.lose_at = 0  # the change, from 1, that is made while its response is lost
        self.break_at = 0  # the piece of a watch, from 1, at which its connection breaks
        self.forget_at = 0  # the piece of a watch, from 1, in place of which the server reports 410 Gone
        self.refusals: dict[str, str] = {}  # by resource: what the server answers for every object of it
        self.unread: set[str] = set()  # resources that the controller may not read: a rule of its role is missing
        self.unread_code = 403  # with which code such a read is refused
        self.refused = (422, "Invalid")  # with which code, and for which reason
        self.latecomers: set[str] = set()  # resources of which a stranger creates one right before our first write
        self.strangers: list[Any] = []  # the strangers' objects, as created
        self.unheard: set[str] = set()  # resources whose watches deliver nothing, while they are in here
        self.notice: Callable[[ApiCall], None] | None = None  # gets every request
        self.stale = False  # reads return the state before the newest write, by any client
        self.crashed = trio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await trio.sleep(self.delays.get(request.url.path.rpartition("/")[2], 0))
        if self.down:
            raise httpx.ConnectError("connection refused")
        if DISCOVERY.fullmatch(request.url.path):
            return await self._inner.handle_async_request(request)
        call = self._record(request)
        if request.method == "GET" and call.resource in self.unread:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.unread_code}
            body = {**status, "metadata": {}, "message": f"{call.resource} is forbidden"}
            return httpx.Response(self.unread_code, json=body, request=request)
        if request.method != "GET" and call.resource in self.refusals:
            message, (code, reason) = self.refusals[call.resource], self.refused
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
            return httpx.Response(code, json={**status, "metadata": {}, "message": message}, request=request)
        if request.method == "PATCH" and call.resource in self.latecomers:
            self.latecomers.discard(call.resource)
            await self._come_before(request)
        if request.method != "GET":
            return await self._change(request)
        if self.stale and request.method == "GET" and "watch=" not in str(request.url):
            return await self._read_stale(request)
        response = await self._inner.handle_async_request(request)
        if "watch=" in str(request.url):
            assert isinstance(response.stream, httpx.AsyncByteStream)
            self._streams.append(response.stream)
            response.stream = _Breaking(response.stream, self, call.resource)
        return response

    def _record(self, request: httpx.Request) -> ApiCall:
        if request.url.params.get("fieldManager") == CONTROLLER_FIELD_MANAGER:
            self.writes.append(request.url.path.rpartition("/status")[0].rpartition("/")[2])
        self.calls.append(call := ApiCall.of(request))
        if self.notice is not None:
            self.notice(call)
        return call

    async def _change(self, request: httpx.Request) -> httpx.Response:
        """Let a change through, unless it is the one at which something fails."""
        self.changes += 1
        number = self.changes  # others come while this one waits
        if number == self.crash_at:
            if self.crash_after:
                await self._inner.handle_async_request(request)
            self.crashed.set()
            await trio.sleep_forever()  # until the test removes the controller
        if number == self.refuse_at:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}, "code": 503}
            return httpx.Response(503, json={**status, "message": "no leader"}, request=request)
        response = await self._inner.handle_async_request(request)
        if number == self.lose_at:
            raise httpx.ReadError("the connection broke")
        return response

    async def _come_before(self, request: httpx.Request) -> None:
        """Have a stranger create the object of this request, with the same spec: an apply onto that is no conflict."""
        manifest = json.loads(await request.aread())
        theirs = {**manifest, "metadata": {"name": manifest["metadata"]["name"]}}
        url = request.url.copy_with(path=request.url.path.rpartition("/")[0], query=None)
        create = httpx.Request("POST", url, headers=request.headers, content=json.dumps(theirs))
        create.headers["content-type"] = "application/json"
        response = await self._inner.handle_async_request(create)
        self.strangers.append(json.loads(await response.aread()))

    async def _read_stale(self, request: httpx.Request) -> httpx.Response:
        """Answer from the version before the newest one; a get is picked out of such a list."""
        url, version = request.url, str(self.store.revision - 1)
        before = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        if "list" in ApiCall.of(request).verbs:
            return await self.ask(request, url.copy_merge_params(before))
        collection, _, name = url.path.rpartition("/")
        by_name = {**before, "fieldSelector": f"metadata.name={name}"}
        listing = await self.ask(request, url.copy_with(path=collection, params=by_name))
        [found] = listing.json().get("items") or [None]
        if found is None:
            return await self.ask(request, url.copy_with(path=f"{collection}/no-such-name"))
        kind = {"apiVersion": listing.json()["apiVersion"], "kind": listing.json()["kind"].removesuffix("List")}
        return httpx.Response(200, json={**kind, **found}, request=request)

    async def ask(self, request: httpx.Request, url: httpx.URL) -> httpx.Response:
        """Read from the server, whatever the network does."""
        response = await self._inner.handle_async_request(httpx.Request("GET", url, headers=request.headers))
        await response.aread()
        return response

    async def cut(self) -> None:
        """Refuse new connections and break open ones."""
        self.down = True
        for stream in self._streams:
            await stream.aclose()
        self._streams.clear()


class _Breaking(httpx.AsyncByteStream):
    """A watch whose connection breaks at the piece that the faults name."""

    def __init__(self, inner: httpx.AsyncByteStream, faults: Faults, resource: str) -> None:
        self._inner = inner
        self._faults = faults
        self._resource = resource

    async def __aiter__(self) -> AsyncIterator[bytes]:  # noqa: ASYNC900 (httpx asks for one; it has nothing to clean up)
        async for piece in self._inner:
            while self._resource in self._faults.unheard:  # noqa: ASYNC110 (tests say when it is over by emptying it)
                await trio.sleep(1)
            self._faults.events += 1
            if self._faults.events == self._faults.break_at:
                raise httpx.ReadError("the connection broke")
            if self._faults.events == self._faults.forget_at:
                yield FORGOTTEN
                return
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class Cluster:
    """A test's access to the API server, as a user (`client`) and as a host."""

    def __init__(
        self,
        client: Client,
        network: Client,
        faults: Faults,
        registry: CollectorRegistry,
        routers: RouterPlacement | None = None,
    ) -> None:
        self.client = client
        self.routers = routers
        self.network = network
        self.faults = faults
        self.registry = registry
        self.controller_scope = trio.CancelScope()
        self._renewals = 0

    @property
    def writes(self) -> list[str]:
        """The names of the objects whose status the controller has written, in order."""
        return self.faults.writes

    async def run_again(self, settings: ControllerSettings) -> None:
        """Remove a controller as soon as it has crashed, and run another one."""
        await self.faults.crashed.wait()
        self.bury()
        await self.run_controller(settings)

    def bury(self) -> None:
        """End the running controller, so that another one may run."""
        self.controller_scope.cancel()
        self.controller_scope, self.registry = trio.CancelScope(), CollectorRegistry()

    async def run_controller(
        self, settings: ControllerSettings, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        routers = self.routers
        run = partial(run_controller, utcnow=utcnow, rng=random.Random(2), registry=self.registry, routers=routers)
        with self.controller_scope:
            await run(self.network, settings, task_status=task_status)

    async def create_model(self, name: str = "phi", accelerator: str = "metal") -> None:
        spec = {"source": "builtin://demo", "hardware": {"accelerator": accelerator}}
        await self.apply_object(Model, name, {"spec": spec}, manager="user")

    async def create_service(self, name: str = "chat", **spec: Any) -> None:
        await self.apply_object(InferenceService, name, {"spec": {"modelRef": "phi", **spec}}, manager="user")

    async def renew(self, host: str = "studio", accelerators: str = "metal") -> None:
        self._renewals += 1
        moment = f"2001-01-01T00:00:00.{self._renewals:06}Z"  # a host whose clock is decades behind
        manifest = {
            "metadata": {
                "labels": {HOST_LABEL: host},
                "annotations": {ACCELERATORS_ANNOTATION: accelerators},
            },
            "spec": {"holderIdentity": host, "leaseDurationSeconds": 40, "renewTime": moment},
        }
        await self.apply_object(Lease, host, manifest, namespace="llmkube-system")

    async def claim(self, name: str = "chat", host: str = "studio") -> None:
        """A host's claim on the one replica of a service."""
        annotations = {CLAIMED_ANNOTATION: f"ml/{name}", SLOT_ANNOTATION: "0"}
        manifest = {
            "metadata": {"labels": {CLAIM_LABEL: label_value(name)}, "annotations": annotations},
            "spec": {"holderIdentity": host},
        }
        await self.apply_object(Lease, claim_name("ml", name, 0), manifest, namespace="llmkube-system")

    async def run_host(self, host: str = "studio", accelerators: str = "metal") -> None:
        while True:
            await self.renew(host, accelerators)
            await trio.sleep(10)

    async def report_model(self, reason: str, name: str = "phi") -> None:
        await self._report(Model, name, "Fetched", reason, "a message")

    async def report_service(self, kind: str, reason: str, name: str = "chat", message: str = "a message") -> None:
        await self._report(InferenceService, name, kind, reason, message)

    async def publish(self, name: str = "chat", host: str = "studio", *, ready: bool = True) -> None:
        labels = {
            SERVICE_NAME_LABEL: service_name(name),
            MANAGED_BY_LABEL: AGENT_MANAGER,
            SERVICE_LABEL: label_value(name),
            HOST_LABEL: host,
        }
        body = {
            "metadata": {"labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.7"], "conditions": {"ready": ready}}],
            "ports": [{"name": "http", "port": 50123, "protocol": "TCP"}],
        }
        await self.apply_object(EndpointSlice, slice_name(service_name(name), host), body)

    async def endpoints(self, name: str = "chat", host: str = "studio") -> tuple[Endpoint, ...]:
        """The published endpoints of one host for a service."""
        return (await self.client.get(EndpointSlice, Key("ml", slice_name(service_name(name), host)))).endpoints

    async def bring_up(self) -> None:
        """One service, published and ready on one live host, and everything settled."""
        await self.create_model()
        await self.create_service()
        await self.renew()
        await self.report_model("Fetched")
        await self.report_service("Loaded", "Loaded")
        await self.publish()
        await trio.sleep(SETTLED)

    async def service(self, name: str = "chat") -> InferenceService:
        return await self.client.get(InferenceService, Key("ml", name))

    async def model(self, name: str = "phi") -> Model:
        return await self.client.get(Model, Key("ml", name))

    async def where(self, name: str = "chat") -> str:
        """Phase and reason of a service, once everything has settled: `Ready/InferenceReady`."""
        await trio.sleep(SETTLED)
        return await self.where_now(name)

    async def where_now(self, name: str = "chat") -> str:
        status = (await self.service(name)).status
        reasons = [one.reason for one in status.conditions if one.type == "Progressing"]
        return f"{status.phase}/{reasons[0]}" if reasons else status.phase

    async def columns(self, kind: type[Any], name: str) -> dict[str, Any]:
        """The columns of `kubectl get -o wide` for an object."""
        resource = kind.RESOURCE
        url = f"http://apiserver/apis/{resource.api_version}/namespaces/ml/{resource.plural}/{name}"
        request = httpx.Request("GET", url, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
        table = (await self.faults.ask(request, request.url)).json()
        names = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(names, table["rows"][0]["cells"], strict=True))

    def reconciles(self, controller: str, result: str) -> float:
        labels = {"controller": controller, "result": result}
        return self.registry.get_sample_value("llmkube_reconcile_total", labels) or 0

    async def _report(self, kind: type[Any], name: str, condition: str, reason: str, message: str) -> None:
        generation = (await self.client.get(kind, Key("ml", name))).metadata.generation
        written = {
            "type": condition,
            "status": "True" if reason == condition else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2025-06-01T00:00:00Z",
            "observedGeneration": generation,
        }
        await self.apply_object(kind, name, {"status": {"conditions": [written]}}, subresource="status")

    async def apply_object(
        self,
        kind: type[Any],
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "ml",
        manager: str = AGENT,
        subresource: str = "",
    ) -> None:
        """Create or update the object of this name with this body."""
        manifest = {
            "apiVersion": kind.RESOURCE.api_version,
            "kind": kind.RESOURCE.kind,
            **body,
            "metadata": {**body.get("metadata", {}), "name": name, "namespace": namespace},
        }
        await self.client.apply(kind, manifest, field_manager=manager, subresource=subresource)


@asynccontextmanager
async def open_cluster(
    *accelerators: str, routers: Callable[[Client], RouterPlacement] | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """Run an API server and a controller that has seen everything that was there at the start (nothing)."""
    store = Store()
    kinds = EVERY_KIND if "workloads" in settings else BUILTIN_KINDS
    server = ApiServer(store, kinds=kinds, utcnow=utcnow, rng=random.Random(1))
    await server.ensure_namespaces()
    await server.ensure([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}, *all_crds()])
    registry = CollectorRegistry()
    chosen = ControllerSettings(host_accelerators=frozenset(accelerators or ("metal",)), **settings)
    async with (
        open_transport(server.handle) as transport,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.run_housekeeping)
        faults = Faults(transport, store)
        user, network = (Client(TransportSender(one, "http://apiserver")) for one in (transport, faults))
        cluster = Cluster(user, network, faults, registry, routers(user) if routers is not None else None)
        await nursery.start(cluster.run_controller, chosen)
        yield cluster
        nursery.cancel_scope.cancel()
