"""An InferenceService says how a Model is served; its status says how that goes."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import GROUP, NAMED, VERSION, APIKeySecretRef, Condition, LocalObjectReference
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME, RUNTIME_NAMES
from llmkube.k8s.crd.placement import (
    SLO,
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
    PersonaPlexConfig,
    RopeScaling,
    SGLangConfig,
    SpeculativeDecoding,
    TGIConfig,
    VLLMConfig,
)
from llmkube.k8s.fields import REQUIRED, Column, Rule, SchemaFacts, Wired, field
from llmkube.k8s.resource import Object, Resource

PRIORITIES: Final = ("batch", "low", "normal", "high", "critical")  # lowest first
MODES: Final = ("chat", "embedding", "rerank")
SERVICE_PHASES: Final = (
    "Pending", "Creating", "Progressing", "Ready", "WaitingForGPU", "Stopped", "Suspended", "Failed"
)  # fmt: skip
MODEL_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
"""A model's id as clients send it: `qwen3.5-4b`, `org/name`, `llama3:8b`. A comma would be two of them to llama.cpp."""

# The parts of a pod that are passed on as they came; the schema spells them out (`podparts`).
PodPart = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class InferenceServiceSpec(Wired):
    """What to serve, how often, how, and where."""

    RULES: ClassVar = (
        Rule(
            "self.runtime != 'generic' || has(self.image) || (has(self.command) && self.command.size() > 0)",
            "runtime generic has no image of its own: name an image",
        ),
        Rule(
            "!has(self.maxPodLifetimeIdleTimeoutSeconds) || has(self.maxPodLifetimeSeconds)",
            "maxPodLifetimeIdleTimeoutSeconds needs maxPodLifetimeSeconds",
        ),
    )

    # What
    model_ref: str = field("Name of the Model in the same namespace; may be changed.", REQUIRED, **NAMED)
    runtime: str = field("Engine that serves the model.", DEFAULT_RUNTIME, enum=RUNTIME_NAMES)
    aliases: tuple[str, ...] = field(
        "Further model ids that clients may send; the first is the name of the service.",
        (),
        max_items=16,
        items=SchemaFacts(**NAMED, pattern=MODEL_ID),
    )
    mode: str | None = field(
        "What the engine offers; unset means chat, unless endpoint.path implies another.", enum=MODES
    )

    # How often, how important
    replicas: int = field("How many processes; 0 stops the service.", 1, minimum=0, maximum=10, rendered=True)
    suspend: bool = field("Stops the service and keeps replicas as they are.", False, rendered=True)
    autoscaling: Autoscaling | None = field("Lets an autoscaler choose the replica count.", rendered=True)
    priority: str = field("Order for scarce GPUs and for eviction.", "normal", enum=PRIORITIES, rendered=True)
    priority_class_name: str | None = field(
        "PriorityClass of the pods, one that the operator allows; wins over priority there.", rendered=True
    )
    eviction_protection: bool = field("Never evicted under memory pressure.", False)

    # llama.cpp: context and slots
    context_size: int | None = field(
        "Context in tokens, shared by all slots; unset means what the model was trained for, 4096 at most.",
        minimum=128,
        maximum=2097152,
    )
    parallel_slots: int = field("Requests served at the same time.", 1, minimum=1, maximum=64)
    batch_size: int | None = field("Logical batch size in tokens.", minimum=1, maximum=16384)
    u_batch_size: int | None = field("Physical batch size in tokens.", minimum=1)
    rope_scaling: RopeScaling | None = field("Stretches the context.")

    # llama.cpp: memory and speed
    flash_attention: bool | None = field("Flash attention; unset leaves it to the runtime.")
    cache_type_k: str | None = field("Type of the K cache.", enum=CACHE_TYPES)
    cache_type_v: str | None = field("Type of the V cache.", enum=CACHE_TYPES)
    cache_type_custom_k: str | None = field("K cache type that a fork knows; wins over cacheTypeK.", min_length=1)
    cache_type_custom_v: str | None = field("V cache type that a fork knows; wins over cacheTypeV.", min_length=1)
    no_kv_offload: bool | None = field("Keeps the KV cache in host memory.")
    moe_cpu_offload: bool | None = field("Keeps all experts in host memory.", name="moeCPUOffload")
    moe_cpu_layers: int | None = field("Layers whose experts stay in host memory.", minimum=0, name="moeCPULayers")
    tensor_overrides: tuple[str, ...] = field("Buffer for tensors by pattern: PATTERN=BUFFER.", ())
    metadata_overrides: tuple[str, ...] = field("GGUF metadata to override: KEY=TYPE:VALUE.", ())
    no_warmup: bool | None = field("Skips the empty run after loading.")
    speculative_decoding: SpeculativeDecoding | None = field("Guesses several tokens ahead.")

    # llama.cpp: answers
    jinja: bool | None = field("Uses the model's own chat template, which tool calls need.")
    reasoning_budget: int | None = field("Most tokens to think in; 0 turns thinking off.", minimum=0)
    reasoning_budget_message: str | None = field("Text that ends thinking when the budget is spent.")

    # oMLX
    hot_cache_max_size: str | None = field("Most memory for hot KV blocks.")
    paged_ssd_cache_dir: str | None = field("Folder for KV blocks on disk.", name="pagedSSDCacheDir")
    paged_ssd_cache_max_size: str | None = field("Most disk space for KV blocks.", name="pagedSSDCacheMaxSize")
    turbo_quant_bits: int | None = field("Bits per value in the quantized KV cache.", enum=(3, 6, 8))

    # Other engines
    vllm_config: VLLMConfig | None = field("Options of vLLM.")
    sglang_config: SGLangConfig | None = field("Options of SGLang.")
    tgi_config: TGIConfig | None = field("Options of TGI.")
    persona_plex_config: PersonaPlexConfig | None = field("Options of PersonaPlex.")

    # The process
    image: str | None = field("Container image; unset means the runtime's own.", min_length=1)
    image_pull_secrets: tuple[LocalObjectReference, ...] = field("Secrets for pulling the image.", (), rendered=True)
    command: tuple[str, ...] = field("Replaces the entrypoint of the container.", ())
    args: tuple[str, ...] = field("All arguments, for the generic runtime.", ())
    extra_args: tuple[str, ...] = field("Arguments added to the engine's command line, such as --mlock.", ())
    env: tuple[EnvVar, ...] = field("Environment variables of the engine.", ())
    bind_address: str | None = field("Address that the engine listens on.")
    container_port: int | None = field("Port that the engine listens on.", minimum=1, maximum=65535)
    skip_model_init: bool | None = field("The engine fetches the weights by itself.")
    probe_overrides: ProbeOverrides | None = field("Replaces the runtime's probes.")

    metrics_path: str | None = field(
        "Where the engine has its metrics for Prometheus, such as /metrics; unset means where the runtime has them.",
        pattern=r"^/[^\s?#]*$",
        max_length=1024,
    )
    model_cache: ModelCache | None = field("Where pods keep the weights.", rendered=True)

    # How pods come and go
    rollout_policy: RolloutPolicy | None = field("When a change may replace running pods.", rendered=True)
    disruption: Disruption | None = field("When node autoscalers must leave the pods alone.", rendered=True)
    max_pod_lifetime_seconds: int | None = field(
        "Age of the oldest pod, in seconds, at which all are replaced as by an edit.",
        minimum=1,
        format="int64",
        rendered=True,
    )
    max_pod_lifetime_idle_timeout_seconds: int | None = field(
        "Longest wait for aged pods to be idle, in seconds; unset waits for ever.",
        minimum=0,
        format="int64",
        rendered=True,
    )
    revision_history_limit: int | None = field("Old ReplicaSets to keep.", minimum=0, rendered=True)
    slo: SLO | None = field("Service level objective, for Pyrra.", rendered=True)

    # Where
    hosts: HostReplicas | None = field(
        "Hosts that serve the same name beside the pods; unset means none.", rendered=True
    )
    multi_node: MultiNode | None = field(
        "Serves one model over several nodes by a LeaderWorkerSet; runtime vllm alone.", rendered=True
    )
    endpoint: EndpointSpec = field("How clients reach the service.", EndpointSpec)
    api_key_secret_ref: APIKeySecretRef | None = field(
        "Secret with the API keys of clients: the engine answers only requests that show one of them."
    )
    resources: ServiceResources = field("What each replica requests.", ServiceResources)
    runtime_class_name: str | None = field("RuntimeClass of the pods, such as nvidia.", rendered=True)
    node_selector: Mapping[str, str] = field("Labels that a node must have.", dict, rendered=True)
    tolerations: tuple[PodPart, ...] = field("Taints that pods tolerate.", (), pod_part="Toleration", rendered=True)
    affinity: PodPart | None = field("Affinity of the pods.", pod_part="Affinity", rendered=True)
    topology_spread_constraints: tuple[PodPart, ...] = field(
        "How pods spread over the cluster.", (), pod_part="TopologySpreadConstraint", rendered=True
    )
    pod_labels: Mapping[str, str] = field("Labels for the pods; those of LLMKube win.", dict, rendered=True)
    pod_annotations: Mapping[str, str] = field("Annotations for the pods.", dict, rendered=True)
    pod_security_context: PodPart | None = field(
        "Security context of the pod; what it leaves out stays LLMKube's.", pod_part="PodSecurityContext", rendered=True
    )
    security_context: PodPart | None = field(
        "Security context of the engine's container; what it leaves out stays LLMKube's.",
        pod_part="SecurityContext",
        rendered=True,
    )
    extra_volumes: tuple[PodPart, ...] = field(
        "Volumes added to the pods: the namespace's own, and others that the operator allows.",
        (),
        pod_part="Volume",
        rendered=True,
    )
    extra_volume_mounts: tuple[PodPart, ...] = field(
        "Mounts added to the engine's container.", (), pod_part="VolumeMount", rendered=True
    )


