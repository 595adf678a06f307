"""What the reconcilers of Models and services in pods share."""

import datetime
from collections import defaultdict
from collections.abc import Callable, Mapping

import attrs

from llmkube.controller.informers import Informers, PodInformers
from llmkube.controller.optional_kinds import OptionalKinds
from llmkube.controller.reconciler import Queues
from llmkube.controller.render.jobs import PRUNE_JOB
from llmkube.controller.service_record import ServiceRecord
from llmkube.controller.settings import ControllerSettings, WorkloadSettings
from llmkube.controller.status.job_result import ended_at
from llmkube.controller.status.router_status import BackendHealth
from llmkube.controller.writes.owned_kinds import OwnedKinds, RouterKinds
from llmkube.controller.writes.status_writer import PhaseChanges
from llmkube.k8s.client import Client
from llmkube.k8s.resource import Key


@attrs.frozen(eq=False)
class PodContext:
    """The API server, what is known of it, and the little that a reconcile leaves for the next one.

    Attributes:
        client: The API server.
        settings: What to look after.
        workloads: How to serve it in pods.
        utcnow: The wall clock, for what is written and for ages that the cluster's clock has given.
        informers: What users write.
        pods: What runs.
        owned: Writes what the controller makes for services and Models.
        routers: Writes what it makes for routers.
        optional: Which of those kinds there are.
        queues: What is reconciled again.
        phase_changes: Called for every new phase.
        records: One per service.
        percents: How far Jobs say that they are.
        health: What the pods of each router say of its backends, by the backend's name.
        pruning: Namespaces for which a Job is being made that removes folders.
    """

    client: Client
    settings: ControllerSettings
    workloads: WorkloadSettings
    utcnow: Callable[[], datetime.datetime]
    informers: Informers
    pods: PodInformers
    owned: OwnedKinds
    routers: RouterKinds
    optional: OptionalKinds
    queues: Queues
    phase_changes: PhaseChanges
    records: dict[Key, ServiceRecord] = attrs.field(factory=lambda: defaultdict(ServiceRecord), init=False)
    percents: dict[Key, int] = attrs.field(factory=dict, init=False)
    health: dict[Key, Mapping[str, BackendHealth]] = attrs.field(factory=dict, init=False)
    pruning: set[str] = attrs.field(factory=set, init=False)

    def is_pruning(self, namespace: str) -> bool:
        """Whether folders of a namespace's claim are being removed."""
        job = self.owned.jobs.get(Key(namespace, PRUNE_JOB))
        return namespace in self.pruning or (job is not None and not ended_at(job))
