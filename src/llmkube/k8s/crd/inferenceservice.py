"""The kind InferenceService: a Model, the engine that serves it, and where."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import NAMED, APIKeySecretRef, Condition, LocalObjectReference
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME, RUNTIME_NAMES
from llmkube.k8s.crd.placement import (
    SLO,
    Activation,
    Autoscaling,
    Disruption,
    EndpointSpec,
    EnvVar,
    HostReplicas,
    ModelCache,
    MultiNode,
    ProbeOverrides,
    RolloutPolicy,
    ServiceResources,
)
from llmkube.k8s.crd.serving import (
    CACHE_TYPES,
    MODEL_ID,
    Adapter,
    EngineSelection,
    PersonaPlexConfig,
    Preset,
    RopeScaling,
    SGLangConfig,
    SpeculativeDecoding,
    TGIConfig,
    VLLMConfig,
)
from llmkube.k8s.fields import REQUIRED, Column, Rule, SchemaFacts, Wired, field
from llmkube.k8s.resource import Object, Resource, own_resource

PRIORITIES: Final = ("batch", "low", "normal", "high", "critical")  # lowest first
MODES: Final = ("chat", "embedding", "rerank")
SERVICE_PHASES: Final = (
    "Pending", "Creating", "Progressing", "Ready", "Idle", "WaitingForGPU", "Stopped", "Suspended", "Failed"
)  # fmt: skip
# Parts of a pod that are passed through unchanged; their schemas are in `podparts`.
PodPart = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class InferenceServiceSpec(Wired):
    """Desired state of a service: the Model, the engine, the replicas and their placement."""

    RULES: ClassVar = (
        Rule(
            "self.runtime != 'generic' || has(self.image) || (has(self.command) && self.command.size() > 0)"
            " || has(self.engine)",
            "runtime generic has no image of its own: name an image, or on hosts an engine",
        ),
        Rule(
            "!has(self.maxPodLifetimeIdleTimeoutSeconds) || has(self.maxPodLifetimeSeconds)",
            "maxPodLifetimeIdleTimeoutSeconds needs maxPodLifetimeSeconds",
        ),
        Rule(
            "!has(self.autoscaling) || self.autoscaling.minReplicas > 0 || (has(self.activation) &&"
            " has(self.activation.mode) && self.activation.mode == 'OnRequest')",
            "minReplicas 0 needs activation.mode OnRequest: only requests start pods again",
            ".autoscaling.minReplicas",
        ),
    )

    # Model and engine
    model_ref: str = field("Name of the Model in the same namespace; mutable.", REQUIRED, **NAMED)
    runtime: str = field("Engine that serves the model.", DEFAULT_RUNTIME, enum=RUNTIME_NAMES)
    aliases: tuple[str, ...] = field(
        "Additional model ids that clients may send, besides the name of the service.",
        (),
        max_items=16,
        items=SchemaFacts(**NAMED, pattern=MODEL_ID),
    )
    adapters: tuple[Adapter, ...] = field("LoRA adapters of the model, on the same engine.", (), max_items=16)
    presets: tuple[Preset, ...] = field(
        "Further model ids that clients may send, each with settings for its requests. A preset with the name of the "
        "service applies to that name.",
        (),
        max_items=16,
        list_map_keys=("name",),
        rendered=True,
    )
    mode: str | None = field(
        "Kind of API that the engine serves; defaults to chat, unless endpoint.path implies another.", enum=MODES
    )

    # Replicas and priority
    replicas: int = field("Number of replicas; 0 stops the service.", 1, minimum=0, maximum=10, rendered=True)
    suspend: bool = field("Whether the service is stopped, without a change of replicas.", False, rendered=True)
    autoscaling: Autoscaling | None = field("Autoscaling of the replica count.", rendered=True)
    priority: str = field("Priority for GPUs and eviction.", "normal", enum=PRIORITIES, rendered=True)
    priority_class_name: str | None = field(
        "PriorityClass of the pods, one that the operator allows; overrides priority for them.", rendered=True
    )
    activation: Activation = field("Loading on request.", Activation, rendered=True)
    eviction_protection: bool = field("Whether the service is exempt from eviction under memory pressure.", False)

    # llama.cpp: context and slots
    context_size: int | None = field(
        "Context in tokens, shared by all slots; defaults to the model's trained context, at most 4096.",
        minimum=128,
        maximum=2097152,
    )
    parallel_slots: int = field("Number of requests served concurrently.", 1, minimum=1, maximum=64)
    batch_size: int | None = field("Logical batch size in tokens.", minimum=1, maximum=16384)
    u_batch_size: int | None = field("Physical batch size in tokens.", minimum=1)
    rope_scaling: RopeScaling | None = field("RoPE scaling, to extend the context.")

    # llama.cpp: memory and speed
    flash_attention: bool | None = field("Whether to use flash attention; unset leaves it to the runtime.")
    cache_type_k: str | None = field("Type of the K cache.", enum=CACHE_TYPES)
    cache_type_v: str | None = field("Type of the V cache.", enum=CACHE_TYPES)
    cache_type_custom_k: str | None = field("K cache type of a llama.cpp fork; overrides cacheTypeK.", min_length=1)
    cache_type_custom_v: str | None = field("V cache type of a llama.cpp fork; overrides cacheTypeV.", min_length=1)
    no_kv_offload: bool | None = field("Whether the KV cache stays in host memory.")
    moe_cpu_offload: bool | None = field("Whether all experts stay in host memory.", name="moeCPUOffload")
    moe_cpu_layers: int | None = field("Number of layers with experts in host memory.", minimum=0, name="moeCPULayers")
    tensor_overrides: tuple[str, ...] = field("Buffer types of tensors: PATTERN=BUFFER.", ())
    metadata_overrides: tuple[str, ...] = field("Overrides of GGUF metadata: KEY=TYPE:VALUE.", ())
    no_warmup: bool | None = field("Whether to skip the warm-up run after loading.")
    speculative_decoding: SpeculativeDecoding | None = field("Speculative decoding.")

    # llama.cpp: output
    jinja: bool | None = field("Whether to use the model's own chat template, which tool calls require.")
    max_answer_tokens: int | None = field(
        "Maximum tokens of one answer; defaults to the context, also where the engine shifts it.",
        minimum=1,
        maximum=2097152,
    )
    reasoning_budget: int | None = field("Maximum tokens of reasoning; 0 disables reasoning.", minimum=0)
    reasoning_budget_message: str | None = field("Text that ends reasoning when its budget is used up.")

    # oMLX
    hot_cache_max_size: str | None = field("Maximum memory for hot KV blocks.")
    paged_ssd_cache_dir: str | None = field("Folder for KV blocks on disk.", name="pagedSSDCacheDir")
    paged_ssd_cache_max_size: str | None = field("Maximum disk space for KV blocks.", name="pagedSSDCacheMaxSize")
    turbo_quant_bits: int | None = field("Bits per value in the quantized KV cache.", enum=(3, 6, 8))

    # Other engines
    vllm_config: VLLMConfig | None = field("Options of vLLM.")
    sglang_config: SGLangConfig | None = field("Options of SGLang.")
    tgi_config: TGIConfig | None = field("Options of TGI.")
    persona_plex_config: PersonaPlexConfig | None = field("Options of PersonaPlex.")

    engine: EngineSelection | None = field("Engine of runtime generic on hosts, from their owner's config.toml.")

    # The process
    image: str | None = field("Container image; defaults to the runtime's.", min_length=1)
    image_pull_secrets: tuple[LocalObjectReference, ...] = field("Secrets for pulling the image.", (), rendered=True)
    command: tuple[str, ...] = field("Entrypoint of the container, instead of the image's.", ())
    args: tuple[str, ...] = field("All arguments of the engine, for the generic runtime.", ())
    extra_args: tuple[str, ...] = field("Additional arguments of the engine, such as --mlock.", ())
    env: tuple[EnvVar, ...] = field("Environment variables of the engine.", ())
    bind_address: str | None = field("Address that the engine listens on.")
    container_port: int | None = field("Port that the engine listens on.", minimum=1, maximum=65535)
    skip_model_init: bool | None = field("Whether the engine fetches the weights itself.")
    probe_overrides: ProbeOverrides | None = field("Probes that replace the runtime's.")

    metrics_path: str | None = field(
        "Path of the engine's Prometheus metrics, such as /metrics; defaults to the runtime's.",
        pattern=r"^/[^\s?#]*$",
        max_length=1024,
    )
    model_cache: ModelCache | None = field("Storage of the weights for pods.", rendered=True)

    # Lifecycle of pods
    rollout_policy: RolloutPolicy | None = field("Restrictions on when an edit may replace pods.", rendered=True)
    disruption: Disruption | None = field("Protection of the pods from node autoscalers.", rendered=True)
    max_pod_lifetime_seconds: int | None = field(
        "Age of the oldest pod, in seconds, at which all pods are replaced by a rollout.",
        minimum=1,
        format="int64",
        rendered=True,
    )
    max_pod_lifetime_idle_timeout_seconds: int | None = field(
        "Maximum wait for expired pods to be idle, in seconds; unset means no limit.",
        minimum=0,
        format="int64",
        rendered=True,
    )
    revision_history_limit: int | None = field("Number of old ReplicaSets to retain.", minimum=0, rendered=True)
    slo: SLO | None = field("Service level objective, for Pyrra.", rendered=True)

    # Placement and access
    hosts: HostReplicas | None = field("Replicas on hosts, in addition to the pods; unset means none.", rendered=True)
    multi_node: MultiNode | None = field(
        "Serving of one model over several nodes, as a LeaderWorkerSet; only for runtime vllm.", rendered=True
    )
    endpoint: EndpointSpec = field("Endpoint for clients.", EndpointSpec)
    api_key_secret_ref: APIKeySecretRef | None = field(
        "Key of a Secret with the API keys of clients; the engine rejects requests without one of them."
    )
    resources: ServiceResources = field("Resource requests of each replica.", ServiceResources)
    runtime_class_name: str | None = field("RuntimeClass of the pods, such as nvidia.", rendered=True)
    node_selector: Mapping[str, str] = field("Labels that a node must have.", dict, rendered=True)
    tolerations: tuple[PodPart, ...] = field("Tolerations of the pods.", (), pod_part="Toleration", rendered=True)
    affinity: PodPart | None = field("Affinity of the pods.", pod_part="Affinity", rendered=True)
    topology_spread_constraints: tuple[PodPart, ...] = field(
        "Topology spread constraints of the pods.", (), pod_part="TopologySpreadConstraint", rendered=True
    )
    pod_labels: Mapping[str, str] = field("Labels of the pods; LLMKube's take precedence.", dict, rendered=True)
    pod_annotations: Mapping[str, str] = field("Annotations of the pods.", dict, rendered=True)
    pod_security_context: PodPart | None = field(
        "Security context of the pods; LLMKube's applies to unset fields.", pod_part="PodSecurityContext", rendered=True
    )
    security_context: PodPart | None = field(
        "Security context of the engine's container; LLMKube's applies to unset fields.",
        pod_part="SecurityContext",
        rendered=True,
    )
    extra_volumes: tuple[PodPart, ...] = field(
        "Additional volumes of the pods: those of the namespace, and others that the operator allows.",
        (),
        pod_part="Volume",
        rendered=True,
    )
    extra_volume_mounts: tuple[PodPart, ...] = field(
        "Additional volume mounts of the engine's container.", (), pod_part="VolumeMount", rendered=True
    )


@attrs.frozen(kw_only=True)
class AccelerationStatus(Wired):
    """Share of the model on the accelerator."""

    device: str = field("Device that holds the layers, or CPU.", "")
    layers_offloaded: int | None = field("Number of layers on the accelerator.")
    layers_total: int | None = field("Number of layers of the model.")

    def __str__(self) -> str:
        """Return a description such as `CUDA0, 33 of 33 layers`."""
        total = f" of {self.layers_total}" if self.layers_total is not None else ""
        return self.device if not self.layers_offloaded else f"{self.device}, {self.layers_offloaded}{total} layers"


@attrs.frozen(kw_only=True)
class ServingEngine(Wired):
    """Engine that serves on a host, as it was started; it may differ from a newer spec."""

    runtime: str = field("Runtime of the engine, such as llamacpp, mlx-lm or ollama.", "")
    build: str = field(
        "Build of the engine's program when it was started; for a daemon such as Ollama, the current build. Unset if "
        "unknown.",
        "",
    )
    weights_format: str = field("Format of the weights that the engine was started with.", "")

    def __str__(self) -> str:
        """Return a description such as `ollama 0.17.4 (gguf)`."""
        known = f"{self.runtime} {self.build}".rstrip()
        return f"{known} ({self.weights_format})" if self.weights_format else known


@attrs.frozen(kw_only=True)
class GatewayStatus(Wired):
    """Exposure of the service through an AI gateway."""

    model_name: str = field("Model name that clients send.", "")
    endpoint: str = field("Address of the gateway; never set.", "")
    route_ready: bool | None = field("Whether the gateway has accepted the route.")
    auth_enabled: bool | None = field("Whether the gateway requires credentials; never set.")


@attrs.frozen(kw_only=True)
class InferenceServiceStatus(Wired):
    """Observed state of a service."""

    phase: str = field("Current phase of the service.", "", enum=SERVICE_PHASES)
    conditions: tuple[Condition, ...] = field("Conditions of the service, one per type.", (), list_map_keys=("type",))
    endpoint: str = field("URL for clients.", "")
    replicas: int | None = field("Number of replicas, for the scale subresource.")
    selector: str = field("Label selector of the pods, for autoscalers that scale the service itself.", "")
    ready_replicas: int | None = field("Number of replicas that serve requests.")
    desired_replicas: int | None = field("Number of desired replicas; 0 while suspended.")
    model_ready: bool | None = field("Whether the Model is Ready.")
    mode: str = field("Kind of API that the engine serves.", "")
    effective_priority: int | None = field("Numeric value of the priority.")
    queue_position: int | None = field("Position in the queue for GPUs, from 1.")
    waiting_for: str = field("Resource that the service waits for.", "")
    scheduling_status: str = field("Reason why the service does not run, as one word.", "")
    scheduling_message: str = field("Reason why the service does not run, as a sentence.", "")
    activation: str = field("Activation mode in effect on the host that reports.", "")
    runtime: str = field("Runtime that serves or will serve; unset until a host has chosen one.", "")
    acceleration: AccelerationStatus | None = field(
        "Share of the model on the accelerator, from the log of the engine on a host; unset while none serves."
    )
    engine: ServingEngine | None = field("Engine that serves on a host, from its agent; unset while none serves.")
    gateway: GatewayStatus | None = field("Exposure of the service through an AI gateway.")
    last_updated: str | None = field("When the status last changed.", format="date-time")


@attrs.frozen(kw_only=True)
class InferenceService(Object):
    """A Model being served under a name."""

    RESOURCE: ClassVar[Resource] = own_resource("InferenceService", "isvc", "scale")
    # For `kubectl scale` and autoscalers: the paths of the replica count and of the pods' selector.
    SCALE: ClassVar = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    COLUMNS: ClassVar = (
        Column("Phase", ".status.phase"),
        Column("Model", ".spec.modelRef"),
        Column("Ready", ".status.readyReplicas", "integer"),
        Column("Desired", ".status.desiredReplicas", "integer"),
        Column("Reason", '.status.conditions[?(@.type=="Available")].reason'),
        Column("Endpoint", ".status.endpoint"),
        Column("Runtime", ".status.runtime", wide=True),
        Column("Build", ".status.engine.build", wide=True),
        Column("Priority", ".spec.priority", wide=True),
        Column("Queue", ".status.queuePosition", "integer", wide=True),
        Column("Scheduling", ".status.schedulingStatus", wide=True),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )
    spec: InferenceServiceSpec
    status: InferenceServiceStatus = field("Observed state of the service.", InferenceServiceStatus)

    @property
    def on_hosts(self) -> "InferenceService":
        """The service as hosts serve it: with `spec.hosts`, its Model and replicas replace those for pods."""
        part = self.spec.hosts
        if part is None:
            return self
        spec = attrs.evolve(self.spec, model_ref=part.model_ref, replicas=part.replicas, autoscaling=None)
        return attrs.evolve(self, spec=spec)
