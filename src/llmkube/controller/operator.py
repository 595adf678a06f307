"""The controller as a whole: informers wake queues, reconcilers work them off, one controller of several acts.

```
 Model ─────────────┐                           ┌─▶ models queue ───▶ ModelReconciler ───▶ Jobs, status
 InferenceService ──┤ informers     handlers    ├─▶ services queue ─▶ ServiceReconciler ─▶ Deployments …, status
 EndpointSlice ─────┼ (caches,  ──▶ (what to ───┼─▶ slices queue ───▶ SliceReconciler ───▶ endpoints out of service
 Lease (claim) ─────┤  indexes)      reconcile) └─▶ routers queue ──▶ RouterReconciler ──▶ status
 Deployment, Pod … ─┘                    ▲
 Lease (host) ─────▶ HostMonitor ────────┘   a silent Lease is read once more before its host counts as gone
```

Where several controllers may run, all of this happens only while the Lease `llmkube-controller` is held.
"""

import datetime
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Never, NoReturn

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.controller.event_handlers import EventHandlers, PodEventHandlers
from llmkube.controller.indexer import Event
from llmkube.controller.informer import Informer
from llmkube.controller.informers import Informers, PodInformers
from llmkube.controller.metrics import Durations, FleetCollector, ReconcileMetrics
from llmkube.controller.optional_kinds import OptionalKinds
from llmkube.controller.phase_changes import PhaseChanges
from llmkube.controller.queues import Queues
from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.reconcile.inference_services import ServiceReconciler
from llmkube.controller.reconcile.job_progress import run_progress
from llmkube.controller.reconcile.models import ModelReconciler
from llmkube.controller.reconcile.namespace import run_namespace_keeper
from llmkube.controller.reconcile.pod_models import PodModels
from llmkube.controller.reconcile.pod_services import PodServices
from llmkube.controller.reconcile.pruning import Pruner
from llmkube.controller.reconcile.routers import RouterReconciler
from llmkube.controller.reconcile.stale_endpoints import SliceReconciler
from llmkube.controller.reconciler import Reconciler
from llmkube.controller.settings import ControllerSettings, WorkloadSettings
from llmkube.controller.writes.owned_kinds import OwnedKinds
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.errors import root_words
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.host_monitor import HostMonitor
from llmkube.k8s.lease import LeaseLostError, hold_lease
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER

log = structlog.get_logger()

Task = Callable[[], Awaitable[Never]]


@attrs.define(eq=False)
class Controller:
    """The parts of one controller, put together."""

    client: Client
    settings: ControllerSettings
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    phase_changes: PhaseChanges
    informers: Informers = attrs.field(factory=Informers, init=False)
    queues: Queues = attrs.field(init=False)
    model_writer: StatusWriter[Model] = attrs.field(init=False)
    service_writer: StatusWriter[InferenceService] = attrs.field(init=False)
    handlers: EventHandlers = attrs.field(init=False)
    hosts: HostMonitor = attrs.field(init=False)
    pods: PodContext | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.queues = Queues.empty(self.rng)
        self.model_writer = StatusWriter(self.client, Model)
        self.service_writer = StatusWriter(self.client, InferenceService)
        workloads = self.settings.workloads
        in_pods = workloads is not None
        self.handlers = EventHandlers(self.informers, self.queues, self.service_writer, in_pods=in_pods)
        self.hosts = HostMonitor(self.client, self.settings.lease_namespace, self.handlers.wake_all)
        self.pods = self._pod_context(workloads) if workloads is not None else None

    def informer_tasks(self) -> tuple[Task, ...]:
        """Return the tasks that keep the caches true."""
        known, handlers = self.informers, self.handlers
        return (
            self._run(known.models, handlers.on_model),
            self._run(known.services, handlers.on_service),
            self._run(known.routers, handlers.on_router),
            self._run(known.slices, handlers.on_slice),
            self._run(known.host_claims, handlers.on_host_claim, namespace=self.settings.lease_namespace),
            partial(self.hosts.run_reflector, self.rng),
            *(self._pod_informer_tasks(self.pods) if self.pods is not None else ()),
        )

    @property
    def synced(self) -> tuple[trio.Event, ...]:
        """Set when every collection is known; until then nothing is written."""
        pods = self.pods.pods.synced if self.pods is not None else ()
        return (*self.informers.synced, self.hosts.leases.synced, *pods)

    def other_tasks(self) -> tuple[Task, ...]:
        """Return the tasks that begin once everything is known, besides the reconcilers."""
        return (self.hosts.run_expiry, *(self._pod_tasks(self.pods) if self.pods is not None else ()))

    def reconcilers(self, metrics: ReconcileMetrics) -> tuple[Reconciler, ...]:
        """Return what brings objects in line, one for each queue."""
        pods, changes = self.pods, self.phase_changes
        models = ModelReconciler(
            self.client,
            self.settings,
            self.utcnow,
            self.informers,
            self.hosts,
            self.model_writer,
            changes,
            PodModels(pods, self.model_writer) if pods is not None else None,
        )
        services = ServiceReconciler(
            self.settings,
            self.utcnow,
            self.informers,
            self.hosts,
            self.service_writer,
            changes,
            PodServices(pods, self.service_writer) if pods is not None else None,
        )
        slices = SliceReconciler(self.client, self.informers, self.hosts)
        routers = RouterReconciler(self.informers.routers, StatusWriter(self.client, ModelRouter), self.utcnow)
        return (
            Reconciler("model", models.reconcile, metrics, self.queues.models),
            Reconciler("inferenceservice", services.reconcile, metrics, self.queues.services),
            Reconciler("endpointslice", slices.reconcile, metrics, self.queues.slices),
            Reconciler("modelrouter", routers.reconcile, metrics, self.queues.routers),
        )

    def _pod_context(self, workloads: WorkloadSettings) -> PodContext:
        pods = PodInformers()
        return PodContext(
            self.client,
            self.settings,
            workloads,
            self.utcnow,
            informers=self.informers,
            pods=pods,
            owned=OwnedKinds.on(self.client, pods),
            optional=OptionalKinds(self.client, self.settings.namespace, self.handlers.wake_services),
            queues=self.queues,
            phase_changes=self.phase_changes,
        )

    def _pod_informer_tasks(self, context: PodContext) -> Iterable[Task]:
        pods, owned = context.pods, context.owned
        handlers = PodEventHandlers(self.informers, pods, self.queues)
        for one in (owned.deployments, owned.kubernetes_services, owned.autoscalers, owned.budgets):
            yield self._run(one.informer, partial(handlers.on_owned, one))
        yield self._run(pods.jobs, handlers.on_job)
        yield self._run(pods.pods, handlers.on_pod)
        yield self._run(pods.volume_claims, handlers.on_volume_claim)

    def _pod_tasks(self, context: PodContext) -> Iterable[Task]:
        handlers = PodEventHandlers(self.informers, context.pods, self.queues)
        for one in (context.owned.monitors, context.owned.routes, context.owned.objectives):
            yield partial(context.optional.run, one.informer, partial(handlers.on_owned, one), self.rng)
        yield partial(run_progress, context)
        if context.workloads.prune_cache:
            yield Pruner(context).run

    def _run(
        self, informer: Informer[Any], handle: Callable[[Event[Any]], None], *, namespace: str | None = None
    ) -> Task:
        namespace = namespace or self.settings.namespace
        return partial(informer.run, self.client, handle, namespace=namespace, rng=self.rng)


