"""Workload kinds, built in or from other projects; only the fields that the controller reads are typed."""

from typing import ClassVar

import attrs

from llmkube.k8s.builtins import Phase
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.fields import REQUIRED, Wired, field
from llmkube.k8s.resource import Object, Resource

# -- core/v1: pods and claims -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ContainerWaiting(Wired):
    """The state of a waiting container: `ImagePullBackOff`, `CrashLoopBackOff`, `ContainerCreating`."""

    reason: str = ""
    message: str = ""


@attrs.frozen(kw_only=True)
class ContainerRunning(Wired):
    """The state of a running container."""

    started_at: str | None = None


@attrs.frozen(kw_only=True)
class ContainerTerminated(Wired):
    """The state of a terminated container; the message is from its termination log."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


@attrs.frozen(kw_only=True)
class ContainerState(Wired):
    """The state of a container; with none of the three set, it is waiting."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


@attrs.frozen(kw_only=True)
class ContainerStatus(Wired):
    """The status of one container, from the kubelet."""

    name: str = field("", REQUIRED)
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


@attrs.frozen(kw_only=True)
class PodStatus(Wired):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field("", "", name="podIP")
    conditions: tuple[Condition, ...] = ()  # `PodScheduled`: whether it has a node
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


@attrs.frozen(kw_only=True)
class ContainerPort(Wired):
    """One named port of a container."""

    name: str = ""
    container_port: int = field("", REQUIRED)


@attrs.frozen(kw_only=True)
class Container(Wired):
    """One container of a pod."""

    name: str = field("", REQUIRED)
    ports: tuple[ContainerPort, ...] = ()


@attrs.frozen(kw_only=True)
class SchedulingGate(Wired):
    """A gate that keeps a pod from being scheduled until its owner removes it."""

    name: str = ""


@attrs.frozen(kw_only=True)
class PodSpec(Wired):
    """The spec of a pod."""

    containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()


@attrs.frozen(kw_only=True)
class Pod(Object):
    """Containers on one node."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "Pod", "pods", subresources=("status",))
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_running(self) -> bool:
        """Whether the pod runs and is not being deleted."""
        return self.status.phase == "Running" and not self.metadata.deletion_timestamp

    @property
    def is_ready(self) -> bool:
        """Whether the pod is an endpoint of its Services."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)


@attrs.frozen(kw_only=True)
class PersistentVolumeClaim(Object):
    """A request for storage, bound to a volume."""

    RESOURCE: ClassVar[Resource] = Resource(
        "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", subresources=("status",)
    )
    status: Phase = Phase()  # `Pending`, `Bound` or `Lost`


# -- apps/v1 and batch/v1 ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DeploymentSpec(Wired):
    """The replica count of a Deployment; the other fields are only written, never read."""

    replicas: int = 1


@attrs.frozen(kw_only=True)
class DeploymentStatus(Wired):
    """The pod counts of a Deployment; those of an older generation are not about the newest spec."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


@attrs.frozen(kw_only=True)
class Deployment(Object):
    """Pods from one template, replaced by a rollout when it changes."""

    RESOURCE: ClassVar[Resource] = Resource("apps", "v1", "Deployment", "deployments", subresources=("status",))
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


@attrs.frozen(kw_only=True)
class JobStatus(Wired):
    """The status of a Job; it has finished with the condition `Complete` or `Failed`."""

    conditions: tuple[Condition, ...] = ()


@attrs.frozen(kw_only=True)
class Job(Object):
    """Pods that run to completion."""

    RESOURCE: ClassVar[Resource] = Resource("batch", "v1", "Job", "jobs", subresources=("status",))
    status: JobStatus = JobStatus()


# -- autoscaling/v2, policy/v1, networking.k8s.io/v1 ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class HorizontalPodAutoscaler(Object):
    """An autoscaler that sets a Deployment's replica count by metrics."""

    RESOURCE: ClassVar[Resource] = Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")


@attrs.frozen(kw_only=True)
class PodDisruptionBudget(Object):
    """A limit on the pods that voluntary disruptions may remove at a time."""

    RESOURCE: ClassVar[Resource] = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


@attrs.frozen(kw_only=True)
class NetworkPolicy(Object):
    """Allowed connections of pods; enforced by the cluster's network plugin."""

    RESOURCE: ClassVar[Resource] = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")


# -- monitoring.coreos.com/v1 -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PodMonitor(Object):
    """The pods that a Prometheus operator scrapes; exists only where that operator is installed."""

    RESOURCE: ClassVar[Resource] = Resource("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")


# -- pyrra.dev/v1alpha1, gateway.networking.k8s.io/v1 ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ServiceLevelObjective(Object):
    """A service level objective for Pyrra; exists only where Pyrra is installed."""

    RESOURCE: ClassVar[Resource] = Resource("pyrra.dev", "v1alpha1", "ServiceLevelObjective", "servicelevelobjectives")


@attrs.frozen(kw_only=True)
class RouteParent(Wired):
    """The status of a route at one Gateway."""

    conditions: tuple[Condition, ...] = ()


@attrs.frozen(kw_only=True)
class HTTPRouteStatus(Wired):
    """The status of a route at its Gateways."""

    parents: tuple[RouteParent, ...] = ()


@attrs.frozen(kw_only=True)
class HTTPRoute(Object):
    """A route from a Gateway to a Service; exists only where the Gateway API is installed."""

    RESOURCE: ClassVar[Resource] = Resource(
        "gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", subresources=("status",)
    )
    status: HTTPRouteStatus = HTTPRouteStatus()


@attrs.frozen(kw_only=True)
class LeaderWorkerSetStatus(Wired):
    """The group counts, with the fields of a Deployment's status; `replicas` counts groups, not pods."""

    observed_generation: int = 2**62  # absent in older versions, whose counts are always used
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Empty: its `Progressing` is False once it is complete; for a Deployment that would mean a stalled rollout."""
        return ()


@attrs.frozen(kw_only=True)
class LeaderWorkerSet(Object):
    """Groups of pods that serve one model together; exists only where LWS is installed (lws.sigs.k8s.io)."""

    RESOURCE: ClassVar[Resource] = Resource(
        "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", subresources=("status",)
    )
    spec: DeploymentSpec = DeploymentSpec()
    status: LeaderWorkerSetStatus = LeaderWorkerSetStatus()


Workload = Deployment | LeaderWorkerSet
"""The object that creates the pods of a service."""
