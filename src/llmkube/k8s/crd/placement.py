"""Parts of specs about placement: hardware, resources, endpoints, autoscaling, caches, rollouts."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import DECIMAL, DURATION, NAME_BYTES, NAMED, POSITIVE, QUANTITY
from llmkube.k8s.fields import REQUIRED, Rule, Wired, field

ACCELERATORS: Final = ("cpu", "metal", "cuda", "rocm", "intel", "vulkan")
GPU_VENDORS: Final = ("nvidia", "amd", "intel")
SPLIT_STRATEGIES: Final = ("layer", "tensor", "row", "pipeline", "none")
GPU_SHARING_MODES: Final = ("exclusive", "shared", "partitioned")
ALWAYS: Final = "Always"
ON_REQUEST: Final = "OnRequest"
ACTIVATION_MODES: Final = (ALWAYS, ON_REQUEST)
SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")

_EXTENDED_RESOURCE: Final = r"^[a-z0-9.\-]+/[a-z0-9._\-]+$"
_QUANTITY_CHARACTERS: Final = 64  # more than any quantity needs; a rule's cost is estimated with the longest string

_TIME: Final[Mapping[str, Any]] = {
    "pattern": DURATION,
    "max_length": 32,
    "rules": (Rule(f"!self.matches('{DURATION}') || duration(self) >= duration('1s')", "must be at least 1s"),),
}

# -- of a Model -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Sharding(Wired):
    """Distribution of one model over several GPUs."""

    strategy: str = field("Strategy for splitting the model.", "layer", enum=SPLIT_STRATEGIES)
    layer_split: tuple[str, ...] = field('Layer range per GPU, such as "0-24"; defaults to equal shares.', ())


@attrs.frozen(kw_only=True)
class ResourceClaim(Wired):
    """Device that is allocated by a claim (dynamic resource allocation)."""

    RULES: ClassVar = (
        Rule(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "must have either resourceClaimName or resourceClaimTemplateName",
        ),
    )
    name: str = field("Name of the claim within the pod.", REQUIRED, min_length=1, max_length=63)
    resource_claim_name: str | None = field("ResourceClaim that all replicas share.", **NAMED)
    resource_claim_template_name: str | None = field(
        "ResourceClaimTemplate from which each replica gets its own claim.", **NAMED
    )


@attrs.frozen(kw_only=True)
class GPU(Wired):
    """GPUs of a model."""

    RULES: ClassVar = (
        Rule(
            "!has(self.resourceName) || !has(self.resourceClaims) || self.resourceClaims.size() == 0",
            "resourceName and resourceClaims exclude each other",
        ),
    )
    enabled: bool | None = field("Whether the model is meant for a GPU; count sets the number of GPUs.")
    count: int | None = field("GPUs per replica; above 0, overrides the service's resources.gpu.", minimum=0, maximum=8)
    layers: int | None = field("Number of layers to offload to the GPU; -1 means all.", minimum=-1)
    memory: str | None = field("Memory that one GPU must have.", pattern=QUANTITY)
    vendor: str = field("Vendor of the GPU.", "nvidia", enum=GPU_VENDORS)
    runtime: str | None = field("Compute stack for AMD GPUs.", enum=("vulkan", "rocm"))
    sharding: Sharding | None = field("Distribution of the model over several GPUs.")
    resource_name: str | None = field(
        "Extended resource that pods request, instead of the vendor's.",
        pattern=_EXTENDED_RESOURCE,
        max_length=NAME_BYTES,
    )
    toleration_key: str | None = field(
        "Key of the taint that pods tolerate, if it is not the name of the resource.",
        pattern=_EXTENDED_RESOURCE,
        max_length=NAME_BYTES,
    )
    resource_claims: tuple[ResourceClaim, ...] = field(
        "Claims for devices, instead of an extended resource.", (), max_items=16, list_map_keys=("name",)
    )


@attrs.frozen(kw_only=True)
class Hardware(Wired):
    """Hardware that a model runs on, and its share of the host's memory."""

    accelerator: str = field(
        "Hardware that serves the model; metal always means a host agent.", "cpu", enum=ACCELERATORS
    )
    gpu: GPU | None = field("GPU count, offload and split.")
    memory_budget: str | None = field(
        "Memory limit of the serving process; overrides memoryFraction and, by default, a host agent's budget.",
        pattern=QUANTITY,
        max_length=_QUANTITY_CHARACTERS,
        rules=(POSITIVE,),
    )
    memory_fraction: float | None = field(
        "Share of the host's memory that the model may use.", minimum=0, exclusive_minimum=True, maximum=1
    )


@attrs.frozen(kw_only=True)
class ModelResources(Wired):
    """CPU and memory that serving pods request for this model."""

    cpu: str | None = field("CPU request.", pattern=QUANTITY)
    memory: str | None = field("Memory request; add memory for the KV cache to the file's size.", pattern=QUANTITY)


