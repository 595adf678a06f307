"""Kinds that other projects bring to a cluster: typed where the controller reads them, faithful where it does not."""

from typing import ClassVar

import attrs

from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.fields import Wired
from llmkube.k8s.resource import Object, Resource
from llmkube.k8s.workloads import Deployment, DeploymentSpec

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
