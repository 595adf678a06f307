"""What an operator may tune about the controller."""

import attrs


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
        workers: How many objects of one kind are worked on at the same time.
    """

    namespace: str | None = None
    host_accelerators: frozenset[str] = frozenset({"metal"})
    lease_namespace: str = "llmkube-system"
    cluster_domain: str = "cluster.local"
    gateway_url: str = ""
    workers: int = 4
