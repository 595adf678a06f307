"""State that the reconcilers share; `PodContext` has what those of Models, services and routers in pods need besides.

Between reconciles one record per service is retained, and dropped with the service. Only `deferred_since` is original
state. Everything else is computed from cached objects, and computed again when one of them changes.

The GPU queue only determines the position that users see. The scheduler decides which pod gets the next GPU, by
PriorityClass. The chart's PriorityClasses have the same order as these priorities.
"""

import datetime
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import attrs

from llmkube.controller.informers import Informers, PodInformers
from llmkube.controller.reconciler import Queues
from llmkube.controller.render.jobs import PRUNE_JOB
from llmkube.controller.render.manifests import Manifests
from llmkube.controller.render.storage import Weights
from llmkube.controller.settings import ControllerSettings, WorkloadSettings
from llmkube.controller.status.job_result import finished_at
from llmkube.controller.status.pod_service_status import ServiceFacts
from llmkube.controller.status.router_status import BackendHealth
from llmkube.controller.writes.owned_kinds import OptionalKinds, OwnedKinds
from llmkube.controller.writes.status_writer import PhaseChanges, StatusWriter
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.leases.wanted_services import WantedServices
from llmkube.k8s.resource import Key
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.plan import PlanError

V = TypeVar("V")


@attrs.frozen(eq=False)
class WorkloadPlan:
    """Plan of a service's pods, from the specs and the Models alone.

    Attributes:
        facts: Facts for the status, without the observed ones.
        weights: Where the weights are; None while pods cannot be created, and `facts` has the reason.
    """

    facts: ServiceFacts
    weights: Weights | None = None


@attrs.define(eq=False)
class Memo(Generic[V]):
    """Cache of one value, valid while its inputs are equal; callers share the value and must not change it."""

    _entry: tuple[tuple[Any, ...], V] | None = attrs.field(default=None, init=False)

    def get(self, inputs: tuple[Any, ...], make: Callable[[], V]) -> V:
        """Return the cached value if its inputs were equal; otherwise make it. Exceptions are not cached."""
        if self._entry is None or self._entry[0] != inputs:
            self._entry = (inputs, make())
        return self._entry[1]


@attrs.define(eq=False)
class ServiceRecord:
    """State retained for one service.

    Attributes:
        container: From the specs and the header of the weights; an error if there can be none.
        workload: From the service's spec, the container and the Models.
        manifests: From the workload and the number of pods.
        deferred_since: When the replacement of its pods began to wait for requests to end, in seconds of Trio's clock;
            None if nothing waits. After a restart of the controller the wait begins again.
        deferral_reason: The reason for that wait, as a sentence.
        used_at: When a service that is loaded on request was last found to have requests, in seconds of Trio's clock;
            None if it has no pods.
        checked_at: When that was last checked.
        usage: Counters of its engines' requests at that time.
        predecessors_labelled: Whether pods of an earlier controller have been searched for and labelled.
    """

    container: Memo[ContainerPlan | PlanError] = attrs.field(factory=Memo, init=False)
    workload: Memo[WorkloadPlan] = attrs.field(factory=Memo, init=False)
    manifests: Memo[Manifests] = attrs.field(factory=Memo, init=False)
    deferred_since: float | None = attrs.field(default=None, init=False)
    deferral_reason: str = attrs.field(default="", init=False)
    used_at: float | None = attrs.field(default=None, init=False)
    checked_at: float = attrs.field(default=0.0, init=False)
    usage: frozenset[str] | None = attrs.field(default=None, init=False)
    predecessors_labelled: bool = attrs.field(default=False, init=False)

    def clear_deferral(self) -> None:
        """Record that no replacement of pods is waiting."""
        self.deferred_since, self.deferral_reason = None, ""


@attrs.frozen
class QueuedService:
    """A service whose pods wait for a GPU.

    Attributes:
        weight: Weight of its priority; higher is more important.
        since: Creation time of the service, as RFC 3339.
        wanted: The resources that it waits for, such as `nvidia.com/gpu: 2`.
    """

    key: Key
    weight: int
    since: str
    wanted: str


@attrs.define(eq=False)
class GpuQueue:
    """Waiting services with their positions, from 1; sorted once per change, not once per read."""

    _queue: dict[Key, tuple[QueuedService, int]] = attrs.field(factory=dict, init=False)

    def put(self, key: Key, waiting: QueuedService | None) -> frozenset[Key]:
        """Add or remove (None) a waiting service; return the other services whose position has changed."""
        before = self._queue
        if (before[key][0] if key in before else None) == waiting:
            return frozenset()
        others = [one for one, _ in before.values() if one.key != key]
        self._queue = number_waiting(others if waiting is None else [*others, waiting])
        return frozenset(one.key for one in others if before[one.key] != self._queue[one.key])

    def position(self, key: Key) -> int:
        """Return the position of a service, from 1; 0 if it does not wait."""
        return self._queue[key][1] if key in self._queue else 0

    def __len__(self) -> int:
        return len(self._queue)


