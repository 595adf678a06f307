"""Settings of the controller."""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.http.egress import RULES_VARIABLE, Egress
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.runtimes.container.images import Images


class Allowance(enum.StrEnum):
    """Pod settings that the operator may allow users, by their names in the chart's values (`workloads.allow`).

    `controller/render/pod_policy.py` describes each.
    """

    FOREIGN_VOLUMES = "foreignVolumes"
    TOKENS = "tokens"
    ROOT = "root"
    PRIVILEGED = "privileged"
    HOST_NAMESPACES = "hostNamespaces"
    CONTROL_PLANE = "controlPlane"


PRIORITY_CLASS_PREFIXES: Final = ("llmkube-service-", "llmkube-")
"""Prefixes of the chart's PriorityClasses; classes of the second (priorityClasses.outrankPods) outrank other pods."""


@attrs.frozen
class WorkloadSettings:
    """Settings for Models and services that run in pods.

    Attributes:
        image: LLMKube's own image, which runs `llmkube fetch` among others.
        image_pull_secrets: Names of Secrets for pulling that image; each has to exist in every namespace with Models.
        cache_per_service: Each service owns a claim for weights, instead of one claim for each namespace.
        cache_size: Size of a claim for weights, as a quantity.
        cache_storage_class: Its StorageClass; empty for the cluster's default.
        cache_access_mode: `ReadWriteOnce` keeps a namespace's pods on one node; `ReadWriteMany` needs such a volume.
        fs_group: Group that may write to the claim; None where the cluster assigns one itself (OpenShift).
        host_paths: Folders of the nodes that Models may name by path and services may mount; none by default, because
            users could otherwise read any file of a node.
        allow: Further pod settings that users may choose; none by default.
        priority_classes: PriorityClasses that services may name, as names or patterns (`gpu-*`), besides those of their
            priority.
        hub_endpoint: URL of Hugging Face or a mirror; empty for the default.
        private_sources: Networks (CIDR) that Models may be fetched from although they are not public.
        ca_config_map: A ConfigMap in the object's namespace whose key `ca.crt` has CA certificates to trust besides
            the image's, when fetching and in routers; empty for none.
        proxies: Variables with the proxies of pods that fetch and of routers; without credentials.
        traces: OpenTelemetry's variables of routers; without credentials.
        priority_class_prefix: Prefix of a service's priority in the name of its pods' PriorityClass; empty sets no
            class, and None uses the one of `PRIORITY_CLASS_PREFIXES` that the cluster has.
        shared_gpu_selector: Labels of the nodes with shared GPUs, for services that request a shared one.
        look_seconds: Interval for revalidating the source of a Model with `refreshPolicy: OnChange`.
        prune_cache: Remove folders of a namespace's claim that no Model names any more.
        images: Settings of the engines' images.
        drain_container: Add a container to each engine's pod that delays its termination until it has no requests.
        gpu_resources: Resource names of GPUs by vendor and compute stack, where they differ from the defaults.
        pod_monitors: Create PodMonitors, if the Prometheus operator is installed.
        monitor_labels: Labels of monitors and objectives, by which a Prometheus selects them; ours take precedence.
    """

    image: str
    image_pull_secrets: tuple[str, ...] = ()
    cache_per_service: bool = False
    cache_size: str = "100Gi"
    cache_storage_class: str = ""
    cache_access_mode: str = "ReadWriteOnce"
    fs_group: int | None = 65532
    host_paths: tuple[str, ...] = ()
    allow: frozenset[Allowance] = frozenset()
    priority_classes: tuple[str, ...] = ()
    hub_endpoint: str = ""
    private_sources: tuple[str, ...] = ()
    ca_config_map: str = ""
    proxies: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    traces: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    priority_class_prefix: str | None = ""
    shared_gpu_selector: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    look_seconds: float = 3600.0
    prune_cache: bool = False
    images: Images = Images()
    drain_container: bool = True
    gpu_resources: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    pod_monitors: bool = True
    monitor_labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def egress(self) -> Egress:
        """The proxies of these pods."""
        return Egress.of(filter(None, self.proxies.get(RULES_VARIABLE, "").split(",")), None, self.proxies)


@attrs.frozen
class ControllerSettings:
    """Settings of one controller, all defaults applied.

    Attributes:
        namespace: The namespace to watch, or None for all.
        host_accelerators: Values of `spec.hardware.accelerator` that hosts serve; pods serve all others, if they can.
        lease_namespace: Namespace of the hosts' Leases.
        cluster_domain: DNS domain of the cluster, for `status.endpoint`.
        gateway_url: URL of all services on one machine (`http://127.0.0.1:8080`); empty in a cluster. Without a cluster
            nothing resolves a Service's name, and an endpoint that no client can use is worse than none.
        identity: Identity in the Lease and in Events, where several controllers may run and one of them acts. Empty for
            the only controller of a machine, which needs no Lease.
        workers: Number of objects of one kind that are reconciled concurrently.
        workloads: Settings for pods; None where there are no nodes (`llmkube up`).
    """

    namespace: str | None = None
    host_accelerators: frozenset[str] = frozenset({"metal"})
    lease_namespace: str = "llmkube-system"
    cluster_domain: str = "cluster.local"
    gateway_url: str = ""
    identity: str = ""
    workers: int = 4
    workloads: WorkloadSettings | None = None

    def is_for_hosts(self, model: Model) -> bool:
        """Whether hosts serve a Model, and not pods."""
        return model.spec.hardware.accelerator in self.host_accelerators

    @property
    def leader_lease(self) -> Key:
        """The Lease of the acting controller; each scope (all namespaces, or one of them) has its own."""
        scope = f".{self.namespace}" if self.namespace else ""
        return Key(self.lease_namespace, f"{CONTROLLER_FIELD_MANAGER}{scope}")
