"""What people who run the Go implementation have written: the same fields and flags, with names of our own.

Three public repositories were looked at, 36 documents. Each shape here stands for one of them, and for all that differ
from it in values alone.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

API: Final = "inference.llmkube.dev/v1alpha1"
Json = dict[str, Any]

KWARGS: Final = """--chat-template-kwargs '{"reasoning_effort":"medium"}'"""
SAMPLING: Final = "--temp 1 --top-p 0.95 --top-k 20 --min-p 0 --presence-penalty 0 --repeat-penalty 1"
MTP: Final = (
    "--spec-type draft-mtp --spec-draft-p-min 0.75 --spec-draft-n-max 3 --spec-draft-type-k q8_0 "
    "--spec-draft-type-v q8_0"
)
CACHES: Final = "--cont-batching --cache-prompt --cache-ram 4096 --kv-unified --checkpoint-min-step 32768"
BIG_CPU: Final = "--threads 16 --threads-batch 21 --load-mode none"
SMALL_CPU: Final = "--threads 6 --threads-batch 12"
IDLE: Final = "--cache-ram 0 --no-mmap --sleep-idle-seconds 300"


@attrs.frozen
class Shape:
    """A Model with its InferenceService, as somebody has written them.

    Attributes:
        name: What it is, and the name of both objects.
        model: The Model's spec.
        service: The InferenceService's spec, without `modelRef` and `extraArgs`.
        args: `extraArgs` as one would type them; NAME is the service's own name.
        says: Words of the command line that have to come of it.
        aliases: The further ids that clients send.
        refused: The field that this cluster refuses, and the value of the chart that allows it; empty when nothing is.
        ignored: Paths of fields that have no effect here, and why no one misses them.
    """

    name: str
    model: Mapping[str, Any]
    service: Mapping[str, Any]
    args: str = ""
    says: str = ""
    aliases: tuple[str, ...] = ()
    refused: str = ""
    ignored: tuple[str, ...] = ()

    def manifests(self) -> Iterator[Json]:
        """Yield both objects."""
        words = [self.name if word == "NAME" else word for word in shlex.split(self.args)]
        service = {"modelRef": self.name, **self.service, **({"extraArgs": words} if words else {})}
        for kind, spec in (("Model", dict(self.model)), ("InferenceService", service)):
            yield {"apiVersion": API, "kind": kind, "metadata": {"name": self.name, "namespace": "ai"}, "spec": spec}


def probes(**first: int) -> Json:
    """Return what all of them write: llama.cpp's health, with more patience."""

    def probe(period: int, failures: int) -> Json:
        return {"httpGet": {"path": "/health", "port": 8080}, **first, "periodSeconds": period,
                "failureThreshold": failures}  # fmt: skip

    return {"probeOverrides": {"startup": probe(10, 180), "liveness": probe(15, 6), "readiness": probe(10, 3)}}


SIZES: Final = {"contextSize": 131072, "parallelSlots": 2, "batchSize": 2048, "uBatchSize": 512}
SMALL: Final = {"contextSize": 32768, "parallelSlots": 4, "batchSize": 4096, "uBatchSize": 4096}
CACHE_TYPES: Final = {"cacheTypeK": "q8_0", "cacheTypeV": "q8_0", "flashAttention": True, "jinja": True}
ENDPOINT: Final = {"endpoint": {"port": 8080, "type": "ClusterIP"}}
AMOUNTS: Final = {"cpu": "4", "memory": "32Gi"}
THINKING: Final = {"reasoningBudget": 8192, "reasoningBudgetMessage": "Enough thought. Answer now."}
IMAGE: Final = {"image": "ghcr.io/ggml-org/llama.cpp:server-vulkan-b10068"}
DRAINED: Final = {"rolloutPolicy": {"waitForIdle": True, "idleTimeoutSeconds": 900}}
TOLERATIONS: Final = {
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]
}
SPREAD: Final = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"igpu-workload": "true"}},
        }
    ]
}

NVIDIA: Final = {
    **SIZES, **CACHE_TYPES, **ENDPOINT, **THINKING, **probes(initialDelaySeconds=30), "replicas": 1,
    "resources": {**AMOUNTS, "gpu": 1}, "runtimeClassName": "nvidia", "priorityClassName": "ai-interactive",
    "image": "ghcr.io/ggml-org/llama.cpp:server-cuda-b10068", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}],
    "nodeSelector": {"topology.kubernetes.io/zone": "rack-1"},
}  # fmt: skip
CLAIMED: Final = {
    **ENDPOINT, **IMAGE, **DRAINED, **TOLERATIONS, **probes(initialDelaySeconds=10), "replicas": 1, "priority": "high",
    "resources": AMOUNTS, "command": ["/app/llama-server"], "modelCache": {"claimName": "models-on-node"},
    "nodeSelector": {"topology.kubernetes.io/gpus": "igpu"},
}  # fmt: skip
IGPU: Final = {
    **ENDPOINT, **IMAGE, **DRAINED, **SPREAD, **probes(initialDelaySeconds=10), "replicas": 1, "priority": "low",
    "resources": AMOUNTS, "podLabels": {"igpu-workload": "true"},
    "env": [{"name": "GGML_VK_VISIBLE_DEVICES", "value": "0"}],
}  # fmt: skip
MANAGED: Final = {
    **SMALL, **ENDPOINT, **probes(), "replicas": 1, "resources": {**AMOUNTS, "gpu": 1}, **IMAGE,
    "podSecurityContext": {"fsGroup": 1000, "supplementalGroups": [44, 109]},
}  # fmt: skip
BY_ZONE: Final = {
    "nodeSelector": {"topology.kubernetes.io/zone": "home"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}]}
                ]
            }
        }
    },
}
BY_NODE: Final = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}


