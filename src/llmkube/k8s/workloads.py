"""The kinds that run things, built in or brought by others, typed where the controller reads them."""

from typing import ClassVar, Final

import attrs

from llmkube.k8s.builtins import Phase
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.fields import REQUIRED, Wired, field
from llmkube.k8s.resource import Object, Resource

# -- core/v1: pods and claims -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ContainerWaiting(Wired):
    """Why a container does not run yet: `ImagePullBackOff`, `CrashLoopBackOff`, `ContainerCreating`."""

    reason: str = ""
    message: str = ""


@attrs.frozen(kw_only=True)
class ContainerRunning(Wired):
    """A container runs."""

    started_at: str | None = None


@attrs.frozen(kw_only=True)
class ContainerTerminated(Wired):
    """How a container ended; the message is what it wrote to its termination log."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


@attrs.frozen(kw_only=True)
class ContainerState(Wired):
    """One of the three; none of them means waiting, too."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


@attrs.frozen(kw_only=True)
class ContainerStatus(Wired):
    """What the kubelet says of one container."""

    name: str = field("", REQUIRED)
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


@attrs.frozen(kw_only=True)
class PodStatus(Wired):
    """Where a pod stands."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field("", "", name="podIP")
    conditions: tuple[Condition, ...] = ()  # `PodScheduled` says whether it has a node
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


@attrs.frozen(kw_only=True)
class ContainerPort(Wired):
    """One port of a container, by its name."""

    name: str = ""
    container_port: int = field("", REQUIRED)


@attrs.frozen(kw_only=True)
class Container(Wired):
    """One container of a pod."""

    name: str = field("", REQUIRED)
    ports: tuple[ContainerPort, ...] = ()


@attrs.frozen(kw_only=True)
class PodSpec(Wired):
    """What a pod is made of."""

    containers: tuple[Container, ...] = ()


@attrs.frozen(kw_only=True)
class Pod(Object):
    """Containers on one node."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "Pod", "pods", short_names=("po",), subresources=("status",), categories=("all",)
    )
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_running(self) -> bool:
        """Whether it runs, and is not on its way out."""
        return self.status.phase == "Running" and not self.metadata.deletion_timestamp


@attrs.frozen(kw_only=True)
class PersistentVolumeClaim(Object):
    """A wish for storage, and its volume once it is bound."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), subresources=("status",)
    )
    status: Phase = Phase()  # whether it has its volume: `Pending`, `Bound` or `Lost`


# -- apps/v1 and batch/v1 ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DeploymentSpec(Wired):
    """How many pods a Deployment keeps; everything else about them is only written, never read."""

    replicas: int = 1


@attrs.frozen(kw_only=True)
class DeploymentStatus(Wired):
    """How many pods there are; counts of an older generation say nothing about the newest spec."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


@attrs.frozen(kw_only=True)
class Deployment(Object):
    """Pods from one template, replaced step by step when it changes."""

    RESOURCE: ClassVar[Resource] = Resource(
        "apps",
        "v1",
        "Deployment",
        "deployments",
        short_names=("deploy",),
        subresources=("status", "scale"),
        categories=("all",),
    )
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


@attrs.frozen(kw_only=True)
class JobStatus(Wired):
    """How a Job goes; the condition `Complete` or `Failed` is its end."""

    conditions: tuple[Condition, ...] = ()


@attrs.frozen(kw_only=True)
class Job(Object):
    """Pods that run to their end."""

    RESOURCE: ClassVar[Resource] = Resource("batch", "v1", "Job", "jobs", subresources=("status",), categories=("all",))
    status: JobStatus = JobStatus()


# -- autoscaling/v2, policy/v1, networking.k8s.io/v1 ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class HorizontalPodAutoscaler(Object):
    """Chooses a Deployment's replica count by metrics."""

    RESOURCE: ClassVar[Resource] = Resource(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        short_names=("hpa",),
        subresources=("status",),
        categories=("all",),
    )


@attrs.frozen(kw_only=True)
class PodDisruptionBudget(Object):
    """How many pods may be taken away on purpose at a time."""

    RESOURCE: ClassVar[Resource] = Resource(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        short_names=("pdb",),
        subresources=("status",),
    )


@attrs.frozen(kw_only=True)
class NetworkPolicy(Object):
    """Whom pods may talk to; a cluster's network has to enforce it."""

    RESOURCE: ClassVar[Resource] = Resource(
        "networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short_names=("netpol",)
    )


WORKLOADS: Final[tuple[Resource, ...]] = (
    Pod.RESOURCE,
    PersistentVolumeClaim.RESOURCE,
    Deployment.RESOURCE,
    Job.RESOURCE,
    HorizontalPodAutoscaler.RESOURCE,
    NetworkPolicy.RESOURCE,
    PodDisruptionBudget.RESOURCE,
)
"""Those that every cluster has."""


# -- monitoring.coreos.com/v1 -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PodMonitor(Object):
    """Which pods a Prometheus operator scrapes; the kind is there where that operator is installed."""

    RESOURCE: ClassVar[Resource] = Resource(
        "monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", short_names=("pmon",)
    )


# -- pyrra.dev/v1alpha1, gateway.networking.k8s.io/v1 ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ServiceLevelObjective(Object):
    """A service level objective for Pyrra; the kind is there where Pyrra is installed."""

    RESOURCE: ClassVar[Resource] = Resource(
        "pyrra.dev", "v1alpha1", "ServiceLevelObjective", "servicelevelobjectives", short_names=("slo",)
    )


@attrs.frozen(kw_only=True)
class RouteParent(Wired):
    """What one Gateway says of a route."""

    conditions: tuple[Condition, ...] = ()


@attrs.frozen(kw_only=True)
class HTTPRouteStatus(Wired):
    """What the Gateways say of a route."""

    parents: tuple[RouteParent, ...] = ()


@attrs.frozen(kw_only=True)
class HTTPRoute(Object):
    """Leads requests of a Gateway to a Service; the kind is there where the Gateway API is installed."""

    RESOURCE: ClassVar[Resource] = Resource(
        "gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", subresources=("status",)
    )
    status: HTTPRouteStatus = HTTPRouteStatus()


@attrs.frozen(kw_only=True)
class LeaderWorkerSetStatus(Wired):
    """How many groups there are, in the words of a Deployment's; `replicas` counts groups, not pods."""

    observed_generation: int = 2**62  # older versions do not say: their counts are believed
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """None: its own `Progressing` is False once all is well, which of a Deployment would mean a standstill."""
        return ()


@attrs.frozen(kw_only=True)
class LeaderWorkerSet(Object):
    """Groups of pods that serve one model together; the kind is there where it was installed (lws.sigs.k8s.io)."""

    RESOURCE: ClassVar[Resource] = Resource(
        "leaderworkerset.x-k8s.io",
        "v1",
        "LeaderWorkerSet",
        "leaderworkersets",
        short_names=("lws",),
        subresources=("status", "scale"),
    )
    spec: DeploymentSpec = DeploymentSpec()
    status: LeaderWorkerSetStatus = LeaderWorkerSetStatus()


Workload = Deployment | LeaderWorkerSet
"""What makes the pods of a service."""
