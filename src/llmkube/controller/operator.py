"""The controller: reflectors wake reconcilers, one for each kind, and a timer notices hosts that fell silent.

What hosts serve is derived here; what pods serve is handed on to `cluster`, if that is switched on.

```
 Model ─────────────┐                       ┌─▶ models queue ───▶ derive_model_status ───┐
 InferenceService ──┤ reflectors ─ keys ─▶ ─┼─▶ services queue ─▶ derive_service_status ─┴─▶ status apply
 EndpointSlice ─────┤           (indexes)   └─▶ slices queue ───▶ out of service, if its host is gone
 Claim (a Lease) ───┤
 Lease of a host ───┘─▶ host watch ◀── timer: a silent Lease is read once more before its host counts as gone
```

Where several controllers may run, all of this happens only while the Lease `llmkube-controller` is held.

What wakes a service: itself, the Model it refers to, a slice or a claim that names it, and any change of the set of
live hosts.

The slices are the agents'. The one thing that is edited there is the endpoint of a host that is gone: nobody else is
left to say that it does not answer, and a cluster would go on sending requests into the void.
"""

import datetime
import functools
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Never, NoReturn

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.controller.cluster_state import Cluster, drafts_of
from llmkube.controller.metrics import Durations, FleetCollector, ReconcileMetrics
from llmkube.controller.predicates import Change, News
from llmkube.controller.reconcile.job_progress import run_progress
from llmkube.controller.reconcile.model_files import Fetching, put_finalizer
from llmkube.controller.reconcile.namespace import run_namespace_keeper
from llmkube.controller.reconcile.pruning import Pruner
from llmkube.controller.reconcile.routers import Routers
from llmkube.controller.reconcile.serving import Serving
from llmkube.controller.reconciler import Reconciler, new_queue
from llmkube.controller.reverse_index import Index
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.model_status import accelerator_of, derive_model_status
from llmkube.controller.status.service_status import derive_service_status
from llmkube.controller.status.slices import is_in_service, out_of_service
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.errors import NotFoundError, root_words
from llmkube.k8s.events import EventRecorder, EventType
from llmkube.k8s.hostwatch import HostWatch
from llmkube.k8s.lease import LeaseLostError, held
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import PROGRESSING
from llmkube.k8s.wire.names import (
    AGENT_MANAGER,
    CLAIM_LABEL,
    CLAIMED_ANNOTATION,
    CONTROLLER_FIELD_MANAGER,
    HOST_LABEL,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    label_value,
)
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workqueue import WorkQueue

log = structlog.get_logger()

_EVENT_TYPES: Final[Mapping[str, EventType]] = {"Ready": "Normal", "Failed": "Warning"}
"""The phases whose coming is an Event."""

_Label = tuple[str, str]  # namespace and value of SERVICE_LABEL

GATHER_SECONDS: Final = 0.2
"""How long a Model waits for further users: a thousand that come at once are counted some times, not a thousand."""


@attrs.frozen(eq=False)
class _Pods:
    """What looks after everything that pods serve."""

    cluster: Cluster
    models: Fetching
    services: Serving