def hub(gpu: Json, *, mmproj: bool = False, accelerator: str = "cuda") -> Json:
    """Return a Model of files of a Hugging Face repository."""
    further = {"mmproj": "mmproj-F16.gguf"} if mmproj else {}
    files = {"source": "hf://org/Model-GGUF", "files": ["Model-Q4_K_M.gguf"], **further}
    return {**files, "format": "gguf", "quantization": "Q4_K_M", "hardware": {"accelerator": accelerator, "gpu": gpu}}


def web(gpu: Json) -> Json:
    """Return a Model of one file."""
    source = "https://huggingface.co/org/Small-GGUF/resolve/main/Small-Q8_0.gguf"
    return {
        "source": source,
        "format": "gguf",
        "quantization": "Q8_0",
        "hardware": {"accelerator": "vulkan", "gpu": gpu},
    }


COUNTED: Final = {"enabled": True, "vendor": "nvidia", "count": 1, "layers": 99}
UNCOUNTED: Final = {"enabled": True, "vendor": "nvidia", "layers": 99}
CLAIM: Final = {
    "enabled": True, "vendor": "amd", "layers": 99,
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "igpu"}],
}  # fmt: skip
NAMED: Final = {"enabled": True, "vendor": "amd", "count": 1, "layers": 99, "resourceName": "devic.es/dri-render"}

