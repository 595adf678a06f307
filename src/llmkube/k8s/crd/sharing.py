"""The kinds ModelPool and GPUQuota: services that take turns on GPUs, and limits of the GPUs of namespaces."""

from collections.abc import Mapping
from typing import ClassVar, Final

import attrs

from llmkube.k8s.crd.inferenceservice import PRIORITIES, SERVICE_PHASES
from llmkube.k8s.crd.meta import DURATION, NAME_BYTES, Condition, LocalObjectReference
from llmkube.k8s.fields import REQUIRED, Column, Rule, SchemaFacts, Wired, field
from llmkube.k8s.resource import Key, Object, Resource, own_resource

POOL_PHASES: Final = ("Pending", "Ready", "Swapping", "Degraded")
STICKY: Final = "sticky"
PRIORITY: Final = "priority"

# -- ModelPool --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PoolMember(Wired):
    """One service that shares the GPUs of the pool."""

    inference_service_ref: LocalObjectReference = field("InferenceService in the same namespace.", REQUIRED)


@attrs.frozen(kw_only=True)
class ModelPoolSpec(Wired):
    """Desired state of a pool: its members, and their GPUs."""

    RULES: ClassVar = (
        Rule(
            "self.members.all(m, self.members.exists_one(n, n.inferenceServiceRef.name == m.inferenceServiceRef.name))",
            "a service can be a member only once",
            ".members",
        ),
        Rule(
            "!has(self.default) || self.default == '' || "
            "self.members.exists(m, m.inferenceServiceRef.name == self.default)",
            "default must be the name of a member",
            ".default",
        ),
    )
    members: tuple[PoolMember, ...] = field("Services that take turns.", REQUIRED, min_items=1, max_items=64)
    gpu: int = field("GPUs that the members may use at once; one that needs more runs alone. 0 means 1.", 1, minimum=0)
    node_selector: Mapping[str, str] = field(
        "Labels of the nodes with these GPUs; overrides the same labels of members.", dict
    )
    swap_policy: str = field(
        "sticky keeps a member until another is requested; priority lets members of higher priority displace others "
        "sooner.",
        STICKY,
        enum=(STICKY, PRIORITY),
    )
    default: str = field(
        "Member that is started first, and restarted while none is requested.", "", max_length=NAME_BYTES
    )
    swap_budget: str = field(
        "Longest wait for a member that is never idle; then it gets no new requests, and is stopped after those that "
        "it has.",
        "300s",
        pattern=DURATION,
        max_length=32,
    )


@attrs.frozen(kw_only=True)
class PoolMemberStatus(Wired):
    """Observed state of one member."""

    name: str = field("Name of the service.", REQUIRED)
    phase: str = field("Phase of the service.", "", enum=("", *SERVICE_PHASES))
    resident: bool | None = field("Whether the service has its GPUs.")


@attrs.frozen(kw_only=True)
class ModelPoolStatus(Wired):
    """Observed state of a pool."""

    phase: str = field("Current phase of the pool.", "", enum=POOL_PHASES)
    conditions: tuple[Condition, ...] = field("Conditions of the pool, one per type.", (), list_map_keys=("type",))
    resident_member: str = field("Members that have their GPUs, separated by commas; empty for none.", "")
    pending_member: str = field("Member that is waiting for its GPUs or is starting; empty for none.", "")
    members: tuple[PoolMemberStatus, ...] = field("Observed state of each member.", (), list_map_keys=("name",))
    observed_generation: int | None = field("Generation of the spec that this is about.", format="int64")