async def run_controller(
    client: Client,
    settings: ControllerSettings,
    *,
    utcnow: Callable[[], datetime.datetime],
    rng: random.Random,
    registry: CollectorRegistry | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Keep the status of Models and services true, and the objects of those that pods serve, forever.

    Started once all collections are known and, with an identity, this controller is the one that acts. Until then
    nothing is written: a service whose Model has not arrived yet is not a service without a Model.

    Args:
        client: The API server.
        settings: What to look after.
        utcnow: The wall clock, for timestamps in what is written and for ages that the cluster's clock has given.
        rng: Spreads pauses and makes names; with an identity, not seeded alike in two controllers.
        registry: Where the metrics go; one controller per registry.
        task_status: Started when reconciling begins.
    """
    registry = registry if registry is not None else CollectorRegistry()
    metrics, durations = ReconcileMetrics.on(registry), Durations.on(registry)
    recorder = EventRecorder(CONTROLLER_FIELD_MANAGER, settings.identity, utcnow, rng)
    phase_changes = PhaseChanges(recorder, durations, utcnow)
    acting = trio.Event()

    async def act() -> Never:
        controller = Controller(client, settings, utcnow, rng, phase_changes)
        reconcilers = controller.reconcilers(metrics)
        queues = {each.name: each.queue for each in reconcilers}
        fleet = FleetCollector(controller.informers.models, controller.informers.services, queues)
        registry.register(fleet)
        try:
            await _run_tasks(controller, reconcilers, acting)
        finally:
            registry.unregister(fleet)  # the controller that acts next exports its own

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run, client)
        confined = settings.namespace is not None
        nursery.start_soon(partial(run_namespace_keeper, client, settings.lease_namespace, rng, confined=confined))
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
            async with hold_lease(client, settings.leader_lease, settings.identity, utcnow=utcnow, rng=rng):
                await act()
        except* LeaseLostError as lost:
            log.warning("another controller may act now", error=root_words(lost))


async def _run_tasks(controller: Controller, reconcilers: Iterable[Reconciler], acting: trio.Event) -> NoReturn:
    """Fill the caches, then reconcile."""
    async with trio.open_nursery() as nursery:
        for task in controller.informer_tasks():
            nursery.start_soon(task)
        for synced in controller.synced:
            await synced.wait()
        for task in controller.other_tasks():
            nursery.start_soon(task)
        for reconciler in reconcilers:
            nursery.start_soon(reconciler.run, controller.settings.workers)
        acting.set()
    raise AssertionError("informers never return")