@attrs.define(eq=False)
class _Controller:
    """The state of one controller: what is known, how it hangs together, and what is to be looked at again."""

    client: Client
    settings: ControllerSettings
    utcnow: Callable[[], datetime.datetime]
    model_writer: StatusWriter[Model]
    service_writer: StatusWriter[InferenceService]
    model_queue: WorkQueue[Key]
    service_queue: WorkQueue[Key]
    slice_queue: WorkQueue[Key]
    routers: Routers
    recorder: EventRecorder
    durations: Durations | None = None

    models: Cache[Model] = attrs.field(factory=Cache)
    services: Cache[InferenceService] = attrs.field(factory=Cache)
    slices: Cache[EndpointSlice] = attrs.field(factory=Cache)
    claims: Cache[Lease] = attrs.field(factory=Cache)
    hosts: HostWatch = attrs.field(init=False)
    services_by_model: Index[Key, Key] = attrs.field(factory=Index)
    services_by_label: Index[Key, _Label] = attrs.field(factory=Index)
    slices_by_label: Index[Key, _Label] = attrs.field(factory=Index)
    claims_by_service: Index[Key, Key] = attrs.field(factory=Index)
    pods: _Pods | None = attrs.field(init=False, default=None)
    _model_news: News[Model] = attrs.field(init=False)
    _service_news: News[InferenceService] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._model_news, self._service_news = News(self.models), News(self.services)
        self.hosts = HostWatch(self.client, self.settings.lease_namespace, self.wake_all)
        if self.settings.workloads is not None:
            cluster = Cluster(
                self.client,
                self.settings,
                self.settings.workloads,
                self.utcnow,
                models=self.models,
                services=self.services,
                services_by_model=self.services_by_model,
                services_by_label=self.services_by_label,
                model_queue=self.model_queue,
                service_queue=self.service_queue,
                announce=self._announce,
            )
            self.pods = _Pods(cluster, Fetching(cluster, self.model_writer), Serving(cluster, self.service_writer))

    # -- What a change wakes: called by reflectors, so short and without waiting -------------------------------------

    def on_model(self, key: Key) -> None:
        self.model_queue.add_nowait(key)  # whatever it is: claims of users are not watched, and an edit is a nudge
        if self._model_news.take(key):
            for service in self.services_by_model.holders(key):
                self.service_queue.add_nowait(service)

    def on_service(self, key: Key) -> None:
        service, change = self.services.get(key), self._service_news.take(key)
        if not change and not self.service_queue.is_failing(key):  # of what fails, any change may be what it waits for
            return
        names = [service.spec.model_ref, *drafts_of(service)] if service else []
        concerned = self.services_by_model.put(key, [Key(key.namespace, name) for name in names])
        if change is Change.SPEC:
            for model in concerned:  # who uses a Model decides who brings its weights, and whether it may go
                self.model_queue.add_after(model, GATHER_SECONDS)
        self.services_by_label.put(key, [(key.namespace, label_value(key.name))] if service else [])
        if service is None or not self.service_writer.is_own(service):  # the status is the last that a reconcile writes
            self.service_queue.add_nowait(key)

    def on_slice(self, key: Key) -> None:
        self.slice_queue.add_nowait(key)
        piece = self.slices.get(key)
        label = piece.metadata.labels.get(SERVICE_LABEL) if piece else None
        for concerned in self.slices_by_label.put(key, [(key.namespace, label)] if label else []):
            for service in self.services_by_label.holders(concerned):
                self.service_queue.add_nowait(service)

    def on_claim(self, key: Key) -> None:
        claim = self.claims.get(key)
        for service in self.claims_by_service.put(key, _claimed(claim) if claim is not None else ()):
            self.service_queue.add_nowait(service)

    def wake_all(self) -> None:
        """Look at every object again: hosts come and go rarely, and any of them may be concerned."""
        for model in self.models.values():
            self.model_queue.add_nowait(model.key)
        for service in self.services.values():
            self.service_queue.add_nowait(service.key)
        for piece in self.slices.values():
            self.slice_queue.add_nowait(piece.key)

    def reflectors(self, rng: random.Random) -> tuple[Callable[[], Awaitable[Never]], ...]:
        """The tasks that keep the caches true."""
        reflect = functools.partial(run_reflector, self.client, rng=rng)
        here = functools.partial(reflect, namespace=self.settings.namespace)
        ours = f"{MANAGED_BY_LABEL}={AGENT_MANAGER}"
        lease_namespace = self.settings.lease_namespace
        pods = self.pods.cluster.reflectors(rng) if self.pods is not None else ()
        return (
            *pods,
            functools.partial(here, Model, self.models, self.on_model),
            functools.partial(here, InferenceService, self.services, self.on_service),
            functools.partial(here, ModelRouter, self.routers.cache, self.routers.queue.add_nowait),
            functools.partial(here, EndpointSlice, self.slices, self.on_slice, label_selector=ours),
            functools.partial(
                reflect, Lease, self.claims, self.on_claim, namespace=lease_namespace, label_selector=CLAIM_LABEL
            ),
            functools.partial(self.hosts.run_reflector, rng),
        )

    def reconcilers(self, metrics: ReconcileMetrics) -> tuple[Reconciler, ...]:
        """Those who bring objects in line, one for each queue."""
        return (
            Reconciler("model", self.reconcile_model, metrics, self.model_queue),
            Reconciler("inferenceservice", self.reconcile_service, metrics, self.service_queue),
            Reconciler("endpointslice", self.reconcile_slice, metrics, self.slice_queue),
            Reconciler("modelrouter", self.routers.reconcile, metrics, self.routers.queue),
        )

    # -- What is done about it ---------------------------------------------------------------------------------------

    async def reconcile_model(self, key: Key) -> None:
        await trio.lowlevel.checkpoint()
        cached = self.models.get(key)
        if cached is None:
            self.model_writer.forget(key)
            return
        if self.models.misfit(key):
            return  # its newest state cannot be read, and nothing can be written over that from an older one
        if self.pods is not None and not self._ours(cached):
            await self.pods.models.reconcile(cached)
        elif self.pods is None or not await self.pods.models.release(cached):
            await self._reconcile_hosted_model(cached)

    async def _reconcile_hosted_model(self, cached: Model) -> None:
        if self.pods is None and cached.metadata.deletion_timestamp and not self.services_by_model.holders(cached.key):
            await put_finalizer(self.client, cached, held=False)  # of the days with pods: nobody else takes it off
        if not self._ours(cached) or cached.metadata.deletion_timestamp:
            self.model_writer.forget(cached.key)
            return
        newest = self.model_writer.newest(cached)
        status = derive_model_status(newest, self.hosts.book.hosts, now=self.utcnow())
        if await self.model_writer.write(cached, status) and status["phase"] != newest.status.phase:
            self._announce("model phase", newest, status)

    async def reconcile_service(self, key: Key) -> None:
        await trio.lowlevel.checkpoint()
        cached = self.services.get(key)
        if cached is None or cached.metadata.deletion_timestamp:
            self.service_writer.forget(key)
            if self.pods is not None:
                self.pods.services.forget(key)
            return
        if self.services.misfit(key):
            return
        model_key = Key(key.namespace, cached.spec.model_ref)
        model = self.models.get(model_key)
        if model is None and self.models.misfit(model_key):
            return  # there is a Model, but this version cannot read it: that is not the same as none
        if self.pods is not None and not (self._ours(model) if model else self.pods.services.is_empty(cached)):
            await self.pods.services.reconcile(cached, model)
            return
        if self.pods is not None:
            await self.pods.services.retire(cached)
        await self._reconcile_hosted_service(cached, model)

    async def _reconcile_hosted_service(self, cached: InferenceService, model: Model | None) -> None:
        key = cached.key
        if model is not None and not self._ours(model):
            self.service_writer.forget(key)
            return
        label = (key.namespace, label_value(key.name))
        slices = [piece for one in sorted(self.slices_by_label.holders(label)) if (piece := self.slices.get(one))]
        holders = self._holders(key)
        now, newest = self.utcnow(), self.service_writer.newest(cached)
        status = derive_service_status(
            newest, model, slices, self.hosts.book.hosts, self.settings, holders=holders, now=now
        )
        written = await self.service_writer.write(cached, status, along={"lastUpdated": timestamp(now)})
        if written and status["phase"] != newest.status.phase:
            self._announce("inference service phase", newest, status)

    def _announce(self, what: str, obj: Model | InferenceService, status: Mapping[str, Any]) -> None:
        """Log a new phase; tell those that somebody waits for, or should look at, where `kubectl describe` shows it."""
        phase, [progressing] = status["phase"], [one for one in status["conditions"] if one["type"] == PROGRESSING]
        log.info(what, name=str(obj.key), phase=phase, reason=progressing["reason"])
        if phase == "Ready" and self.durations is not None:
            self.durations.became_ready(obj, self.utcnow())
        if phase in _EVENT_TYPES:
            reason, message = progressing["reason"], progressing["message"]
            self.recorder.emit_nowait(obj, reason, message, type=_EVENT_TYPES[phase])

    def _ours(self, model: Model) -> bool:
        return accelerator_of(model) in self.settings.host_accelerators

    def _holders(self, key: Key) -> tuple[str, ...]:
        """The hosts that claim a replica of a service, alive or not."""
        held = [claim for one in self.claims_by_service.holders(key) if (claim := self.claims.get(one))]
        return tuple(sorted({claim.spec.holder_identity for claim in held if claim.spec.holder_identity}))

    # -- Hosts that are gone -----------------------------------------------------------------------------------------

    async def reconcile_slice(self, key: Key) -> None:
        """Take a slice's endpoints out of service if its host is gone, and nobody has written to the slice since."""
        await trio.lowlevel.checkpoint()
        piece = self.slices.get(key)
        host = piece.metadata.labels.get(HOST_LABEL, "") if piece else ""
        if piece is None or not is_in_service(piece) or self.hosts.book.hosts.alive(host):
            return
        # A host that comes back renews its Lease before it says again where its engines are, but we may hear of that
        # the other way round.
        if host and not await self.hosts.wait_gone(host):
            return
        patch = out_of_service(piece)
        try:
            await self.client.patch(EndpointSlice, key, patch, field_manager=CONTROLLER_FIELD_MANAGER)
        except NotFoundError:
            return
        log.warning("endpoints taken out of service: their host is gone", slice=str(key), host=host)


