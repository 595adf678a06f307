"""The controller as a whole: informers wake queues, reconcilers work them off, one controller of several acts.

```
 Model ─────────────┐                           ┌─▶ models queue ───▶ ModelReconciler ───▶ Jobs, status
 InferenceService ──┤ informers     handlers    ├─▶ services queue ─▶ ServiceReconciler ─▶ Deployments …, status
 EndpointSlice ─────┼ (caches,  ──▶ (what to ───┼─▶ slices queue ───▶ SliceReconciler ───▶ endpoints out of service
 Lease (claim) ─────┤  indexes)      reconcile) └─▶ routers queue ──▶ RouterReconciler ──▶ ConfigMaps …, status
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
from llmkube.controller.informer import HOSTS_WAIT, ControllerHealth, Event, FollowedKind, Informer
from llmkube.controller.informers import Informers, PodInformers
from llmkube.controller.metrics import Durations, FleetCollector, ReconcileMetrics
from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.reconcile.inference_services import PodServices, ServiceReconciler, SliceReconciler
from llmkube.controller.reconcile.models import ModelReconciler, PodModels
from llmkube.controller.reconcile.namespace import run_namespace_keeper
from llmkube.controller.reconcile.pod_answers import run_progress, run_router_health
from llmkube.controller.reconcile.pruning import Pruner
from llmkube.controller.reconcile.routers import PodRouters, RouterPlacement, RouterReconciler
from llmkube.controller.reconciler import Queues, Reconciler
from llmkube.controller.settings import ControllerSettings, WorkloadSettings
from llmkube.controller.writes.owned_kinds import OptionalKinds, OwnedKinds
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.controller.writes.status_writer import PhaseChanges, StatusWriter
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.errors import root_words
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.leases.lease import LeaseLostError, hold_lease
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
    routers: RouterPlacement | None
    informers: Informers = attrs.field(factory=Informers, init=False)
    queues: Queues = attrs.field(init=False)
    model_writer: StatusWriter[Model] = attrs.field(init=False)
    service_writer: StatusWriter[InferenceService] = attrs.field(init=False)
    handlers: EventHandlers = attrs.field(init=False)
    hosts: HostMonitor = attrs.field(init=False)
    pods: PodContext | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.queues = Queues(self.rng)
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
    def followed(self) -> tuple[FollowedKind, ...]:
        """What has to be known, kind by kind, before that is written which needs it."""
        hosts = FollowedKind("Leases of hosts", HOSTS_WAIT, self.hosts.leases)
        pods = self.pods.pods.followed if self.pods is not None else ()
        return (*self.informers.followed, hosts, *pods, *(self._ranks(self.pods) if self.pods is not None else ()))

    def other_tasks(self) -> tuple[Task, ...]:
        """Return the tasks that begin together with the reconcilers."""
        return (self.hosts.run_expiry, *(self._pod_tasks(self.pods) if self.pods is not None else ()))

    async def wait_until_listed(self, kind: FollowedKind) -> None:
        """Say what is missing; once it has come, reconcile everything that has waited for it."""
        log.warning("acting without a kind", lacks=kind.sentence)
        await kind.cache.synced.wait()
        log.info("a kind can be listed now", kind=kind.name)
        self.handlers.wake_all()

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
        routers = RouterReconciler(
            self.informers.routers,
            StatusWriter(self.client, ModelRouter),
            self.utcnow,
            self.queues.routers,
            PodRouters(pods) if pods is not None else self.routers,
        )
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
            owned=OwnedKinds(self.client, pods),
            optional=OptionalKinds(self.client, self.settings.namespace, self.handlers.wake_owners),
            queues=self.queues,
            phase_changes=self.phase_changes,
        )

    def _ranks(self, context: PodContext) -> Iterable[FollowedKind]:
        """PriorityClasses, where nothing says how they are called; a controller of one namespace may not see them."""
        if context.workloads.priority_class_prefix is None and self.settings.namespace is None:
            yield FollowedKind("PriorityClasses", "spec.priority gives no rank", context.pods.priority_classes.cache)

    def _pod_informer_tasks(self, context: PodContext) -> Iterable[Task]:
        pods, owned = context.pods, context.owned
        handlers = PodEventHandlers(self.informers, pods, self.queues)
        kinds: tuple[OwnedObjects[Any], ...] = (
            owned.deployments,
            owned.kubernetes_services,
            owned.budgets,
            owned.autoscalers,
            owned.config_maps,
            owned.network_policies,
        )
        for kind in kinds:
            yield self._run(kind.informer, partial(handlers.on_owned, kind))
        yield self._run(pods.jobs, handlers.on_job)
        yield self._run(pods.pods, handlers.on_pod)
        yield self._run(pods.volume_claims, handlers.on_volume_claim)
        for _ in self._ranks(context):
            yield self._run(pods.priority_classes, lambda _: self.handlers.wake_services())

    def _pod_tasks(self, context: PodContext) -> Iterable[Task]:
        handlers, owned = PodEventHandlers(self.informers, context.pods, self.queues), context.owned
        kinds: tuple[OwnedObjects[Any], ...] = (owned.groups, owned.monitors, owned.routes, owned.objectives)
        for kind in kinds:
            yield partial(context.optional.run, kind.informer, partial(handlers.on_owned, kind), self.rng)
        yield partial(run_progress, context)
        yield partial(run_router_health, context)
        if context.workloads.prune_cache:
            pods = context.pods
            reads = (self.informers.models, pods.pods, pods.deployments, pods.jobs, pods.volume_claims)
            yield partial(_run_once_known, reads, Pruner(context).run)

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
    health: ControllerHealth | None = None,
    routers: RouterPlacement | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Keep the status of Models and services true, and the objects of those that pods serve, forever.

    Started once the API server has answered for all collections and, with an identity, this controller is the one that
    acts. Until then nothing is written: a service whose Model has not arrived yet is not a service without a Model. A
    kind that cannot be listed costs what needs it, until it can.

    Args:
        client: The API server.
        settings: What to look after.
        utcnow: The wall clock, for timestamps in what is written and for ages that the cluster's clock has given.
        rng: Spreads pauses and makes names; with an identity, not seeded alike in two controllers.
        registry: Where the metrics go; one controller per registry.
        health: Told what this controller follows, and whether it acts.
        routers: Runs the ModelRouters where there are no pods; None leaves them alone, and says so.
        task_status: Started when reconciling begins.
    """
    registry = registry if registry is not None else CollectorRegistry()
    health = health if health is not None else ControllerHealth()
    registry.register(health)
    metrics, durations = ReconcileMetrics(registry), Durations(registry)
    recorder = EventRecorder(CONTROLLER_FIELD_MANAGER, settings.identity, utcnow, rng)
    phase_changes = PhaseChanges(recorder, durations, utcnow)
    acting = trio.Event()

    async def act() -> Never:
        controller = Controller(client, settings, utcnow, rng, phase_changes, routers)
        reconcilers = controller.reconcilers(metrics)
        queues = {each.name: each.queue for each in reconcilers}
        fleet = FleetCollector(controller.informers.models, controller.informers.services, queues)
        registry.register(fleet)
        health.kinds = controller.followed
        try:
            await _run_tasks(controller, reconcilers, health, acting)
        finally:
            health.kinds, health.acting = (), False
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


async def _run_tasks(
    controller: Controller, reconcilers: Iterable[Reconciler], health: ControllerHealth, acting: trio.Event
) -> NoReturn:
    """Fill the caches, then reconcile; a kind that the API server refuses holds up nothing else."""
    async with trio.open_nursery() as nursery:
        for task in controller.informer_tasks():
            nursery.start_soon(task)
        for kind in controller.followed:
            await kind.cache.answered.wait()
        for kind in controller.followed:
            if not kind.cache.synced.is_set():
                nursery.start_soon(controller.wait_until_listed, kind)
        for task in controller.other_tasks():
            nursery.start_soon(task)
        for reconciler in reconcilers:
            nursery.start_soon(reconciler.run, controller.settings.workers)
        health.acting = True
        acting.set()
    raise AssertionError("informers never return")


async def _run_once_known(informers: Iterable[Informer[Any]], task: Task) -> Never:
    """Begin a task that must not take what is not known for absent."""
    for informer in informers:
        await informer.cache.synced.wait()
    await task()
