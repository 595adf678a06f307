"""What the reconcilers share, and those of Models, services and routers in pods besides.

What is kept of a service from one reconcile to the next is one record, dropped with the service. Only `deferred_since`
is a fact of its own. The rest is computed from objects of the caches, and computed again as soon as one of those is
another.

The queue for GPUs orders what people see; which pod gets the next GPU is the scheduler's decision, by the
PriorityClasses that there are. The chart's own are in the order of these priorities.
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
from llmkube.controller.status.job_result import ended_at
from llmkube.controller.status.pod_service_status import ServiceFacts
from llmkube.controller.status.router_status import BackendHealth
from llmkube.controller.writes.owned_kinds import OptionalKinds, OwnedKinds
from llmkube.controller.writes.status_writer import PhaseChanges, StatusWriter
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.resource import Key
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.plan import PlanError

V = TypeVar("V")


@attrs.frozen(eq=False)
class WorkloadPlan:
    """What follows from the specs and the Models alone.

    Attributes:
        facts: What the status will say of that, without anything that runs.
        weights: Where the weights are; None while pods cannot be made, and `facts` says why.
    """

    facts: ServiceFacts
    weights: Weights | None = None


@attrs.define(eq=False)
class Memo(Generic[V]):
    """One value, kept for as long as what it was made from is the same; callers share it and must not change it."""

    _entry: tuple[tuple[Any, ...], V] | None = attrs.field(default=None, init=False)

    def get(self, inputs: tuple[Any, ...], make: Callable[[], V]) -> V:
        """Return the value that is kept, if it was made from equal things; else make it. An error is not kept."""
        if self._entry is None or self._entry[0] != inputs:
            self._entry = (inputs, make())
        return self._entry[1]


@attrs.define(eq=False)
class ServiceRecord:
    """What is kept of one service.

    Attributes:
        container: From the specs and the header of the weights; or why there can be none.
        workload: From the service's spec, the container and the Models.
        manifests: From the workload and the number of pods.
        deferred_since: When the replacement of its pods began to wait for requests to end, in seconds of Trio's clock;
            None when nothing waits. A controller that is started again begins that wait again.
        deferral_reason: What that replacement waits for, as a sentence.
        predecessors_labelled: Whether it was looked once if another controller has made pods of it.
    """

    container: Memo[ContainerPlan | PlanError] = attrs.field(factory=Memo, init=False)
    workload: Memo[WorkloadPlan] = attrs.field(factory=Memo, init=False)
    manifests: Memo[Manifests] = attrs.field(factory=Memo, init=False)
    deferred_since: float | None = attrs.field(default=None, init=False)
    deferral_reason: str = attrs.field(default="", init=False)
    predecessors_labelled: bool = attrs.field(default=False, init=False)

    def clear_deferral(self) -> None:
        """Note that no replacement of pods waits any more."""
        self.deferred_since, self.deferral_reason = None, ""


@attrs.frozen
class QueuedService:
    """A service whose pods find no GPU.

    Attributes:
        key: The service.
        weight: The weight of its priority; more is more important.
        since: When the service was created, as RFC 3339.
        wanted: What it waits for, such as `nvidia.com/gpu: 2`.
    """

    key: Key
    weight: int
    since: str
    wanted: str


@attrs.define(eq=False)
class GpuQueue:
    """Those that wait, each with its position, from 1; the order is worked out once per change, not once per look."""

    _queue: dict[Key, tuple[QueuedService, int]] = attrs.field(factory=dict, init=False)

    def put(self, key: Key, waiting: QueuedService | None) -> frozenset[Key]:
        """Say that a service waits, or does not; return those whose position is another one now, itself left out."""
        before = self._queue
        if (before[key][0] if key in before else None) == waiting:
            return frozenset()
        others = [one for one, _ in before.values() if one.key != key]
        self._queue = number_waiting(others if waiting is None else [*others, waiting])
        return frozenset(one.key for one in others if before[one.key] != self._queue[one.key])

    def position(self, key: Key) -> int:
        """The position of a service, from 1; 0 for one that does not wait."""
        return self._queue[key][1] if key in self._queue else 0

    def __len__(self) -> int:
        return len(self._queue)


def number_waiting(waiting: Iterable[QueuedService]) -> dict[Key, tuple[QueuedService, int]]:
    """Number those that wait: the most important first, of equals the oldest, of the same second by name."""
    ordered = sorted(waiting, key=lambda one: (-one.weight, one.since, one.key))
    return {one.key: (one, position) for position, one in enumerate(ordered, 1)}


@attrs.define(eq=False)
class Context:
    """The API server, what is known of it, and how statuses are written.

    Attributes:
        settings: What to look after.
        utcnow: The wall clock, for what is written and for ages that the cluster's clock has given.
        rng: Spreads pauses.
        phase_changes: Told of every new phase.
        informers: What users write, and what hosts say.
        queues: What is reconciled again.
        hosts: Which hosts are alive.
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

    def __attrs_post_init__(self) -> None:
        self.queues = Queues(self.rng)
        self.hosts = HostMonitor(self.client, self.settings.lease_namespace, self.enqueue_all)
        self.models = StatusWriter(self.client, Model, self.phase_changes.emit)
        self.services = StatusWriter(self.client, InferenceService, self.phase_changes.emit)
        self.routers = StatusWriter(self.client, ModelRouter)

    def enqueue_all(self) -> None:
        """Reconcile everything: hosts come and go rarely, and any object may be concerned."""
        self.queues.models.add_all(model.key for model in self.informers.models.values())
        self.enqueue_services()
        self.queues.slices.add_all(endpoint_slice.key for endpoint_slice in self.informers.slices.values())

    def enqueue_owners(self) -> None:
        """Reconcile every service and router: a kind that they may use has been installed or uninstalled."""
        self.enqueue_services()
        self.queues.routers.add_all(router.key for router in self.informers.routers.values())

    def enqueue_services(self) -> None:
        """Reconcile every service: what all of them go by has changed."""
        self.queues.services.add_all(service.key for service in self.informers.services.values())


@attrs.define(eq=False)
class PodContext(Context):
    """The same where pods serve, with the little that a reconcile leaves for the next one.

    Attributes:
        workloads: How to serve in pods.
        pods: What runs.
        owned: Writes what the controller makes for services, Models and routers.
        optional: Which of those kinds there are.
        records: One per service.
        percents: How far Jobs say that they are.
        health: What the pods of each router say of its backends, by the backend's name.
        pruning: Namespaces for which a Job is being made that removes folders.
    """

    workloads: WorkloadSettings
    pods: PodInformers = attrs.field(factory=PodInformers, init=False)
    owned: OwnedKinds = attrs.field(init=False)
    optional: OptionalKinds = attrs.field(init=False)
    records: dict[Key, ServiceRecord] = attrs.field(factory=lambda: defaultdict(ServiceRecord), init=False)
    percents: dict[Key, int] = attrs.field(factory=dict, init=False)
    health: dict[Key, Mapping[str, BackendHealth]] = attrs.field(factory=dict, init=False)
    pruning: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.owned = OwnedKinds(self.client, self.pods)
        self.optional = OptionalKinds(self.client, self.settings.namespace, self.enqueue_owners)

    def is_pruning(self, namespace: str) -> bool:
        """Whether folders of a namespace's claim are being removed."""
        job = self.owned.jobs.get(Key(namespace, PRUNE_JOB))
        return namespace in self.pruning or (job is not None and not ended_at(job))
