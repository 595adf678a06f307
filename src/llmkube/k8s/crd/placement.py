"""Where a model runs and what it may take: hardware, resources, replicas, the way in."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import QUANTITY
from llmkube.k8s.fields import REQUIRED, Rule, Wire, field, received

ACCELERATORS: Final = ("cpu", "metal", "cuda", "rocm", "intel", "vulkan")
GPU_VENDORS: Final = ("nvidia", "amd", "intel")
SPLIT_STRATEGIES: Final = ("layer", "tensor", "row", "pipeline", "none")
SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")

# -- of a Model -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Sharding:
    """Split one model over several GPUs."""

    strategy: str = field("How the model is cut up.", "layer", enum=SPLIT_STRATEGIES)
    layer_split: tuple[str, ...] = field('Layer range per GPU, such as "0-24"; unset means equal shares.', ())
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class GPU:
    """The GPUs that a model wants."""

    enabled: bool | None = field("Marks the model as made for a GPU; count decides how many it gets.")
    count: int | None = field(
        "GPUs per replica; above 0 it wins over the service's resources.gpu.", minimum=0, maximum=8
    )
    layers: int | None = field("Layers to offload to the GPU; -1 means all of them.", minimum=-1)
    memory: str | None = field("Memory that one GPU must have.", pattern=QUANTITY)
    vendor: str = field("Maker of the GPU.", "nvidia", enum=GPU_VENDORS)
    runtime: str | None = field("Compute stack for AMD GPUs.", enum=("vulkan", "rocm"))
    sharding: Sharding | None = field("How several GPUs share the model.")
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class Hardware:
    """What a model runs on, and how much of the host's memory it may take."""

    accelerator: str = field(
        "Hardware that serves the model; metal always means a host agent.", "cpu", enum=ACCELERATORS
    )
    gpu: GPU | None = field("GPU count, offload and split.")
    memory_budget: str | None = field("Memory cap of the serving process; wins over memoryFraction.", pattern=QUANTITY)
    memory_fraction: float | None = field("Share of the host's memory that the model may take.", minimum=0, maximum=1)
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class ModelResources:
    """CPU and memory that serving pods request for this model."""

    cpu: str | None = field("CPU request.", pattern=QUANTITY)
    memory: str | None = field("Memory request; leave room above the file's size for the KV cache.", pattern=QUANTITY)
    wire: Wire = received()


# -- of an InferenceService -------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ServiceResources:
    """What each replica requests."""

    gpu: int = field("GPUs per replica.", 0, minimum=0, maximum=8)
    cpu: str | None = field("CPU request per replica.", pattern=QUANTITY)
    memory: str | None = field("Memory request per replica.", pattern=QUANTITY)
    host_memory: str | None = field(
        "Memory request when part of the model stays on the CPU; wins over memory.", pattern=QUANTITY
    )
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class EndpointSpec:
    """How clients reach the service."""

    port: int = field("Port of the Service.", 8080, minimum=1, maximum=65535)
    type: str = field("Type of the Service.", "ClusterIP", enum=SERVICE_TYPES)
    node_port: int | None = field("Fixed port on every node, for type NodePort.", minimum=30000, maximum=32767)
    path: str = field("Path that is appended in status.endpoint.", "/v1/chat/completions")
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class ScalingMetric:
    """One figure that drives the autoscaler."""

    type: str = field(
        "Pods averages a metric over pods; Resource looks at cpu or memory.", REQUIRED, enum=("Pods", "Resource")
    )
    name: str = field("Name of the metric, or cpu or memory.", REQUIRED)
    target_average_value: str | None = field("Wanted average per pod, for type Pods.", pattern=QUANTITY)
    target_average_utilization: int | None = field("Wanted percentage of the request, for type Resource.", minimum=1)
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class Autoscaling:
    """Let an autoscaler choose the replica count; spec.replicas is where it starts."""

    RULES: ClassVar = (Rule("self.minReplicas <= self.maxReplicas", "minReplicas must not exceed maxReplicas"),)
    max_replicas: int = field("Highest replica count.", REQUIRED, minimum=1, maximum=100)
    min_replicas: int = field("Lowest replica count.", 1, minimum=1, maximum=10)
    metrics: tuple[ScalingMetric, ...] = field("What to scale on; empty means the runtime's own queue metric.", ())
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class EnvVar:
    """One environment variable of the engine."""

    name: str = field("Name of the variable.", REQUIRED, min_length=1)
    value: str | None = field("Literal value.")
    value_from: Mapping[str, Any] | None = field("Where the value comes from, as in a pod: secretKeyRef and the like.")
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class ProbeOverrides:
    """Replace the runtime's probes one by one; each is a pod's Probe."""

    startup: Mapping[str, Any] | None = field("Replaces the startup probe.")
    liveness: Mapping[str, Any] | None = field("Replaces the liveness probe.")
    readiness: Mapping[str, Any] | None = field("Replaces the readiness probe.")
    wire: Wire = received()