def _claimed(claim: Lease) -> Iterator[Key]:
    """Yield the service that a claim names; whoever may write Leases may write nonsense, which claims nothing."""
    try:
        yield Key.parse(claim.metadata.annotations.get(CLAIMED_ANNOTATION, ""))
    except ValueError as error:
        log.warning("claim names no service", lease=str(claim.key), error=str(error))


async def run_controller(
    client: Client,
    settings: ControllerSettings,
    *,
    utcnow: Callable[[], datetime.datetime],
    rng: random.Random,
    registry: CollectorRegistry | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Keep phase, conditions, replicas and endpoint of everything that hosts serve true, forever.

    Started once all collections are known and, with an identity, this controller is the one that acts. Until then
    nothing is written: a service whose Model has not arrived yet is not a service without a Model.

    Args:
        client: The API server.
        settings: What to look after.
        utcnow: The wall clock, for timestamps in what is written and for nothing else.
        rng: Spreads pauses and makes names; with an identity, not seeded alike in two controllers.
        registry: Where the metrics go; one controller per registry.
        task_status: Told when reconciling begins.
    """
    registry = registry if registry is not None else CollectorRegistry()
    metrics, durations = ReconcileMetrics.on(registry), Durations.on(registry)
    recorder = EventRecorder(CONTROLLER_FIELD_MANAGER, settings.identity, utcnow, rng)
    acting = trio.Event()

    async def act() -> Never:
        controller = _Controller(
            client,
            settings,
            utcnow,
            model_writer=StatusWriter(client, Model),
            service_writer=StatusWriter(client, InferenceService),
            model_queue=new_queue(rng),
            service_queue=new_queue(rng),
            slice_queue=new_queue(rng),
            routers=Routers(StatusWriter(client, ModelRouter), new_queue(rng), utcnow),
            recorder=recorder,
            durations=durations,
        )
        reconcilers = controller.reconcilers(metrics)
        queues = {each.name: each.queue for each in reconcilers}
        fleet = FleetCollector(controller.models, controller.services, queues)
        registry.register(fleet)
        try:
            await _run_reconcilers(controller, reconcilers, rng, acting)
        finally:
            registry.unregister(fleet)  # whoever acts next knows better

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run, client)
        nursery.start_soon(run_namespace_keeper, client, settings.lease_namespace, rng)
        if settings.identity:
            nursery.start_soon(_run_elected, client, settings, utcnow, rng, act)
        else:
            nursery.start_soon(act)
        await acting.wait()
        task_status.started()
    raise AssertionError("reconcilers never return")


async def _run_elected(
    client: Client,
    settings: ControllerSettings,
    utcnow: Callable[[], datetime.datetime],
    rng: random.Random,
    act: Callable[[], Awaitable[Never]],
) -> NoReturn:
    """Act while the Lease is held, with nothing that an earlier turn has remembered; wait for the Lease in between."""
    while True:
        try:
            async with held(client, settings.leader_lease, settings.identity, utcnow=utcnow, rng=rng):
                await act()
        except* LeaseLostError as lost:
            log.warning("another controller may act now", error=root_words(lost))


async def _run_reconcilers(
    controller: _Controller, reconcilers: Iterable[Reconciler], rng: random.Random, acting: trio.Event
) -> NoReturn:
    async with trio.open_nursery() as nursery:
        for reflector in controller.reflectors(rng):
            nursery.start_soon(reflector)
        for synced in (
            controller.models.synced,
            controller.services.synced,
            controller.slices.synced,
            controller.claims.synced,
            controller.hosts.leases.synced,
            *(controller.pods.cluster.synced if controller.pods is not None else ()),
        ):
            await synced.wait()
        if controller.pods is not None:
            cluster = controller.pods.cluster
            nursery.start_soon(cluster.run_optional, rng)
            nursery.start_soon(run_progress, cluster)
            if cluster.workloads.prune_cache:
                nursery.start_soon(Pruner(cluster).run)
        nursery.start_soon(controller.hosts.run_expiry)
        for reconciler in reconcilers:
            nursery.start_soon(reconciler.run, controller.settings.workers)
        acting.set()
    raise AssertionError("reflectors never return")