SHAPES: Final = (
    Shape("drafted", hub(COUNTED, mmproj=True), NVIDIA,
          "--alias NAME --cont-batching --spec-type draft-dflash --spec-draft-model /models/org/draft.gguf "
          "--spec-draft-n-max 15 --spec-draft-p-min 0.75 --spec-draft-type-k q8_0 --spec-draft-type-v q8_0 "
          "--cache-prompt --cache-ram 40960 --kv-unified --temp 1.0 --top-p 0.95 --top-k 64 --reasoning-preserve "
          f"{SMALL_CPU} --mmap",
          says="--spec-draft-model /models/org/draft.gguf",
          refused="spec.priorityClassName workloads.allow.priorityClasses"),
    Shape("guessing", hub(COUNTED, mmproj=True), {**NVIDIA, **DRAINED},
          f"--alias NAME --no-mmproj-offload --image-min-tokens 1024 --cont-batching {MTP} -sps 0.75 --cache-prompt "
          f"--cache-ram 40960 --kv-unified {SAMPLING} {SMALL_CPU} --mmap {KWARGS} --n-predict 40960",
          says="--spec-type draft-mtp",
          refused="spec.priorityClassName workloads.allow.priorityClasses"),
    Shape("claimed", hub(CLAIM, accelerator="vulkan"), {**SIZES, **CACHE_TYPES, **CLAIMED},
          f"--alias NAME --cont-batching --cache-prompt --kv-unified {BIG_CPU}", says="--load-mode none"),
    Shape("short-flags", hub(CLAIM, accelerator="vulkan"),
          {**SIZES, **CLAIMED, **THINKING, "flashAttention": True, "jinja": True},
          "--alias NAME -ctk q8_0 -ctv q8_0 -dev Vulkan0 -ctxcp 0 -cram 16384 --poll 100 --cont-batching "
          f"--spec-type draft-mtp --spec-draft-n-max 6 --spec-draft-p-min 0.60 {SAMPLING} --threads 16 "
          f"--threads-batch 21 {KWARGS}", says="-ctk q8_0"),
    Shape("pictures", hub(CLAIM, accelerator="vulkan"), {**SIZES, **CACHE_TYPES, **CLAIMED},
          f"--alias NAME --image-min-tokens 1024 {CACHES} {BIG_CPU}", says="--image-min-tokens 1024"),
    Shape("preserving", hub(CLAIM, accelerator="vulkan", mmproj=True),
          {**SIZES, **CACHE_TYPES, **CLAIMED, **THINKING},
          f"--alias NAME --image-min-tokens 1024 {MTP} {CACHES} --temp 0.6 --repeat-penalty 1.03 {BIG_CPU} "
          """--chat-template-kwargs '{"preserve_thinking":true}'""", says="--mmproj"),
    Shape("igpu-chat", hub(CLAIM, accelerator="vulkan", mmproj=True), {**SIZES, **CACHE_TYPES, **IGPU},
          f"--alias NAME --image-min-tokens 1024 --cont-batching --cache-prompt --cache-ram 4096 {SMALL_CPU}",
          says="--parallel 2"),
    Shape("igpu-embeddings", web(CLAIM), {**SMALL, **IGPU},
          f"--alias NAME --embeddings --pooling last --cache-ram 0 --cont-batching {SMALL_CPU} --mmap",
          says="--pooling last"),
    Shape("claimed-reranker", web(CLAIM), {**SMALL, **CLAIMED},
          f"--alias NAME --rerank --pooling rank --cache-ram 0 --cont-batching --kv-unified {SMALL_CPU} "
          "--load-mode none", says="--pooling rank"),
    Shape("igpu-small", web(CLAIM), {**SMALL, **IGPU, "flashAttention": True,
                                     "podLabels": {"igpu-workload": "true", "summaries": "true"}},
          """--alias qwen3.5-4b --chat-template-kwargs '{"enable_thinking": false}' --cont-batching --cache-ram 0 """
          f"{SMALL_CPU} --no-mmap", says="--alias igpu-small,qwen3.5-4b", aliases=("qwen3.5-4b",)),
    Shape("claimed-embeddings", web(CLAIM), {**SMALL, **CLAIMED, "flashAttention": True, "cacheTypeK": "q8_0",
                                             "cacheTypeV": "q8_0"},
          f"--alias NAME --embeddings --pooling last --cache-ram 0 --cont-batching --kv-unified {SMALL_CPU} "
          "--load-mode none", says="--embedding"),
    Shape("any-image", {"source": "pvc://models/speech", "format": "custom"},
          {"runtime": "generic", "image": "registry.example.com/speech:1", "command": ["python3"], "args": ["serve.py"],
           "containerPort": 9000, "skipModelInit": True, "priority": "normal", "runtimeClassName": "nvidia",
           "resources": {**AMOUNTS, "gpu": 1}, "podSecurityContext": {"fsGroup": 1000},
           "nodeSelector": {"feature.node.kubernetes.io/pci-10de.present": "true"},
           "env": [{"name": "HF_HOME", "value": "/cache"}],
           "extraVolumes": [{"name": "hub", "persistentVolumeClaim": {"claimName": "hub"}}],
           "extraVolumeMounts": [{"name": "hub", "mountPath": "/cache"}],
           **ENDPOINT, **DRAINED, **TOLERATIONS, **probes()}, says="serve.py"),
    Shape("big-nvidia", hub(UNCOUNTED, mmproj=True),
          {**{key: value for key, value in NVIDIA.items() if key != "priorityClassName"}, **DRAINED, **TOLERATIONS,
           "priority": "high", "nodeSelector": {"feature.node.kubernetes.io/pci-10de.present": "true"}},
          "--sleep-idle-seconds 3600 --alias org/Model-27B --cont-batching --spec-type draft-mtp "
          "--spec-draft-p-min 0.75 --spec-draft-n-max 2 --spec-draft-type-k q4_0 --spec-draft-type-v q4_0 -sps 0.75 "
          f"--cache-prompt --cache-ram 20480 --kv-unified {SAMPLING} --mmap {KWARGS}",
          says="--alias big-nvidia,org/Model-27B", aliases=("org/Model-27B",)),
    Shape("zone-embeddings", web(NAMED), {**MANAGED, **BY_ZONE},
          f"--embedding --pooling last {IDLE} --alias qwen3-embedding-0.6b --metrics",
          says="--alias zone-embeddings,qwen3-embedding-0.6b", aliases=("qwen3-embedding-0.6b",)),
    Shape("zone-reranker", web(NAMED), {**MANAGED, **BY_ZONE},
          f"--reranking --pooling rank --embedding {IDLE} --alias qwen3-reranker-0.6b --metrics",
          says="--sleep-idle-seconds 300", aliases=("qwen3-reranker-0.6b",)),
    Shape("node-embeddings", web(NAMED), {**MANAGED, **BY_NODE},
          f"--embedding --pooling last {IDLE} --alias NAME --metrics", says="--embedding"),
    Shape("node-reranker", web(NAMED), {**MANAGED, **BY_NODE},
          f"--reranking --pooling rank --embedding {IDLE} --alias NAME --metrics", says="--reranking"),
)  # fmt: skip

ROUTER: Final[Json] = {
    "apiVersion": API,
    "kind": "ModelRouter",
    "metadata": {"name": "router", "namespace": "ai"},
    "spec": {
        "defaultRoute": "big",
        "defaultRouteStrategy": "Static",
        "backends": [
            {"name": "big", "inferenceServiceRef": {"name": "big-nvidia"}},
            {"name": "small", "inferenceServiceRef": {"name": "igpu-small"}},
        ],
    },
}
POOL: Final[Json] = {
    "apiVersion": API,
    "kind": "ModelPool",
    "metadata": {"name": "pool", "namespace": "ai"},
    "spec": {
        "gpu": {"count": 1},
        "default": "big-nvidia",
        "swapPolicy": "Sticky",
        "swapBudget": "10m",
        "members": [{"inferenceServiceRef": {"name": "big-nvidia"}}, {"inferenceServiceRef": {"name": "any-image"}}],
        "nodeSelector": {"feature.node.kubernetes.io/pci-10de.present": "true"},
    },
}