@attrs.frozen(kw_only=True)
class AccelerationStatus(Wired):
    """How much of the model the accelerator took."""

    device: str = field("Device that took the layers, or CPU.", "")
    layers_offloaded: int | None = field("Layers on the accelerator.")
    layers_total: int | None = field("Layers of the model.")


@attrs.frozen(kw_only=True)
class ServingEngine(Wired):
    """Which engine serves on a host: what was started, not what a newer spec asks for."""

    runtime: str = field("Runtime of the engine, such as llamacpp, mlx-lm or ollama.", "")
    build: str = field(
        "Build of its program when it was started; of a daemon, such as an Ollama, the one that serves now. Not set "
        "where that is not known.",
        "",
    )
    weights_format: str = field("Format of the weights that it was started with.", "")

    def __str__(self) -> str:
        """Return it for people, such as `ollama 0.17.4 (gguf)`."""
        known = f"{self.runtime} {self.build}".rstrip()
        return f"{known} ({self.weights_format})" if self.weights_format else known


@attrs.frozen(kw_only=True)
class GatewayStatus(Wired):
    """How the service is exposed through an AI gateway."""

    model_name: str = field("Model name that clients send.", "")
    endpoint: str = field("Address of the gateway; never set.", "")
    route_ready: bool | None = field("The gateway knows the route.")
    auth_enabled: bool | None = field("The gateway asks for credentials; never set.")