@attrs.frozen(kw_only=True)
class ModelPool(Object):
    """Services that take turns on the same GPUs."""

    RESOURCE: ClassVar[Resource] = own_resource("ModelPool", "mpool")
    COLUMNS: ClassVar = (
        Column("Policy", ".spec.swapPolicy"),
        Column("Resident", ".status.residentMember"),
        Column("Waiting", ".status.pendingMember"),
        Column("Phase", ".status.phase"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )
    spec: ModelPoolSpec
    status: ModelPoolStatus = field("Observed state of the pool.", ModelPoolStatus)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the members, in the order of the spec."""
        return tuple(one.inference_service_ref.name for one in self.spec.members)

    @property
    def member_keys(self) -> tuple[Key, ...]:
        """The keys of the members, in the order of the spec."""
        return tuple(Key(self.key.namespace, name) for name in self.members)


# -- GPUQuota ---------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LabelRequirement(Wired):
    """One condition on labels."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need values; Exists and DoesNotExist have none",
            ".values",
        ),
    )
    key: str = field("Key of the label.", REQUIRED, min_length=1, max_length=317)
    operator: str = field(
        "Relation of the label to the values.", REQUIRED, enum=("In", "NotIn", "Exists", "DoesNotExist")
    )
    values: tuple[str, ...] = field("Values of the label.", (), max_items=64, items=SchemaFacts(max_length=63))


@attrs.frozen(kw_only=True)
class LabelSelector(Wired):
    """Selection by labels; an empty one selects everything."""

    match_labels: Mapping[str, str] = field("Labels with these values.", dict)
    match_expressions: tuple[LabelRequirement, ...] = field("Further conditions; all must hold.", (), max_items=64)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            _holds(one, labels) for one in self.match_expressions
        )


def _holds(one: LabelRequirement, labels: Mapping[str, str]) -> bool:
    if one.operator in {"Exists", "DoesNotExist"}:
        return (one.key in labels) is (one.operator == "Exists")
    return (labels.get(one.key) in one.values) is (one.operator == "In")


@attrs.frozen(kw_only=True)
class GPUQuotaSpec(Wired):
    """Limits of the GPUs that services in pods use together."""

    RULES: ClassVar = (
        Rule(
            "has(self.selector) != (has(self.namespaceRef) && self.namespaceRef != '')",
            "exactly one of selector and namespaceRef must be set",
        ),
        Rule(
            "!has(self.costBudgetRef) || self.costBudgetRef == ''",
            "there are no cost budgets of GPUs: limit requests by spec.policy.budgets of a ModelRouter",
            ".costBudgetRef",
        ),
    )
    gpu_count: int = field("Maximum number of GPUs; 0 allows none.", REQUIRED, minimum=0)
    vram_bytes: int = field(
        "Maximum bytes of their memory, as declared by Models and services; 0 means no limit.",
        0,
        minimum=0,
        format="int64",
    )
    min_priority: str | None = field("Lowest spec.priority of services that may use GPUs.", enum=PRIORITIES)
    selector: LabelSelector | None = field("Labels of the namespaces that share the quota.")
    namespace_ref: str = field("Name of the only namespace of the quota.", "", max_length=63)
    cost_budget_ref: str = field("Reserved; refused.", "", max_length=NAME_BYTES)


@attrs.frozen(kw_only=True)
class GPUQuotaStatus(Wired):
    """Observed usage of a quota."""

    used_gpu_count: int | None = field("GPUs of the services that may start or run.", name="usedGPUCount")
    used_vram_bytes: int | None = field("Declared bytes of their memory.", format="int64", name="usedVRAMBytes")
    admission_denials: int | None = field("Number of times that a service began to wait.", format="int64")
    last_denial: str | None = field("When a service last began to wait.", format="date-time")
    waiting: tuple[str, ...] = field("Services that wait, in the order in which they start: NAMESPACE/NAME.", ())
    conditions: tuple[Condition, ...] = field("Conditions of the quota, one per type.", (), list_map_keys=("type",))


@attrs.frozen(kw_only=True)
class GPUQuota(Object):
    """A limit of the GPUs of one or several namespaces."""

    RESOURCE: ClassVar[Resource] = own_resource("GPUQuota", "gq")
    COLUMNS: ClassVar = (
        Column("GPU Count", ".spec.gpuCount", "integer"),
        Column("Used GPUs", ".status.usedGPUCount", "integer"),
        Column("Enforced", '.status.conditions[?(@.type=="Enforced")].status'),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )
    spec: GPUQuotaSpec
    status: GPUQuotaStatus = field("Observed usage of the quota.", GPUQuotaStatus)
