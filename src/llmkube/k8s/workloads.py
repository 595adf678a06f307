"""The built-in kinds that run things, typed where the controller reads them and faithful where it does not."""

from typing import ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import Condition, ObjectMeta
from llmkube.k8s.fields import REQUIRED, WireForm, field, received
from llmkube.k8s.resource import Keyed, Resource

# -- core/v1: pods and claims -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ContainerWaiting:
    """Why a container does not run yet: `ImagePullBackOff`, `CrashLoopBackOff`, `ContainerCreating`."""

    reason: str = ""
    message: str = ""
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class ContainerRunning:
    """A container runs."""

    started_at: str | None = None
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class ContainerTerminated:
    """How a container ended; the message is what it wrote to its termination log."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class ContainerState:
    """One of the three; none of them means waiting, too."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class ContainerStatus:
    """What the kubelet says of one container."""

    name: str = field("", REQUIRED)
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class PodCondition:
    """One statement about a pod; `PodScheduled` says whether it has a node."""

    type: str = field("", REQUIRED)
    status: str = field("", REQUIRED)
    reason: str = ""
    message: str = ""
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class PodStatus:
    """Where a pod stands."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field("", "", name="podIP")
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class ContainerPort:
    """One port of a container, by its name."""

    name: str = ""
    container_port: int = field("", REQUIRED)
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class Container:
    """One container of a pod."""

    name: str = field("", REQUIRED)
    ports: tuple[ContainerPort, ...] = ()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class PodSpec:
    """What a pod is made of."""

    containers: tuple[Container, ...] = ()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class Pod(Keyed):
    """Containers on one node."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "Pod", "pods", short_names=("po",), subresources=("status",), categories=("all",)
    )
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class ClaimStatus:
    """Whether a claim has its volume: `Pending`, `Bound` or `Lost`."""

    phase: str = ""
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class PersistentVolumeClaim(Keyed):
    """A wish for storage, and its volume once it is bound."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), subresources=("status",)
    )
    metadata: ObjectMeta
    status: ClaimStatus = ClaimStatus()
    wire: WireForm = received()


# -- apps/v1 and batch/v1 ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DeploymentSpec:
    """How many pods a Deployment keeps; everything else about them is only written, never read."""

    replicas: int = 1
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class DeploymentStatus:
    """How many pods there are; counts of an older generation say nothing about the newest spec."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class Deployment(Keyed):
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
    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class JobStatus:
    """How a Job goes; the condition `Complete` or `Failed` is its end."""

    conditions: tuple[Condition, ...] = ()
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class Job(Keyed):
    """Pods that run to their end."""

    RESOURCE: ClassVar[Resource] = Resource("batch", "v1", "Job", "jobs", subresources=("status",), categories=("all",))
    metadata: ObjectMeta
    status: JobStatus = JobStatus()
    wire: WireForm = received()


# -- autoscaling/v2, policy/v1, networking.k8s.io/v1 ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class HorizontalPodAutoscaler(Keyed):
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
    metadata: ObjectMeta
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class PodDisruptionBudget(Keyed):
    """How many pods may be taken away on purpose at a time."""

    RESOURCE: ClassVar[Resource] = Resource(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        short_names=("pdb",),
        subresources=("status",),
    )
    metadata: ObjectMeta
    wire: WireForm = received()


@attrs.frozen(kw_only=True)
class NetworkPolicy(Keyed):
    """Whom pods may talk to; a cluster's network has to enforce it."""

    RESOURCE: ClassVar[Resource] = Resource(
        "networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short_names=("netpol",)
    )
    metadata: ObjectMeta
    wire: WireForm = received()


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
