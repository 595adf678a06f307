"""What an operator may tune about the controller."""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.runtimes.container.images import Images


class Allowance(enum.StrEnum):
    """What the operator may let editors ask of pods, by its name in the chart's values (`workloads.allow`).

    `controller/render/pod_policy.py` says what each stands for.
    """

    FOREIGN_VOLUMES = "foreignVolumes"
    TOKENS = "tokens"
    ROOT = "root"
    PRIVILEGED = "privileged"
    HOST_NAMESPACES = "hostNamespaces"
    CONTROL_PLANE = "controlPlane"


PRIORITY_CLASS_PREFIXES: Final = ("llmkube-service-", "llmkube-")
"""Prefixes of the chart's PriorityClasses; the second with priorityClasses.outrankPods: these outrank other pods."""


@attrs.frozen
class WorkloadSettings:
    """How Models and services that no host serves become pods of the cluster.

    Attributes:
        image: Our own image: it fetches weights, by `llmkube fetch`.
        image_pull_secrets: Names of Secrets for pulling it; each has to exist in every namespace with Models.
        cache_per_service: Each service has a claim for weights, which goes with it, and not each namespace one.
        cache_size: Size of a claim for weights, as a quantity.
        cache_storage_class: Its StorageClass; empty means the cluster's default.
        cache_access_mode: `ReadWriteOnce` keeps a namespace's pods on one node; `ReadWriteMany` needs such a volume.
        fs_group: Group that may write to the claim; None where the cluster assigns one itself (OpenShift).
        host_paths: Folders of the nodes that Models may name by path and services may mount; none by default, because
            an editor could otherwise read any file of a node.
        allow: What else editors may ask of pods; nothing by default.
        priority_classes: PriorityClasses that services may name, as names or patterns (`gpu-*`), besides those of their
            priority.
        hub_endpoint: Address of Hugging Face, or of a mirror of it; empty for the usual one.
        private_sources: Networks (CIDR) that Models may be fetched from although they are not public.
        ca_config_map: A ConfigMap in the Model's namespace whose key `ca.crt` holds all certificates that fetching
            shall trust; empty for the image's own.
        priority_class_prefix: What stands before a service's priority in the name of its pods' PriorityClass; empty
            leaves the class out, and None looks which of `PRIORITY_CLASS_PREFIXES` the cluster has.
        shared_gpu_selector: Labels of the nodes whose GPUs are shared; for services that ask for a shared one.
        look_seconds: Between two looks whether the source of a Model with `refreshPolicy: OnChange` has changed.
        prune_cache: Remove folders of a namespace's claim that no Model names any more.
        images: What the operator says about the engines' images.
        drain_container: Have a container of our image beside each engine, which holds a pod that has to end back until
            it has no request.
        gpu_resources: What this cluster calls GPUs, by vendor and compute stack, where those have not the usual names.
        pod_monitors: Tell a Prometheus operator about the pods, where there is one.
        monitor_labels: Labels of their objects, by which a Prometheus selects that; ours win.
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
    priority_class_prefix: str | None = ""
    shared_gpu_selector: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    look_seconds: float = 3600.0
    prune_cache: bool = False
    images: Images = Images()
    drain_container: bool = True
    gpu_resources: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    pod_monitors: bool = True
    monitor_labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class ControllerSettings:
    """One controller, fully decided.

    Attributes:
        namespace: The namespace to look after, or None for all of them.
        host_accelerators: The `spec.hardware.accelerator` values that are served by hosts, not by pods; whatever asks
            for another one is left alone.
        lease_namespace: Where hosts keep their Leases.
        cluster_domain: The DNS domain of the cluster, for `status.endpoint`.
        gateway_url: Where services are reached on one machine (`http://127.0.0.1:8080`), or empty in a cluster. Without
            a cluster nothing resolves a Service's name, and an endpoint that no client can use is worse than none.
        identity: Who we are, when several controllers may run and one of them shall act; it is shown in the Lease and
            in Events. Empty for the only controller of a machine: no Lease is needed then.
        workers: How many objects of one kind are worked on at the same time.
        workloads: How to serve in the cluster what no host serves; None where there are no nodes (`llmkube up`).
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
        """The Lease of the controller that acts; one for each choice of namespaces."""
        scope = f".{self.namespace}" if self.namespace else ""
        return Key(self.lease_namespace, f"{CONTROLLER_FIELD_MANAGER}{scope}")