def number_waiting(waiting: Iterable[QueuedService]) -> dict[Key, tuple[QueuedService, int]]:
    """Number waiting services: the most important first, then the oldest, then by name."""
    ordered = sorted(waiting, key=lambda one: (-one.weight, one.since, one.key))
    return {one.key: (one, position) for position, one in enumerate(ordered, 1)}


@attrs.define(eq=False)
class Context:
    """The API server, caches of its objects, work queues and status writers.

    Attributes:
        utcnow: The wall clock, for timestamps that are written and for ages of timestamps that the cluster has set.
        rng: Jitter of pauses.
        phase_changes: Notified of every new phase.
        hosts: Tracks which hosts are alive.
        pool_starts: Number of starts of members of each ModelPool, and the seconds for which requests waited for these.
    """

    client: Client
    settings: ControllerSettings
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    phase_changes: PhaseChanges
    informers: Informers = attrs.field(factory=Informers, init=False)
    queues: Queues = attrs.field(init=False)
    hosts: HostMonitor = attrs.field(init=False)
    models: StatusWriter[Model] = attrs.field(init=False)
    services: StatusWriter[InferenceService] = attrs.field(init=False)
    routers: StatusWriter[ModelRouter] = attrs.field(init=False)
    quotas: StatusWriter[GPUQuota] = attrs.field(init=False)
    pool_statuses: StatusWriter[ModelPool] = attrs.field(init=False)
    pool_starts: dict[Key, tuple[int, float]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.queues = Queues(self.rng)
        self.hosts = HostMonitor(self.client, self.settings.lease_namespace, self.enqueue_all)
        self.hosts.tracker.one_machine = bool(self.settings.gateway_url)
        self.models = StatusWriter(self.client, Model, self.phase_changes.emit)
        self.services = StatusWriter(self.client, InferenceService, self.phase_changes.emit)
        self.routers = StatusWriter(self.client, ModelRouter)
        self.quotas = StatusWriter(self.client, GPUQuota)
        self.pool_statuses = StatusWriter(self.client, ModelPool)

    def model_of(self, service: InferenceService) -> Model | None:
        """Return the Model that a service refers to, if it exists."""
        return self.informers.models.get(Key(service.key.namespace, service.spec.model_ref))

    def enqueue_all(self) -> None:
        """Reconcile everything: hosts rarely come and go, and any object may be affected."""
        self.queues.models.add_all(model.key for model in self.informers.models.values())
        self.enqueue_services()
        self.queues.slices.add_all(endpoint_slice.key for endpoint_slice in self.informers.slices.values())
        self.enqueue_quotas()
        self.queues.pools.add_all(pool.key for pool in self.informers.pools.values())

    def enqueue_owners(self) -> None:
        """Reconcile every service and router, after a kind that they may use was installed or uninstalled."""
        self.enqueue_services()
        self.queues.routers.add_all(router.key for router in self.informers.routers.values())

    def enqueue_quotas(self) -> None:
        """Reconcile every GPUQuota, after a change that may affect every quota."""
        self.queues.quotas.add_all(quota.key for quota in self.informers.quotas.values())

    def enqueue_services(self) -> None:
        """Reconcile every service, after a change that may affect every service."""
        self.queues.services.add_all(service.key for service in self.informers.services.values())


@attrs.define(eq=False)
class PodContext(Context):
    """Context of a controller that serves in pods, with the state that outlives one reconcile.

    Attributes:
        workloads: Settings for pods.
        pods: Caches of pods and of the objects around them.
        owned: Writers of the objects of services, Models and routers.
        optional: Tracks which optional kinds are installed.
        records: One per service.
        percents: Progress that the fetch Jobs report, in percent.
        health: Health of the backends of each router as its pods report it, by the backend's name.
        pruning: Namespaces in which a Job that removes folders is being created.
        wanted: Services that front doors need now.
    """

    workloads: WorkloadSettings
    pods: PodInformers = attrs.field(factory=PodInformers, init=False)
    owned: OwnedKinds = attrs.field(init=False)
    optional: OptionalKinds = attrs.field(init=False)
    records: dict[Key, ServiceRecord] = attrs.field(factory=lambda: defaultdict(ServiceRecord), init=False)
    percents: dict[Key, int] = attrs.field(factory=dict, init=False)
    health: dict[Key, Mapping[str, BackendHealth]] = attrs.field(factory=dict, init=False)
    pruning: set[str] = attrs.field(factory=set, init=False)
    wanted: WantedServices = attrs.field(factory=WantedServices, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.owned = OwnedKinds(self.client, self.pods)
        self.optional = OptionalKinds(self.client, self.settings.namespace, self.enqueue_owners)

    def is_pruning(self, namespace: str) -> bool:
        """Whether folders of a namespace's claim are being removed."""
        job = self.owned.jobs.get(Key(namespace, PRUNE_JOB))
        return namespace in self.pruning or (job is not None and not finished_at(job))