# -- of an InferenceService -------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GPUSharing(Wired):
    """Sharing of a GPU with other pods."""

    RULES: ClassVar = (
        Rule("self.mode != 'partitioned' || has(self.profile)", "mode partitioned needs a profile", ".profile"),
        Rule("self.mode == 'partitioned' || !has(self.profile)", "profile needs mode partitioned", ".profile"),
        Rule("self.mode == 'shared' || !has(self.memoryLimitGiB)", "memoryLimitGiB needs mode shared"),
    )
    mode: str = field("Exclusive GPUs, a shared GPU, or a partition of one.", "exclusive", enum=GPU_SHARING_MODES)
    profile: str | None = field("Partition profile, such as 1g.24gb.", min_length=1)
    memory_limit_gib: int | None = field(
        "GiB of GPU memory that are accounted to the service.", minimum=1, name="memoryLimitGiB"
    )


@attrs.frozen(kw_only=True)
class ServiceResources(Wired):
    """Resource requests of each replica."""

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
        "Memory request if part of the model stays on the CPU; overrides memory.", pattern=QUANTITY
    )
    ephemeral_storage: str | None = field("Request and limit of ephemeral storage.", pattern=QUANTITY)
    gpu_memory: str | None = field("Memory that one GPU must have; informational only.", pattern=QUANTITY)
    gpu_sharing: GPUSharing | None = field("Sharing of a GPU with other pods.")


@attrs.frozen(kw_only=True)
class GatewayReference(Wired):
    """Reference to a Gateway in this or another namespace."""

    name: str = field("Name of the Gateway.", REQUIRED, **NAMED)
    namespace: str | None = field("Namespace of the Gateway; defaults to the object's.", max_length=63)


@attrs.frozen(kw_only=True)
class GatewayExposure(Wired):
    """Exposure of the service through an AI gateway."""

    RULES: ClassVar = (
        Rule("!has(self.enabled) || !self.enabled || has(self.gatewayRef)", "an enabled gateway needs a gatewayRef"),
    )
    enabled: bool | None = field("Whether to expose the service.")
    gateway_ref: GatewayReference | None = field("Gateway to attach to.")
    model_name: str | None = field("Model name that clients send; defaults to the modelRef.", min_length=1)


@attrs.frozen(kw_only=True)
class EndpointSpec(Wired):
    """Endpoint for clients."""

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
    path: str = field("Path of the URL in status.endpoint.", "/v1/chat/completions")
    gateway: GatewayExposure | None = field("Exposure through a Gateway, by model name or path.", rendered=True)


@attrs.frozen(kw_only=True)
class ScalingMetric(Wired):
    """Metric for the autoscaler."""

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
        "Pods uses a metric averaged over pods; Resource uses cpu or memory.", REQUIRED, enum=("Pods", "Resource")
    )
    name: str = field("Name of the metric, or cpu or memory.", REQUIRED, **NAMED)
    target_average_value: str | None = field(
        "Target average per pod; defaults to 2 for type Pods.",
        pattern=QUANTITY,
        max_length=_QUANTITY_CHARACTERS,
        rules=(POSITIVE,),
    )
    target_average_utilization: int | None = field("Target percentage of the request, for type Resource.", minimum=1)


@attrs.frozen(kw_only=True)
class Autoscaling(Wired):
    """Autoscaling of the replica count, starting from spec.replicas."""

    RULES: ClassVar = (Rule("self.minReplicas <= self.maxReplicas", "minReplicas must not exceed maxReplicas"),)
    max_replicas: int = field("Maximum replica count.", REQUIRED, minimum=1, maximum=100)
    min_replicas: int = field("Minimum replica count; 0 needs activation.mode OnRequest.", 1, minimum=0, maximum=10)
    metrics: tuple[ScalingMetric, ...] = field(
        "Metrics to scale on; defaults to the runtime's queue metric.", (), max_items=16
    )


@attrs.frozen(kw_only=True)
class Activation(Wired):
    """When the model is loaded, and when it is unloaded: in pods, when there are pods and when there are none."""

    mode: str | None = field(
        "Whether the model is loaded always, or when a request needs it; defaults to the host's setting, in pods to "
        "Always.",
        enum=ACTIVATION_MODES,
    )
    idle_timeout: str | None = field(
        "Time without requests after which the model is unloaded, such as 10m; unset unloads it on hosts only for "
        "memory, in pods after 10m.",
        **_TIME,
    )
    max_hold: str | None = field(
        "Longest wait of a request for the model to be loaded, such as 90s; defaults to 10m.", **_TIME
    )
    pin: bool = field("Whether the model stays loaded, and is not displaced by other models.", False)


@attrs.frozen(kw_only=True)
class EnvVar(Wired):
    """Environment variable of the engine."""

    name: str = field("Name of the variable.", REQUIRED, min_length=1)
    value: str | None = field("Literal value.")
    value_from: Mapping[str, Any] | None = field(
        "Source of the value, as in a pod, such as secretKeyRef.", pod_part="EnvVarSource"
    )


