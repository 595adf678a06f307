"""Where a model runs, what it may take, and how its pods come and go: hardware, resources, replicas, roll-outs."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import DECIMAL, NAME_BYTES, NAMED, POSITIVE, QUANTITY
from llmkube.k8s.fields import REQUIRED, Rule, Wired, field

ACCELERATORS: Final = ("cpu", "metal", "cuda", "rocm", "intel", "vulkan")
GPU_VENDORS: Final = ("nvidia", "amd", "intel")
SPLIT_STRATEGIES: Final = ("layer", "tensor", "row", "pipeline", "none")
GPU_SHARING_MODES: Final = ("exclusive", "shared", "partitioned")
SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")

_EXTENDED_RESOURCE: Final = r"^[a-z0-9.\-]+/[a-z0-9._\-]+$"
_QUANTITY_CHARACTERS: Final = 64  # more than any amount needs; a rule's cost is reckoned with the longest text

# -- of a Model -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Sharding(Wired):
    """Split one model over several GPUs."""

    strategy: str = field("How the model is cut up.", "layer", enum=SPLIT_STRATEGIES)
    layer_split: tuple[str, ...] = field('Layer range per GPU, such as "0-24"; unset means equal shares.', ())


@attrs.frozen(kw_only=True)
class ResourceClaim(Wired):
    """A device that the cluster hands out by a claim (dynamic resource allocation)."""

    RULES: ClassVar = (
        Rule(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "must have either resourceClaimName or resourceClaimTemplateName",
        ),
    )
    name: str = field("Name of the claim within the pod.", REQUIRED, min_length=1, max_length=63)
    resource_claim_name: str | None = field("ResourceClaim that all replicas share.", **NAMED)
    resource_claim_template_name: str | None = field(
        "ResourceClaimTemplate that each replica gets a claim of its own from.", **NAMED
    )


@attrs.frozen(kw_only=True)
class GPU(Wired):
    """The GPUs that a model wants."""

    RULES: ClassVar = (
        Rule(
            "!has(self.resourceName) || !has(self.resourceClaims) || self.resourceClaims.size() == 0",
            "resourceName and resourceClaims exclude each other",
        ),
    )
    enabled: bool | None = field("Marks the model as made for a GPU; count decides how many it gets.")
    count: int | None = field(
        "GPUs per replica; above 0 it wins over the service's resources.gpu.", minimum=0, maximum=8
    )
    layers: int | None = field("Layers to offload to the GPU; -1 means all of them.", minimum=-1)
    memory: str | None = field("Memory that one GPU must have.", pattern=QUANTITY)
    vendor: str = field("Maker of the GPU.", "nvidia", enum=GPU_VENDORS)
    runtime: str | None = field("Compute stack for AMD GPUs.", enum=("vulkan", "rocm"))
    sharding: Sharding | None = field("How several GPUs share the model.")
    resource_name: str | None = field(
        "Extended resource that pods request instead of the vendor's own.",
        pattern=_EXTENDED_RESOURCE,
        max_length=NAME_BYTES,
    )
    toleration_key: str | None = field(
        "Taint that pods tolerate, where it is not called as the resource is.",
        pattern=_EXTENDED_RESOURCE,
        max_length=NAME_BYTES,
    )
    resource_claims: tuple[ResourceClaim, ...] = field(
        "Claims for devices, instead of an extended resource.", (), max_items=16, list_map_keys=("name",)
    )


@attrs.frozen(kw_only=True)
class Hardware(Wired):
    """What a model runs on, and how much of the host's memory it may take."""

    accelerator: str = field(
        "Hardware that serves the model; metal always means a host agent.", "cpu", enum=ACCELERATORS
    )
    gpu: GPU | None = field("GPU count, offload and split.")
    memory_budget: str | None = field(
        "Memory cap of the serving process; wins over memoryFraction, and over a host agent's budget by default.",
        pattern=QUANTITY,
        max_length=_QUANTITY_CHARACTERS,
        rules=(POSITIVE,),
    )
    memory_fraction: float | None = field(
        "Share of the host's memory that the model may take.", minimum=0, exclusive_minimum=True, maximum=1
    )


