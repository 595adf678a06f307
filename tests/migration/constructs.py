"""Every construct of the original's manifests: what it sets, and what has to come of it here.

A construct is a way to use fields; `gives` are words that stand in the objects that are made of it, `says` are words of
the status of the service or its Model.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

Json = dict[str, Any]


@attrs.frozen
class Construct:
    """A use of fields, with its verdict: what it gives, or what is said where it gives nothing.

    Attributes:
        name: What it is, and the name of both objects.
        service: Fields of the InferenceService's spec.
        model: Fields of the Model's spec; `source` is a file of the hub where it is not set.
        gives: Words of what is made of it; none of its fields may then be said to have no effect, but those of `lost`.
        says: Words of conditions, or of the API server where it refuses one of the two.
        lost: Fields that the status names as without effect, beside what others give.
    """

    name: str
    service: Mapping[str, Any] = attrs.field(factory=dict)
    model: Mapping[str, Any] = attrs.field(factory=dict)
    gives: str = ""
    says: str = ""
    lost: frozenset[str] = frozenset()


def _gpu(count: int = 1, **more: Any) -> Json:
    return {"hardware": {"accelerator": "cuda", "gpu": {"enabled": True, "count": count, **more}}}


def _engine(name: str, **more: Any) -> Json:
    config = {"vllm": "vllmConfig", "sglang": "sglangConfig", "tgi": "tgiConfig", "personaplex": "personaPlexConfig"}
    return {"runtime": name, **({config[name]: more} if more else {})}


REPOSITORY: Final[Json] = {"source": "org/repo", "format": "safetensors"}
PERSONA: Final[Json] = {"image": "example.org/persona:1"}
SLO: Final[Json] = {"objective": "99", "window": "4w", "name": "fast"}
VOLUME: Final[Json] = {"name": "more", "configMap": {"name": "templates"}}
SECRET: Final[Json] = {"name": "hf", "key": "token", "optional": True}

SOURCES: Final = (
    Construct("web-file", model={"source": "https://example.org/m.gguf"}, gives="--model"),
    Construct("hub-page", model={"source": "https://huggingface.co/org/repo/resolve/main/m.gguf"}, gives="--model"),
    Construct("hub-repository", {"runtime": "vllm"}, {**REPOSITORY, "source": "hf://org/repo@v1"}, gives="org/repo"),
    Construct("hub-files", model={"source": "org/repo", "files": ["m.gguf"]}, gives="--model"),
    Construct("bucket", model={"source": "s3://bucket/m.gguf", "sourceSecretRef": {"name": "s3"}}, gives="--model"),
    Construct("volume", model={"source": "pvc://claim/a/m.gguf"}, says="there is no PersistentVolumeClaim"),
    Construct("node-file", model={"source": "/models/m.gguf"}, says="workloads.allow.hostPaths"),
    Construct("node-url", model={"source": "file:///models/m.gguf"}, says="workloads.allow.hostPaths"),
    Construct("image-file", model={"source": "oci://r.io/phi:q4", "files": ["m.gguf"]}, gives="r.io/phi:q4"),
    Construct("image-alone", model={"source": "oci://r.io/phi:q4"}, says="spec.files"),
    Construct("digest", model={"sha256": "ab" * 32}, gives="--model"),
    Construct("second-file", model={"source": "org/repo", "files": ["m.gguf"], "mmproj": "mmproj.gguf"},
              gives="--mmproj"),
    Construct("quantization", model={"quantization": "Q4_K_M", "format": "gguf"}, gives="--model"),
    Construct("prefetch", model={"prefetch": True, "prefetchTolerations": [{"key": "a", "operator": "Exists"}]},
              gives="--model"),
    Construct("followed", model={"refreshPolicy": "OnChange"}, gives="--model"),
    Construct("model-resources", model={"resources": {"cpu": "3", "memory": "5Gi"}}, gives='"memory": "5Gi"'),
    Construct("model-budget", model={"hardware": {"accelerator": "cuda", "memoryBudget": "9Gi"}}, gives="9Gi"),
    Construct("model-fraction", model={"hardware": {"accelerator": "cuda", "memoryFraction": 0.5}},
              says="Model.spec.hardware.memoryFraction"),
)  # fmt: skip

GPUS: Final = (
    Construct("gpus-of-the-model", model=_gpu(2, vendor="nvidia"), gives='"nvidia.com/gpu": "2"'),
    Construct("gpus-of-the-service", {"resources": {"gpu": 3}}, gives='"nvidia.com/gpu": "3"'),
    Construct("gpu-name", model=_gpu(resourceName="example.com/gpu"), gives='"example.com/gpu": "1"'),
    Construct("gpu-toleration", model=_gpu(tolerationKey="example.com/theirs"), gives='"key": "example.com/theirs"'),
    Construct("gpu-layers", model=_gpu(layers=12), gives="--n-gpu-layers 12"),
    Construct("gpu-memory", model=_gpu(memory="24Gi"), says="Model.spec.hardware.gpu.memory"),
    Construct("gpu-vulkan", model={"hardware": {"accelerator": "vulkan", "gpu": {"enabled": True, "count": 1,
              "vendor": "amd", "runtime": "vulkan"}}}, gives="amd.com/gpu"),
    Construct("gpu-claims", model=_gpu(resourceClaims=[{"name": "g", "resourceClaimTemplateName": "t"}]),
              gives='"resourceClaimTemplateName": "t"'),
    Construct("split-layer", model=_gpu(2, sharding={"strategy": "layer"}), gives="--split-mode layer"),
    Construct("split-tensor", model=_gpu(2, sharding={"strategy": "tensor"}), gives="--split-mode"),
    Construct("split-ranges", model=_gpu(2, sharding={"strategy": "layer", "layerSplit": ["0-24", "25-39"]}),
              gives="--tensor-split"),
    Construct("split-none", model=_gpu(2, sharding={"strategy": "none"}), gives="--split-mode none"),
    Construct("mig", {"resources": {"gpu": 1, "gpuSharing": {"mode": "partitioned", "profile": "1g.10gb"}}},
              gives="nvidia.com/mig-1g.10gb"),
    Construct("shared-gpu", {"resources": {"gpu": 1, "gpuSharing": {"mode": "shared"}}},
              says="spec.resources.gpuSharing"),
    Construct("gpu-memory-of-the-service", {"resources": {"gpu": 1, "gpuMemory": "8Gi"}},
              says="spec.resources.gpuMemory"),
)  # fmt: skip

LLAMA: Final = tuple(
    Construct(name, service, gives=gives)
    for name, service, gives in (
        ("address", {"bindAddress": "0.0.0.0"}, "--host"),
        ("context", {"contextSize": 8192}, "--ctx-size 8192"),
        ("rope", {"ropeScaling": {"type": "yarn", "factor": "2", "originalContext": 4096}}, "--rope-scaling yarn"),
        ("slots", {"parallelSlots": 3}, "--parallel 3"),
        ("flash", {"flashAttention": True}, "--flash-attn on"),
        ("jinja", {"jinja": True}, "--jinja"),
        ("cache-types", {"cacheTypeK": "q8_0", "cacheTypeV": "q8_0"}, "--cache-type-k q8_0"),
        ("custom-cache-types", {"cacheTypeCustomK": "turbo3", "cacheTypeCustomV": "turbo3"}, "--cache-type-v turbo3"),
        ("experts-on-cpu", {"moeCPUOffload": True}, "--cpu-moe"),
        ("some-experts-on-cpu", {"moeCPULayers": 4}, "--n-cpu-moe 4"),
        ("cache-on-cpu", {"noKvOffload": True}, "--no-kv-offload"),
        ("tensors", {"tensorOverrides": ["exps=CPU"]}, "--override-tensor exps=CPU"),
        ("keys", {"metadataOverrides": ["a.b=int:1"]}, "--override-kv a.b=int:1"),
        ("batches", {"batchSize": 512, "uBatchSize": 256}, "--ubatch-size 256"),
        ("cold", {"noWarmup": True}, "--no-warmup"),
        ("guessing", {"speculativeDecoding": {"type": "mtp", "nDraftMax": 3, "pMin": 0.5}}, "--spec-type draft-mtp"),
        ("budget", {"reasoningBudget": 100, "reasoningBudgetMessage": "Enough."}, "--reasoning-budget 100"),
        ("embedding", {"mode": "embedding"}, "--embedding"),
        ("rerank", {"mode": "rerank"}, "--reranking"),
        ("arguments", {"extraArgs": ["--threads", "3"]}, "--threads 3"),
        ("names", {"aliases": ["org/other"]}, "org/other"),
    )
)  # fmt: skip
"""The rows of the table of llama.cpp's arguments, and what has come since."""