@attrs.frozen(kw_only=True)
class ProbeOverrides(Wired):
    """Probes that replace the runtime's, individually; each is a Probe as in a pod."""

    startup: Mapping[str, Any] | None = field("Startup probe.", pod_part="Probe")
    liveness: Mapping[str, Any] | None = field("Liveness probe.", pod_part="Probe")
    readiness: Mapping[str, Any] | None = field("Readiness probe.", pod_part="Probe")


CACHE_PERSISTENCE: Final = ("Cached", "Ephemeral")
SLO_INDICATORS: Final = ("availability", "latency")


@attrs.frozen(kw_only=True)
class ModelCache(Wired):
    """Storage of the weights for the pods of a service."""

    RULES: ClassVar = (
        Rule(
            "!(has(self.persistence) && self.persistence == 'Ephemeral' && has(self.claimName))",
            "claimName names a volume to keep weights on, persistence Ephemeral keeps none: choose one",
        ),
    )
    persistence: str | None = field(
        "Cached stores weights on a volume of the namespace, Ephemeral fetches them for each pod; defaults to Cached.",
        enum=CACHE_PERSISTENCE,
    )
    claim_name: str | None = field("PersistentVolumeClaim to use instead of the namespace's.", **NAMED)


@attrs.frozen(kw_only=True)
class Fabric(Wired):
    """Network between the members of a multi-node group, for one member."""

    address: str | None = field("Address of the member in this network.", **NAMED)
    socket_interface: str | None = field("Network interface for the rendezvous.", min_length=1)
    ib_hca: str | None = field("RDMA devices, in NCCL's notation (NCCL_IB_HCA).", min_length=1, name="ibHCA")


@attrs.frozen(kw_only=True)
class MemberCache(Wired):
    """Storage of the weights for one member of a multi-node group."""

    claim_name: str | None = field("PersistentVolumeClaim of the member.", **NAMED)


@attrs.frozen(kw_only=True)
class Member(Wired):
    """One member of a multi-node group."""

    node: str = field("Name of the node.", REQUIRED, **NAMED)
    fabric: Fabric | None = field("Network to the other members.")
    model_cache: MemberCache | None = field("Storage of the weights.")


@attrs.frozen(kw_only=True)
class MultiNode(Wired):
    """Serving of one model over several nodes, compatible with the Go implementation."""

    members: tuple[Member, ...] = field("Nodes; the first serves requests.", REQUIRED, min_items=1, max_items=64)
    rdma_resource: str | None = field("Extended resource that each member requests.", min_length=1)
    ib_gid_index: int | None = field("Index of the RoCE GID, as in NCCL.", minimum=0, name="ibGIDIndex")
    rendezvous_port: int | None = field("Port of the rendezvous.", minimum=1, maximum=65535)


@attrs.frozen(kw_only=True)
class HostReplicas(Wired):
    """Replicas on hosts, in addition to those in pods, behind the same Service."""

    model_ref: str = field(
        "Name of a Model in the same namespace for the hosts, such as the same weights for metal.", REQUIRED, **NAMED
    )
    replicas: int = field("Number of hosts, in addition to spec.replicas pods.", 1, minimum=0, maximum=10)


@attrs.frozen(kw_only=True)
class RolloutPolicy(Wired):
    """Restrictions on when an edit may replace running pods."""

    wait_for_idle: bool | None = field("Whether to defer an edit until no replica has a request.")
    idle_timeout_seconds: int = field("Maximum wait for idle replicas, in seconds; 0 means 300.", 300, minimum=0)
    force: bool | None = field("Whether to roll out at once, without waiting for idle replicas.")


@attrs.frozen(kw_only=True)
class Disruption(Wired):
    """Protection of the pods from node autoscalers."""

    protect_startup: bool = field("Whether to protect pods while they load; also applies without disruption.", True)
    protect_always: bool | None = field("Whether to protect pods at all times.")


@attrs.frozen(kw_only=True)
class SLO(Wired):
    """Service level objective, for Pyrra."""

    RULES: ClassVar = (
        Rule(
            "self.indicator != 'latency' || has(self.latencyThreshold)",
            "indicator latency needs a latencyThreshold",
            ".latencyThreshold",
        ),
    )
    objective: str = field(
        "Target percentage, as a decimal number from 50 to 99.999.",
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
    indicator: str = field("Service level indicator.", "availability", enum=SLO_INDICATORS)
    latency_threshold: str | None = field(
        "Maximum seconds of a response, as a decimal number: a bucket bound of the engine's histogram.",
        pattern=DECIMAL,
        max_length=16,
    )
    window: str = field("Rolling window.", "28d", pattern=r"^[0-9]+[mhdw]$")
    name: str | None = field("Name of the objective; defaults to a name from the service's.", max_length=NAME_BYTES)
