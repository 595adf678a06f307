"""The controller as a whole: informers fill queues, reconcilers process them, one of several controllers acts.

```
 Model ─────────────┐                           ┌─▶ models queue ───▶ ModelReconciler ───▶ Jobs, status
 InferenceService ──┤ informers     handlers    ├─▶ services queue ─▶ ServiceReconciler ─▶ Deployments …, status
 EndpointSlice ─────┼ (caches,  ──▶ (what to ───┼─▶ slices queue ───▶ SliceReconciler ───▶ endpoints out of service
 Lease (claim) ─────┤  indexes)      reconcile) └─▶ routers queue ──▶ RouterReconciler ──▶ ConfigMaps …, status
 GPUQuota ──────────┤                    ▲      └─▶ quotas queue ──▶ QuotaReconciler ───▶ status, services that wait
 Deployment, Pod … ─┘                    │
 Lease (host) ─────▶ HostMonitor ────────┘   an expired Lease is read again before its host is taken for gone
```

Where several controllers may run, only the holder of the Lease `llmkube-controller` does this.
"""

import datetime
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Never, NoReturn

import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.controller.event_handlers import EventHandlers, PodEventHandlers
from llmkube.controller.health import HOSTS_WAIT, ControllerHealth, WatchedKind
from llmkube.controller.metrics import Durations, FleetCollector, ReconcileMetrics
from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.reconcile.gpu_quotas import QuotaReconciler
from llmkube.controller.reconcile.inference_services import PodServices, ServiceReconciler, SliceReconciler
from llmkube.controller.reconcile.model_pools import PoolReconciler
from llmkube.controller.reconcile.models import ModelReconciler, PodModels
from llmkube.controller.reconcile.namespace import run_namespace_keeper
from llmkube.controller.reconcile.pod_polling import run_progress, run_router_health
from llmkube.controller.reconcile.pruning import Pruner
from llmkube.controller.reconcile.routers import PodRouters, RouterPlacement, RouterReconciler
from llmkube.controller.reconciler import Reconciler
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.controller.writes.status_writer import PhaseChanges
from llmkube.k8s.client import Client
from llmkube.k8s.errors import root_cause_text
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.informer import Event, Informer
from llmkube.k8s.leases.lease import LeaseLostError, hold_lease
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER

log = structlog.get_logger()

Task = Callable[[], Awaitable[Never]]


def _informer_tasks(context: Context) -> Iterator[Task]:
    """Yield the tasks that update the caches."""
    informers, handlers = context.informers, EventHandlers(context)
    yield _run(context, informers.models, handlers.on_model)
    yield _run(context, informers.services, handlers.on_service)
    yield _run(context, informers.routers, handlers.on_router)
    yield _run(context, informers.quotas, handlers.on_quota)
    yield _run(context, informers.pools, handlers.on_pool)
    yield _run(context, informers.slices, handlers.on_slice)
    yield _run(context, informers.host_claims, handlers.on_host_claim, namespace=context.settings.lease_namespace)
    yield partial(context.hosts.run_reflector, context.rng)
    if not isinstance(context, PodContext):
        return
    pods, owned, pod_handlers = context.pods, context.owned, PodEventHandlers(context)
    kinds: tuple[OwnedObjects[Any], ...] = (
        owned.deployments,
        owned.kubernetes_services,
        owned.budgets,
        owned.autoscalers,
        owned.config_maps,
        owned.network_policies,
    )
    for kind in kinds:
        yield _run(context, kind.informer, partial(pod_handlers.on_owned, kind))
    yield _run(context, pods.jobs, pod_handlers.on_job)
    yield _run(context, pods.pods, pod_handlers.on_pod)
    yield _run(context, pods.gateway_leases, pod_handlers.on_gateway_lease)
    yield _run(context, pods.endpoints, pod_handlers.on_endpoints)
    own = context.settings.lease_namespace
    yield _run(context, pods.front_doors, lambda _: context.enqueue_services(), namespace=own)
    yield _run(context, pods.volume_claims, pod_handlers.on_volume_claim)
    if context.settings.namespace is None:
        yield _run(context, pods.namespaces, pod_handlers.on_namespace)
    if _needs_priority_classes(context):
        yield _run(context, pods.priority_classes, lambda _: context.enqueue_services())


def _watched_kinds(context: Context) -> Iterator[WatchedKind]:
    """Yield the kinds that have to be listed before what depends on them is written."""
    yield from context.informers.watched_kinds
    yield WatchedKind("Leases of hosts", HOSTS_WAIT, context.hosts.leases)
    if isinstance(context, PodContext):
        yield from context.pods.watched_kinds
        if context.settings.namespace is None:
            effect = "selectors of GPUQuotas match no namespace"
            yield WatchedKind("Namespaces", effect, context.pods.namespaces.cache)
        if _needs_priority_classes(context):
            yield WatchedKind("PriorityClasses", "spec.priority has no effect", context.pods.priority_classes.cache)


def _needs_priority_classes(context: PodContext) -> bool:
    """Whether to list PriorityClasses to find their prefix; a controller of one namespace may not list them."""
    return context.workloads.priority_class_prefix is None and context.settings.namespace is None