@attrs.frozen(kw_only=True)
class ModelResources(Wired):
    """CPU and memory that serving pods request for this model."""

    cpu: str | None = field("CPU request.", pattern=QUANTITY)
    memory: str | None = field("Memory request; leave room above the file's size for the KV cache.", pattern=QUANTITY)


# -- of an InferenceService -------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GPUSharing(Wired):
    """Whether a replica has its GPU for itself."""

    RULES: ClassVar = (
        Rule("self.mode != 'partitioned' || has(self.profile)", "mode partitioned needs a profile", ".profile"),
        Rule("self.mode == 'partitioned' || !has(self.profile)", "profile needs mode partitioned", ".profile"),
        Rule("self.mode == 'shared' || !has(self.memoryLimitGiB)", "memoryLimitGiB needs mode shared"),
    )
    mode: str = field("Whole GPUs, a shared one, or a partition of one.", "exclusive", enum=GPU_SHARING_MODES)
    profile: str | None = field("Partition profile, such as 1g.24gb.", min_length=1)
    memory_limit_gib: int | None = field(
        "GiB of GPU memory that the service counts for.", minimum=1, name="memoryLimitGiB"
    )


@attrs.frozen(kw_only=True)
class ServiceResources(Wired):
    """What each replica requests."""

    RULES: ClassVar = (
        Rule(
            "!has(self.gpuSharing) || self.gpuSharing.mode == 'exclusive' || self.gpu <= 1",
            "a shared or partitioned GPU is one GPU",
            ".gpuSharing",
        ),
    )
    gpu: int = field("GPUs per replica.", 0, minimum=0, maximum=8)
    cpu: str | None = field("CPU request per replica.", pattern=QUANTITY)
    memory: str | None = field("Memory request per replica.", pattern=QUANTITY)
    host_memory: str | None = field(
        "Memory request when part of the model stays on the CPU; wins over memory.", pattern=QUANTITY
    )
    ephemeral_storage: str | None = field(
        "Node storage that is requested, and the most that is granted.", pattern=QUANTITY
    )
    gpu_memory: str | None = field("Memory that one GPU must have; a note for people.", pattern=QUANTITY)
    gpu_sharing: GPUSharing | None = field("Whether a replica has its GPU for itself.")


@attrs.frozen(kw_only=True)
class GatewayReference(Wired):
    """Name a Gateway, here or in another namespace."""

    name: str = field("Name of the Gateway.", REQUIRED, **NAMED)
    namespace: str | None = field("Namespace of the Gateway; unset means the object's own.", max_length=63)


@attrs.frozen(kw_only=True)
class GatewayExposure(Wired):
    """Offer the service through an AI gateway."""

    RULES: ClassVar = (
        Rule("!has(self.enabled) || !self.enabled || has(self.gatewayRef)", "an enabled gateway needs a gatewayRef"),
    )
    enabled: bool | None = field("Turns the exposure on.")
    gateway_ref: GatewayReference | None = field("Gateway to attach to.")
    model_name: str | None = field("Model name that clients send; unset means the modelRef.", min_length=1)


@attrs.frozen(kw_only=True)
class EndpointSpec(Wired):
    """How clients reach the service."""

    RULES: ClassVar = (
        Rule(
            "!has(self.nodePort) || self.type != 'ClusterIP'",
            "a nodePort needs type NodePort or LoadBalancer",
            ".nodePort",
        ),
    )
    port: int = field("Port of the Service.", 8080, minimum=1, maximum=65535, rendered=True)
    type: str = field("Type of the Service.", "ClusterIP", enum=SERVICE_TYPES, rendered=True)
    node_port: int | None = field(
        "Fixed port on every node, for type NodePort.", minimum=30000, maximum=32767, rendered=True
    )
    path: str = field("Path that is appended in status.endpoint.", "/v1/chat/completions")
    gateway: GatewayExposure | None = field(
        "Leads clients of a Gateway to the service, by model name or path.", rendered=True
    )