@attrs.frozen(kw_only=True)
class InferenceServiceStatus(Wired):
    """How serving goes."""

    phase: str = field("Where the service stands.", "", enum=SERVICE_PHASES)
    conditions: tuple[Condition, ...] = field(
        "Statements about the service, one per type.", (), list_map_keys=("type",)
    )
    endpoint: str = field("URL that clients use.", "")
    replicas: int | None = field("Replicas that the scale subresource reports.")
    selector: str = field("Labels of its pods, for autoscalers that scale the service itself.", "")
    ready_replicas: int | None = field("Replicas that answer.")
    desired_replicas: int | None = field("Replicas that are wanted now; 0 while suspended.")
    model_ready: bool | None = field("The Model is Ready.")
    mode: str = field("What the engine offers.", "")
    effective_priority: int | None = field("Weight of the priority.")
    queue_position: int | None = field("Place in the queue for GPUs, from 1.")
    waiting_for: str = field("What the service waits for.", "")
    scheduling_status: str = field("Why it does not run, as one word.", "")
    scheduling_message: str = field("Why it does not run, as a sentence.", "")
    runtime: str = field("Runtime that serves, or is to; not set while a host has yet to choose one.", "")
    acceleration: AccelerationStatus | None = field("How much of the model the accelerator took; never set.")
    engine: ServingEngine | None = field("Engine that serves on a host, from its agent; not set while none does.")
    gateway: GatewayStatus | None = field("How the service is exposed through an AI gateway.")
    last_updated: str | None = field("When the status last changed.", format="date-time")


@attrs.frozen(kw_only=True)
class InferenceService(Object):
    """A Model being served under a name."""

    RESOURCE: ClassVar[Resource] = Resource(
        GROUP,
        VERSION,
        "InferenceService",
        "inferenceservices",
        short_names=("isvc",),
        subresources=("status", "scale"),
        categories=("llmkube",),
    )
    # Where `kubectl scale` and autoscalers read and write the replica count, and which pods they count.
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
    status: InferenceServiceStatus = field("How serving goes.", InferenceServiceStatus)

    @property
    def on_hosts(self) -> "InferenceService":
        """The service as hosts are to serve it: where pods serve it too, with the Model and the number for hosts."""
        part = self.spec.hosts
        if part is None:
            return self
        spec = attrs.evolve(self.spec, model_ref=part.model_ref, replicas=part.replicas, autoscaling=None)
        return attrs.evolve(self, spec=spec)