def _other_tasks(context: Context) -> Iterator[Task]:
    """Yield the tasks that start together with the reconcilers."""
    yield context.hosts.run_expiry
    if not isinstance(context, PodContext):
        return
    handlers, owned, pods = PodEventHandlers(context), context.owned, context.pods
    kinds: tuple[OwnedObjects[Any], ...] = (owned.groups, owned.monitors, owned.routes, owned.objectives)
    for kind in kinds:
        yield partial(context.optional.run, kind.informer, partial(handlers.on_owned, kind), context.rng)
    yield partial(run_progress, context)
    yield partial(run_router_health, context)
    if context.workloads.prune_cache:
        reads = (context.informers.models, pods.pods, pods.deployments, pods.jobs, pods.volume_claims)
        yield partial(_run_once_known, reads, Pruner(context).run)


def _reconcilers(
    context: Context, routers: RouterPlacement | None, metrics: ReconcileMetrics
) -> tuple[Reconciler, ...]:
    """Return one reconciler for each queue."""
    in_pods = context if isinstance(context, PodContext) else None
    models = ModelReconciler(context, PodModels(in_pods) if in_pods is not None else None)
    pod_services = PodServices(in_pods) if in_pods is not None else None
    services = ServiceReconciler(context, pod_services)
    quotas = QuotaReconciler(context, pod_services.quotas if pod_services is not None else None)
    pools = PoolReconciler(context, pod_services.pools if pod_services is not None else None)
    router_reconciler = RouterReconciler(context, PodRouters(in_pods) if in_pods is not None else routers)
    queues = context.queues
    return (
        Reconciler("model", models.reconcile, metrics, queues.models),
        Reconciler("inferenceservice", services.reconcile, metrics, queues.services),
        Reconciler("endpointslice", SliceReconciler(context).reconcile, metrics, queues.slices),
        Reconciler("modelrouter", router_reconciler.reconcile, metrics, queues.routers),
        Reconciler("gpuquota", quotas.reconcile, metrics, queues.quotas),
        Reconciler("modelpool", pools.reconcile, metrics, queues.pools),
    )


def _run(
    context: Context, informer: Informer[Any], handle: Callable[[Event[Any]], None], *, namespace: str | None = None
) -> Task:
    namespace = namespace or context.settings.namespace
    return partial(informer.run, context.client, handle, namespace=namespace, rng=context.rng)


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
    """Reconcile the status of Models, services and routers, and the objects of those that run in pods, until cancelled.

    Started once the API server has answered for all kinds and, with an identity, this controller holds the Lease. Until
    then nothing is written, because a Model that has not been listed yet is not a missing one. While a kind cannot be
    listed, only what depends on it waits.

    Args:
        client: The API server.
        settings: Scope and rendering of what is reconciled.
        utcnow: The wall clock, for timestamps that are written and for ages of timestamps that the cluster has set.
        rng: Jitter of pauses, and names; with an identity, not to be seeded alike in two controllers.
        registry: Receives the metrics; one controller per registry.
        health: Updated with the watched kinds and whether this controller acts.
        routers: Runs the ModelRouters where there are no pods; if None, their status reports that they are unsupported.
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
        shared = client, settings, utcnow, rng, phase_changes
        context = Context(*shared) if settings.workloads is None else PodContext(*shared, settings.workloads)
        reconcilers = _reconcilers(context, routers, metrics)
        queues = {each.name: each.queue for each in reconcilers}
        known = context.informers
        fleet = FleetCollector(known.models, known.services, known.quotas, known.pools, context.pool_starts, queues)
        registry.register(fleet)
        health.kinds = tuple(_watched_kinds(context))
        try:
            await _run_tasks(context, reconcilers, health, acting)
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
    """Act while the Lease is held, each time with fresh caches; otherwise wait for the Lease."""
    while True:
        try:
            async with hold_lease(client, settings.leader_lease, settings.identity, utcnow=utcnow, rng=rng):
                await act()
        except* LeaseLostError as lost:
            log.warning("leader lease lost", error=root_cause_text(lost))


async def _run_tasks(
    context: Context, reconcilers: Iterable[Reconciler], health: ControllerHealth, acting: trio.Event
) -> NoReturn:
    """Fill the caches, then reconcile; a kind that the API server refuses to list delays no other kind."""
    async with trio.open_nursery() as nursery:
        for task in _informer_tasks(context):
            nursery.start_soon(task)
        for kind in health.kinds:
            await kind.cache.answered.wait()
        for kind in health.kinds:
            if not kind.cache.synced.is_set():
                nursery.start_soon(_wait_until_listed, context, kind)
        for task in _other_tasks(context):
            nursery.start_soon(task)
        for reconciler in reconcilers:
            nursery.start_soon(reconciler.run, context.settings.workers)
        health.acting = True
        acting.set()
    raise AssertionError("informers never return")


async def _wait_until_listed(context: Context, kind: WatchedKind) -> None:
    """Log that a kind cannot be listed; once it can be, or is not served, reconcile all that may depend on it."""
    log.warning("kind not listed", lacks=kind.problem)
    await kind.cache.synced_or_unserved.wait()
    context.enqueue_all()
    await kind.cache.synced.wait()
    log.info("kind listed", kind=kind.name)
    context.enqueue_all()


async def _run_once_known(informers: Iterable[Informer[Any]], task: Task) -> Never:
    """Run a task once these kinds are listed: it would take an object that is not listed yet for absent."""
    for informer in informers:
        await informer.cache.synced.wait()
    await task()