@attrs.frozen(kw_only=True)
class ScalingMetric(Wired):
    """One figure that drives the autoscaler."""

    RULES: ClassVar = (
        Rule("self.type != 'Resource' || self.name in ['cpu', 'memory']", "a Resource is cpu or memory", ".name"),
        Rule(
            "self.type != 'Resource' || has(self.targetAverageValue) != has(self.targetAverageUtilization)",
            "a Resource needs either targetAverageUtilization or targetAverageValue",
        ),
        Rule(
            "self.type != 'Pods' || !has(self.targetAverageUtilization)",
            "a Pods metric is no share of a request: use targetAverageValue",
            ".targetAverageUtilization",
        ),
    )
    type: str = field(
        "Pods averages a metric over pods; Resource looks at cpu or memory.", REQUIRED, enum=("Pods", "Resource")
    )
    name: str = field("Name of the metric, or cpu or memory.", REQUIRED, **NAMED)
    target_average_value: str | None = field(
        "Wanted average per pod; unset means 2 for type Pods.",
        pattern=QUANTITY,
        max_length=_QUANTITY_CHARACTERS,
        rules=(POSITIVE,),
    )
    target_average_utilization: int | None = field("Wanted percentage of the request, for type Resource.", minimum=1)


@attrs.frozen(kw_only=True)
class Autoscaling(Wired):
    """Let an autoscaler choose the replica count; spec.replicas is where it starts."""

    RULES: ClassVar = (Rule("self.minReplicas <= self.maxReplicas", "minReplicas must not exceed maxReplicas"),)
    max_replicas: int = field("Highest replica count.", REQUIRED, minimum=1, maximum=100)
    min_replicas: int = field("Lowest replica count.", 1, minimum=1, maximum=10)
    metrics: tuple[ScalingMetric, ...] = field(
        "What to scale on; empty means the runtime's own queue metric.", (), max_items=16
    )


@attrs.frozen(kw_only=True)
class EnvVar(Wired):
    """One environment variable of the engine."""

    name: str = field("Name of the variable.", REQUIRED, min_length=1)
    value: str | None = field("Literal value.")
    value_from: Mapping[str, Any] | None = field(
        "Where the value comes from, as in a pod: secretKeyRef and the like.", pod_part="EnvVarSource"
    )


@attrs.frozen(kw_only=True)
class ProbeOverrides(Wired):
    """Replace the runtime's probes one by one; each is a pod's Probe."""

    startup: Mapping[str, Any] | None = field("Replaces the startup probe.", pod_part="Probe")
    liveness: Mapping[str, Any] | None = field("Replaces the liveness probe.", pod_part="Probe")
    readiness: Mapping[str, Any] | None = field("Replaces the readiness probe.", pod_part="Probe")


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
    claim_name: str | None = field("PersistentVolumeClaim to use instead of the namespace's own.", **NAMED)


@attrs.frozen(kw_only=True)
class Fabric(Wired):
    """How one member of a group over several nodes reaches the others."""

    address: str | None = field("Address of the member in the fabric.", **NAMED)
    socket_interface: str | None = field("Network interface for the first contact.", min_length=1)
    ib_hca: str | None = field("RDMA devices, as NCCL names them.", min_length=1, name="ibHCA")


@attrs.frozen(kw_only=True)
class MemberCache(Wired):
    """Where one member of a group keeps the weights."""

    claim_name: str | None = field("PersistentVolumeClaim of the member.", **NAMED)


@attrs.frozen(kw_only=True)
class Member(Wired):
    """One node of a group over several nodes."""

    node: str = field("Name of the node.", REQUIRED, **NAMED)
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
        **NAMED,
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