ENGINES: Final = (
    Construct("draft-file", {"speculativeDecoding": {"type": "draft", "draftModel": "d.gguf"}},
              {"source": "org/repo", "files": ["m.gguf", "d.gguf"]}, gives="d.gguf"),
    Construct("draft-elsewhere", {"speculativeDecoding": {"type": "draft", "draftModel": "d.gguf"}},
              says="add it to its spec.files"),
    Construct("router-of-models", {"runtime": "llamacpp-router", "extraVolumes": [VOLUME],
              "extraVolumeMounts": [{"name": "more", "mountPath": "/models"}]}, gives="--models-dir"),
    Construct("vllm", _engine("vllm", maxModelLen=2048, dtype="float16", quantization="awq", maxNumBatchedTokens=512,
              kvCacheDtype="fp8_e5m2", attentionBackend="FLASHINFER", enablePrefixCaching=True,
              enableChunkedPrefill=True),
              REPOSITORY, gives="--max-model-len 2048"),
    Construct("vllm-context", {"runtime": "vllm", "contextSize": 8192, "parallelSlots": 2}, REPOSITORY,
              gives="org/repo", lost=frozenset({"spec.contextSize"})),
    Construct("vllm-gpus", _engine("vllm", tensorParallelSize=2, gpuMemoryUtilization=0.8, hfTokenSecretRef=SECRET),
              {**REPOSITORY, **_gpu(2)}, gives="--tensor-parallel-size 2"),
    Construct("vllm-pipeline", _engine("vllm", pipelineParallelSize=2), {**REPOSITORY, **_gpu(2)},
              gives="--pipeline-parallel-size 2"),
    Construct("vllm-experts", _engine("vllm", enableExpertParallel=True, kvCacheCustomDtype="turbo"),
              {**REPOSITORY, **_gpu()}, gives="--enable-expert-parallel"),
    Construct("vllm-guessing", _engine("vllm", speculative={"enabled": True, "model": "org/d",
              "numSpeculativeTokens": 3}), {**REPOSITORY, **_gpu()}, gives="org/d"),
    Construct("vllm-offload", _engine("vllm", cpuOffloadGB=4), {**REPOSITORY, **_gpu()}, gives="--cpu-offload-gb 4"),
    Construct("tgi", _engine("tgi", quantize="awq", dtype="float16", hfTokenSecretRef=SECRET),
              REPOSITORY, gives="--quantize awq"),
    Construct("tgi-lengths", _engine("tgi", maxInputLength=100, maxTotalTokens=200), REPOSITORY,
              gives="--max-total-tokens 200"),
    Construct("sglang", _engine("sglang", contextLength=2048, memFractionStatic=0.7, maxRunningRequests=4,
              chunkedPrefillSize=512, quantization="fp8", kvCacheDtype="fp8_e5m2", attentionBackend="flashinfer",
              enablePrefixCaching=True, toolCallParser="qwen25", reasoningParser="qwen3", chatTemplate="chatml",
              skipTokenizerInit=True, trustRemoteCode=True, logLevel="info", hfTokenSecretRef=SECRET),
              {**REPOSITORY, **_gpu()}, gives="--context-length 2048"),
    Construct("sglang-gpus", _engine("sglang", tensorParallelSize=2, dataParallelSize=1, expertParallelSize=2,
              kvCacheCustomDtype="x"), {**REPOSITORY, **_gpu(2)}, gives="--tp"),
    Construct("sglang-adapters", _engine("sglang", loraAdapters=[{"name": "a", "path": "/a"}], maxLoraRank=8,
              loraTargetModules=["q_proj"]), {**REPOSITORY, **_gpu()}, gives="--lora-paths"),
    Construct("sglang-modules", _engine("sglang", loraModules=["a=/a"]), {**REPOSITORY, **_gpu()},
              gives="--lora-paths"),
    Construct("sglang-guessing", _engine("sglang", speculative={"enabled": True, "algorithm": "EAGLE",
              "draftModelPath": "org/d"}),
              {**REPOSITORY, **_gpu()}, gives="--speculative-algorithm EAGLE"),
    Construct("personaplex", {**_engine("personaplex", quantize4Bit=True, cpuOffload=True, hfTokenSecretRef=SECRET),
              **PERSONA}, REPOSITORY, gives="--cpu-offload"),
    Construct("generic", {"runtime": "generic", "image": "x.io/e:1", "command": ["/e"], "args": ["serve"],
              "containerPort": 9000, "skipModelInit": True, "metricsPath": "/m"}, gives='"containerPort": 9000'),
    Construct("generic-without-image", {"runtime": "generic"}, says="runtime generic has no image of its own"),
    Construct("arguments-elsewhere", {"args": ["--x"]}, says="spec.args"),
)  # fmt: skip

