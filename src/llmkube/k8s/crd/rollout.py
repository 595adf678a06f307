"""How a service's pods come, go and are watched over: model cache, roll-outs, disruption, objectives."""

from typing import ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import DECIMAL, NAME_BYTES
from llmkube.k8s.fields import REQUIRED, Rule, Wired, field

CACHE_PERSISTENCE: Final = ("Cached", "Ephemeral")
SLO_INDICATORS: Final = ("availability", "latency")


@attrs.frozen(kw_only=True)
class ModelCache(Wired):
    """Where a service's pods keep the weights."""

    RULES: ClassVar = (
        Rule(
            "!(has(self.persistence) && self.persistence == 'Ephemeral' && has(self.claimName))",
            "claimName names a volume to keep weights on, persistence Ephemeral keeps none: choose one",
        ),
    )
    persistence: str | None = field(
        "Cached keeps weights on a volume of the namespace, Ephemeral fetches them for each pod; unset means Cached.",
        enum=CACHE_PERSISTENCE,
    )
    claim_name: str | None = field(
        "PersistentVolumeClaim to use instead of the namespace's own.", min_length=1, max_length=NAME_BYTES
    )


@attrs.frozen(kw_only=True)
class Fabric(Wired):
    """How one member of a group over several nodes reaches the others."""

    address: str | None = field("Address of the member in the fabric.", min_length=1, max_length=NAME_BYTES)
    socket_interface: str | None = field("Network interface for the first contact.", min_length=1)
    ib_hca: str | None = field("RDMA devices, as NCCL names them.", min_length=1, name="ibHCA")


@attrs.frozen(kw_only=True)
class MemberCache(Wired):
    """Where one member of a group keeps the weights."""

    claim_name: str | None = field("PersistentVolumeClaim of the member.", min_length=1, max_length=NAME_BYTES)


@attrs.frozen(kw_only=True)
class Member(Wired):
    """One node of a group over several nodes."""

    node: str = field("Name of the node.", REQUIRED, min_length=1, max_length=NAME_BYTES)
    fabric: Fabric | None = field("How it reaches the others.")
    model_cache: MemberCache | None = field("Where it keeps the weights.")


@attrs.frozen(kw_only=True)
class MultiNode(Wired):
    """One model over several nodes, as the Go implementation writes it: the first node answers, the others compute."""

    members: tuple[Member, ...] = field("The nodes, the first of which answers.", REQUIRED, min_items=1, max_items=64)
    rdma_resource: str | None = field("Extended resource that each member requests.", min_length=1)
    ib_gid_index: int | None = field("Index of the RoCE address, as NCCL counts.", minimum=0, name="ibGIDIndex")
    rendezvous_port: int | None = field("Port of the first contact.", minimum=1, maximum=65535)


@attrs.frozen(kw_only=True)
class HostReplicas(Wired):
    """Replicas on hosts beside those in pods: clients find both behind the one Service."""

    model_ref: str = field(
        "Name of the Model for hosts in the same namespace, such as the same weights for metal.",
        REQUIRED,
        min_length=1,
        max_length=NAME_BYTES,
    )
    replicas: int = field("How many hosts serve it, besides spec.replicas pods.", 1, minimum=0, maximum=10)


@attrs.frozen(kw_only=True)
class RolloutPolicy(Wired):
    """When a change may replace running pods."""

    wait_for_idle: bool | None = field("Holds an edit back until no replica has a request.")
    idle_timeout_seconds: int = field("Longest wait for idle replicas, in seconds; 0 means 300.", 300, minimum=0)
    force: bool | None = field("Rolls at once, busy or not.")


@attrs.frozen(kw_only=True)
class Disruption(Wired):
    """When node autoscalers must leave the pods alone."""

    protect_startup: bool = field("Protects pods while they load, also where disruption is not given.", True)
    protect_always: bool | None = field("Protects pods all the time.")


@attrs.frozen(kw_only=True)
class SLO(Wired):
    """A service level objective, for Pyrra."""

    RULES: ClassVar = (
        Rule(
            "self.indicator != 'latency' || has(self.latencyThreshold)",
            "indicator latency needs a latencyThreshold",
            ".latencyThreshold",
        ),
    )
    objective: str = field(
        "Wanted percentage, as a decimal number from 50 to 99.999.",
        REQUIRED,
        pattern=DECIMAL,
        max_length=16,
        rules=(
            Rule(
                "!self.matches('^[0-9]+([.][0-9]+)?$') || (double(self) >= 50.0 && double(self) <= 99.999)",
                "must be from 50 to 99.999",
            ),
        ),
    )
    indicator: str = field("What is measured.", "availability", enum=SLO_INDICATORS)
    latency_threshold: str | None = field(
        "Seconds that an answer may take, as a decimal number: a bound of the engine's own histogram.",
        pattern=DECIMAL,
        max_length=16,
    )
    window: str = field("Rolling window.", "28d", pattern=r"^[0-9]+[mhdw]$")
    name: str | None = field("Name of the objective; unset means made up from the service's.", max_length=NAME_BYTES)
