"""What an operator may tune about the controller."""

import attrs

from llmkube.k8s.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.resource import Key


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
    """

    namespace: str | None = None
    host_accelerators: frozenset[str] = frozenset({"metal"})
    lease_namespace: str = "llmkube-system"
    cluster_domain: str = "cluster.local"
    gateway_url: str = ""
    identity: str = ""
    workers: int = 4

    @property
    def leader_lease(self) -> Key:
        """The Lease of the controller that acts; one for each choice of namespaces."""
        scope = f".{self.namespace}" if self.namespace else ""
        return Key(self.lease_namespace, f"{CONTROLLER_FIELD_MANAGER}{scope}")