PODS: Final = (
    Construct("pod-image", {"image": "x.io/llama:1", "imagePullSecrets": [{"name": "pull"}]}, gives='"name": "pull"'),
    Construct("pod-command", {"command": ["/app/llama-server"]}, gives='"/app/llama-server"'),
    Construct("pod-env", {"env": [{"name": "A", "value": "b"}]}, gives='"name": "A"'),
    Construct("pod-probes", {"probeOverrides": {each: {"httpGet": {"path": "/mine", "port": 8080}} for each in
              ("startup", "liveness", "readiness")}}, gives='"/mine"'),
    Construct("pod-amounts", {"resources": {"cpu": "2", "memory": "7Gi", "ephemeralStorage": "1Gi"}}, gives="7Gi"),
    Construct("pod-host-memory", {"resources": {"hostMemory": "11Gi"}}, gives="11Gi"),
    Construct("pod-place", {"nodeSelector": {"a": "b"}, "runtimeClassName": "nvidia",
              "tolerations": [{"key": "k", "operator": "Exists"}]}, gives='"runtimeClassName": "nvidia"'),
    Construct("pod-affinity", {"affinity": {"podAntiAffinity": {}}}, gives="podAntiAffinity"),
    Construct("pod-spread", {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
              "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]}, gives='"topologyKey": "zone"'),
    Construct("pod-labels", {"podLabels": {"l": "m"}, "podAnnotations": {"n": "o"}}, gives='"l": "m"'),
    Construct("pod-group", {"podSecurityContext": {"fsGroup": 1000, "supplementalGroups": [44]}}, gives="1000"),
    Construct("pod-root", {"securityContext": {"privileged": True}}, says="workloads.allow"),
    Construct("pod-volumes", {"extraVolumes": [VOLUME], "extraVolumeMounts": [{"name": "more", "mountPath": "/t"}]},
              gives='"mountPath": "/t"'),
    Construct("host-volume", {"extraVolumes": [{"name": "h", "hostPath": {"path": "/"}}]}, says="workloads.allow"),
    Construct("pod-history", {"revisionHistoryLimit": 3}, gives='"revisionHistoryLimit": 3'),
    Construct("pod-class", {"priorityClassName": "theirs"}, says="workloads.allow.priorityClasses"),
    Construct("pod-rank", {"priority": "high"}, gives='"replicas": 1'),
    Construct("pod-protection", {"disruption": {"protectStartup": True, "protectAlways": True}},
              gives='"maxUnavailable": 0'),
    Construct("pod-lifetime", {"maxPodLifetimeSeconds": 86400, "maxPodLifetimeIdleTimeoutSeconds": 600},
              gives='"replicas": 1'),
    Construct("drained", {"rolloutPolicy": {"waitForIdle": True, "idleTimeoutSeconds": 900, "force": True}},
              gives='"replicas": 1'),
    Construct("cache-claim", {"modelCache": {"claimName": "mine"}}, gives='"claimName": "mine"'),
    Construct("cache-none", {"modelCache": {"persistence": "Ephemeral"}}, gives="emptyDir"),
    Construct("front", {"endpoint": {"port": 9090, "type": "NodePort", "nodePort": 30080, "path": "/v1/x"}},
              gives='"nodePort": 30080'),
    Construct("front-gateway", {"endpoint": {"gateway": {"enabled": True, "parentRefs": [{"name": "g"}]}}},
              says="spec.endpoint.gateway"),
    Construct("keys-of-a-secret", {"apiKeySecretRef": {"name": "keys", "key": "k"}}, gives='"keys"'),
    Construct("scaled", {"autoscaling": {"minReplicas": 1, "maxReplicas": 3, "metrics": [
              {"type": "Resource", "name": "cpu", "targetAverageUtilization": 80}]}}, gives='"maxReplicas": 3'),
    Construct("several", {"replicas": 4}, gives='"replicas": 4'),
    Construct("suspended", {"suspend": True}, says="Suspended"),
    Construct("objective", {"slo": SLO}, says="Pyrra"),
    Construct("group-of-nodes", {**_engine("vllm"), "multiNode": {"members": [{"node": "a"}, {"node": "b"}]}},
              {**REPOSITORY, **_gpu()},
              says="spec.multiNode needs LeaderWorkerSets"),
)  # fmt: skip

MACS: Final = (
    Construct("no-eviction", {"evictionProtection": True}, says="spec.evictionProtection"),
    Construct("hot-cache", {"hotCacheMaxSize": "1Gi", "pagedSSDCacheDir": "/c", "pagedSSDCacheMaxSize": "2Gi"},
              says="spec.hotCacheMaxSize"),
    Construct("turbo-quant", {"turboQuantBits": 4}, says="spec.turboQuantBits"),
    Construct("on-a-mac", model={"hardware": {"accelerator": "metal"}}, says="metal"),
)  # fmt: skip
"""What means something on a Mac alone."""

CONSTRUCTS: Final = (*SOURCES, *GPUS, *LLAMA, *ENGINES, *PODS, *MACS)

ELSEWHERE: Final[Mapping[str, str]] = {
    "InferenceService modelRef": "each construct has it",
    "InferenceService hosts.modelRef": "ours: pods and hosts under one name (tests/sim/test_pods_and_hosts.py)",
    "InferenceService hosts.replicas": "ours: pods and hosts under one name (tests/sim/test_pods_and_hosts.py)",
    "InferenceService speculativeDecoding.draftModelRef": "two Models (tests/sim/test_drafts.py)",
    "InferenceService multiNode.rdmaResource": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService multiNode.ibGIDIndex": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService multiNode.rendezvousPort": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService slo.indicator": "needs Pyrra (tests/controller/render/test_monitoring.py)",
    "InferenceService slo.latencyThreshold": "needs Pyrra (tests/controller/render/test_monitoring.py)",
}
"""Fields that no construct sets, and what shows them."""
