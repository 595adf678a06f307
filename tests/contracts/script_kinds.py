"""Our own kinds are judged: each bound at its ends and beyond them, each rule kept and broken.

Nothing is stored. Of an object that is taken, the spec is written down, with what the server has filled in or dropped.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from contracts.session import JSON, Operation, Session

API_VERSION: Final = "inference.llmkube.dev/v1alpha1"

Case = Mapping[str, Any]
"""Values by their dotted path below spec; a number in a path is the index of a list's item."""


async def chapter_model_specs(s: Session) -> None:
    await _judge(s, "Model", {"source": "org/repo"}, _MODELS)


async def chapter_service_specs(s: Session) -> None:
    await _judge(s, "InferenceService", {"modelRef": "m"}, _SERVICES)


async def chapter_service_rules(s: Session) -> None:
    await _judge(s, "InferenceService", {"modelRef": "m"}, _SERVICE_RULES)


async def chapter_pod_parts(s: Session) -> None:
    await _judge(s, "InferenceService", {"modelRef": "m"}, _POD_PARTS)


async def chapter_router_specs(s: Session) -> None:
    local = {"name": "mac", "inferenceServiceRef": {"name": "phi"}}
    cloud = {"name": "sky", "external": {"provider": "anthropic", "model": "big"}}
    await _judge(s, "ModelRouter", {"backends": [local]}, _ROUTERS)
    await _judge(s, "ModelRouter", {"backends": [local, cloud]}, _ROUTER_RULES)


async def chapter_changed_kinds(s: Session) -> None:
    """What was stored may stay as it is; a change is judged."""
    services = f"/apis/{API_VERSION}/namespaces/{{ns}}/inferenceservices"
    autoscaling = {"maxReplicas": 5, "minReplicas": 2}
    await s.post(services, manifest("InferenceService", {"modelRef": "m", "autoscaling": autoscaling}))
    for change in (
        {"autoscaling": {"minReplicas": 6}},
        {"autoscaling": {"maxReplicas": 1}},
        {"autoscaling": {"maxReplicas": 1, "minReplicas": 1}},
        {"autoscaling": None, "endpoint": {"nodePort": 30000}},
        {"endpoint": {"type": "NodePort", "nodePort": 30000}},
        {"endpoint": {"type": None}},
        {"runtime": "generic"},
        {"runtime": "generic", "image": "x"},
        {"replicas": 11},
        {"bogus": 1},
    ):
        await s.patch(f"{services}/a", {"spec": change})
    await s.patch(f"{services}/a/status", {"status": {"phase": "Ready", "readyReplicas": 1}})
    await s.patch(f"{services}/a/status", {"status": {"phase": "Lost"}})
    await s.patch(f"{services}/a/scale", {"spec": {"replicas": 10}})
    await s.patch(f"{services}/a/scale", {"spec": {"replicas": 11}})
    await s.get(f"{services}/a")


async def _judge(s: Session, kind: str, least: Mapping[str, Any], cases: Iterable[Case]) -> None:
    path = f"/apis/{API_VERSION}/namespaces/{{ns}}/{kind.lower()}s"
    for case in cases:
        spec: Any = {**least}
        for where, value in case.items():
            spec = _with(spec, where.split("."), value)
        operation = Operation("POST", path, manifest(kind, spec), JSON, {"dryRun": "All"})
        body = await s.send(operation, recorded=False)
        refused = body["kind"] == "Status"
        s.note(f"{kind} {case}", int(body["code"]) if refused else 201, {}, body if refused else body["spec"])


def manifest(kind: str, spec: Any) -> dict[str, Any]:
    """Return an object of one of our kinds."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "a"}, "spec": spec}


def _with(value: Any, steps: list[str], wanted: Any) -> Any:
    """Return a copy of a value with another at the end of the steps; what is missing on the way is made."""
    if not steps:
        return wanted
    step, *rest = steps
    if step.isdigit():
        items = list(value or ())
        index = int(step)
        items[index : index + 1] = [_with(items[index] if index < len(items) else None, rest, wanted)]
        return items
    return {**(value or {}), step: _with((value or {}).get(step), rest, wanted)}


def _each(path: str, *values: Any, **beside: Any) -> list[Case]:
    """One case for each value of a field; `beside` are other fields that it needs, with `__` for a dot."""
    others = {name.replace("__", "."): value for name, value in beside.items()}
    return [{**others, path: value} for value in values]


_QUANTITIES: Final = ("1", "500m", "1.5", ".5", "2.", "24Gi", "1e9", "", "-1", "+1", "4.5.5Gi", "24GB", "lots", ".", 1)

_MODELS: Final[list[Case]] = [
    *_each(
        "source",
        "https://host/m.gguf", "https://", "HTTPS://x", "hf://org/repo@rev", "org/repo@rev", "org/repo@", "single",
        "s3://bucket/key", "pvc://claim/path", "file:///a b", "builtin://demo", "/models/m.gguf", "/with space", "/",
        "gs://bucket/key", "phi3:mini", "../up", "", None, 1, "/m\n",
    ),
    *_each("format", "gguf", "mlx", "safetensors", "pytorch", "custom", "onnx", "GGUF", None),
    *_each("sha256", "a" * 64, "A" * 64, "a" * 63, "a" * 65, "g" * 64),
    *_each("refreshPolicy", "OnChange", "Always"),
    *_each("sourceSecretRef", {"name": "hub"}, {"name": ""}, {}, {"name": "x" * 253}, {"name": "x" * 254}),
    *_each("mmproj", "vision.gguf", files=["m.gguf"]),
    *_each("mmproj", "vision.gguf", ""),
    {"mmproj": "vision.gguf", "files": []},
    *_each("files", ["a", "b"], [""], "a"),
    *_each("resources.cpu", *_QUANTITIES),
    *_each("hardware", {}, None, {"accelerator": "tpu"}, {"accelerator": "metal"}),
    *_each("hardware.memoryBudget", "24Gi", "0", "0.0Gi", "0e5", "00.5", "9" * 65, ""),
    *_each("hardware.memoryFraction", 0.9, 1, 1.0, 1.01, 0, 0.0, -0.1, 1e-9, "0.5"),
    *_each("hardware.gpu.count", 0, 8, 9, -1, 1.5),
    *_each("hardware.gpu.layers", -1, -2, 2_147_483_647, 2_147_483_648),
    *_each("hardware.gpu.vendor", "amd", "matrox"),
    *_each("hardware.gpu.runtime", "rocm", "cuda"),
    *_each("hardware.gpu.sharding", {}, {"strategy": "row", "layerSplit": ["0-24", "25-48"]}, {"strategy": "half"}),
    *_each("hardware.gpu.resourceName", "nvidia.com/mig-1g.24gb", "gpu", "Nvidia.com/gpu"),
    *_each("hardware.gpu.tolerationKey", "nvidia.com/gpu", "gpu"),
    *_each(
        "hardware.gpu.resourceClaims",
        [], [{"name": "a", "resourceClaimName": "x"}], [{"name": "a", "resourceClaimTemplateName": "x"}],
        [{"name": "a"}], [{"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"}],
        [{"resourceClaimName": "x"}], [{"name": "a", "resourceClaimName": "x"}] * 2,
        [{"name": f"c{index}", "resourceClaimName": "x"} for index in range(17)],
    ),
    {"hardware.gpu.resourceName": "a/b", "hardware.gpu.resourceClaims": []},
    {"hardware.gpu.resourceName": "a/b", "hardware.gpu.resourceClaims": [{"name": "a", "resourceClaimName": "x"}]},
    *_each("prefetchTolerations", [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}], [{"bogus": 1}], [1]),
]  # fmt: skip

_SERVICES: Final[list[Case]] = [
    *_each("modelRef", "m", "", "x" * 253, "x" * 254, None, 1),
    *_each(
        "runtime",
        "llamacpp", "vllm", "tgi", "sglang", "triton", "llamacpp-router", "llama-server", "omlx", "ollama", "other",
        "VLLM", None,
    ),
    *_each("replicas", 0, 10, 11, -1, "1", 1.0, 1.5, True, None),
    *_each("priority", "batch", "critical", "urgent"),
    *_each("contextSize", 128, 127, 2_097_152, 2_097_153, 5_000_000_000, 1.5, True, [], {}),
    *_each("parallelSlots", 1, 0, 64, 65),
    *_each("batchSize", 1, 0, 16_384, 16_385),
    *_each("uBatchSize", 1, 0),
    *_each("containerPort", 1, 0, 65_535, 65_536),
    *_each("endpoint.port", 1, 0, 65_535, 65_536),
    *_each("endpoint", {}, None, {"type": "ExternalName"}),
    *_each("resources.gpu", 0, 8, 9, -1),
    *_each("resources.memory", "16Gi", "-16Gi"),
    *_each("resources.ephemeralStorage", "10Gi", "4.5.5Gi", "-1"),
    *_each("mode", "embedding", "talk"),
    *_each("cacheTypeK", "q8_0", "q9_0"),
    *_each("turboQuantBits", 3, 8, 4),
    *_each("reasoningBudget", 0, -1),
    *_each("maxPodLifetimeSeconds", 1, 0, 9_007_199_254_740_991),
    *_each("revisionHistoryLimit", 0, -1),
    *_each("rolloutPolicy", {}, {"waitForIdle": True, "idleTimeoutSeconds": 0}, {"idleTimeoutSeconds": -1}),
    *_each("disruption", {}, {"protectAlways": True}, {"protectStartup": "no"}),
    *_each("ropeScaling", {"type": "yarn", "factor": "4.0"}, {"type": "ntk"}, {}, {"type": "yarn", "factor": "4."}),
    *_each("ropeScaling.originalContext", 128, 127, ropeScaling__type="yarn"),
    *_each("vllmConfig", {}, {"dtype": "float16"}, {"dtype": "float64"}, {"kvCacheDtype": "fp8"}),
    *_each("vllmConfig.gpuMemoryUtilization", 0.1, 0.09, 0.99, 1, 0, 0.0, -1, True, "x"),
    *_each("vllmConfig.maxModelLen", 1, 0),
    *_each("vllmConfig.maxNumBatchedTokens", 512, 511),
    *_each("vllmConfig.hfTokenSecretRef", {"name": "hf", "key": "t"}, {"name": "hf"}, {"key": "t"}, {"key": ""}),
    *_each("vllmConfig.speculative.numSpeculativeTokens", 1, 0, 16, 17),
    *_each("tgiConfig", {"quantize": "eetq"}, {"quantize": "int3"}, {"dtype": "auto"}, {"maxInputLength": 0}),
    *_each("sglangConfig", {}, {"contextLength": 128}, {"contextLength": 127}, {"attentionBackend": "xformers"}),
    *_each("sglangConfig.memFractionStatic", 0.1, 0.09, 0.99, 0.991, 0),
    *_each("sglangConfig.chunkedPrefillSize", 512, 511),
    *_each("sglangConfig.loraAdapters", [{"name": "a", "path": "/a"}], [{"name": "a"}], [{"name": "", "path": "/a"}]),
    *_each("sglangConfig.toolCallParser", "qwen25", "gpt"),
    *_each("personaPlexConfig", {"quantize4Bit": True}, {"quantize4Bit": 1}),
    *_each("imagePullSecrets", [{"name": "a"}], [{}], ["a"]),
    *_each("podLabels", {"a": "b"}, {"a": 1}, {"a": None}, []),
    *_each("extraArgs", ["--mlock"], [1], "--mlock", [None]),
    *_each("unknown", 1),
]  # fmt: skip

_DRAFT: Final = {"speculativeDecoding.draftModel": "draft.gguf"}
_REF: Final = {"speculativeDecoding.draftModelRef": "small"}
_SERVICE_RULES: Final[list[Case]] = [
    *_each("autoscaling", {"maxReplicas": 1}, {"maxReplicas": 100}, {"maxReplicas": 101}, {"maxReplicas": 0}, {}),
    *_each("autoscaling.minReplicas", 1, 0, 5, 6, 10, 11, autoscaling__maxReplicas=5),
    *_each(
        "autoscaling.metrics",
        [{"type": "Pods", "name": "tgi:queue_size"}],
        [{"type": "Pods", "name": "q", "targetAverageValue": "500m"}],
        [{"type": "Pods", "name": "q", "targetAverageValue": "0"}],
        [{"type": "Pods", "name": "q", "targetAverageValue": "two"}],
        [{"type": "Pods", "name": "q", "targetAverageUtilization": 80}],
        [{"type": "Resource", "name": "cpu", "targetAverageUtilization": 80}],
        [{"type": "Resource", "name": "cpu", "targetAverageUtilization": 0}],
        [{"type": "Resource", "name": "memory", "targetAverageValue": "1Gi"}],
        [{"type": "Resource", "name": "cpu"}],
        [{"type": "Resource", "name": "cpu", "targetAverageUtilization": 80, "targetAverageValue": "1"}],
        [{"type": "Resource", "name": "gpu", "targetAverageUtilization": 80}],
        [{"type": "Object", "name": "cpu"}],
        [{"type": "Pods"}],
        [{"type": "Pods", "name": "q"}] * 17,
        autoscaling__maxReplicas=5,
    ),
    *_each("endpoint.nodePort", 30_000, 29_999, 32_767, 32_768, endpoint__type="NodePort"),
    *_each("endpoint.nodePort", 30_000, endpoint__type="LoadBalancer"),
    *_each("endpoint.nodePort", 30_000, endpoint__type="ClusterIP"),
    *_each("endpoint.nodePort", 30_000),
    *_each(
        "endpoint.gateway",
        {}, {"enabled": False}, {"enabled": True}, {"enabled": True, "gatewayRef": {"name": "g"}},
        {"gatewayRef": {}}, {"gatewayRef": {"name": "g", "namespace": "n"}},
    ),
    *_each("runtime", "generic"),
    *_each("runtime", "generic", image="x"),
    *_each("runtime", "generic", command=["/app/serve"]),
    *_each("runtime", "generic", command=[]),
    *_each("maxPodLifetimeIdleTimeoutSeconds", 0),
    *_each("maxPodLifetimeIdleTimeoutSeconds", 0, -1, maxPodLifetimeSeconds=60),
    *_each(
        "modelCache",
        {}, {"persistence": "Cached", "claimName": "c"}, {"claimName": "c"}, {"claimName": ""},
        {"persistence": "Ephemeral"}, {"persistence": "Ephemeral", "claimName": "c"}, {"persistence": "Sometimes"},
    ),
    *_each(
        "resources.gpuSharing",
        {}, {"mode": "partitioned"}, {"mode": "partitioned", "profile": "1g.24gb"}, {"profile": "1g.24gb"},
        {"mode": "partitioned", "profile": ""}, {"mode": "shared", "memoryLimitGiB": 1},
        {"mode": "shared", "memoryLimitGiB": 0}, {"memoryLimitGiB": 1}, {"mode": "split"},
        {"mode": "exclusive", "profile": "1g.24gb", "memoryLimitGiB": 4},
    ),
    *_each("resources", {"gpu": 1, "gpuSharing": {"mode": "shared"}}, {"gpu": 2, "gpuSharing": {"mode": "shared"}}),
    *_each("resources", {"gpu": 2, "gpuSharing": {}}, {"gpuSharing": {"mode": "shared"}}),
    *_each("slo.objective", "50", "49.9", "99.999", "99.9999", "100", "half", "", "5" * 17, 99),
    *_each("slo", {}, {"objective": "99", "indicator": "latency"}, {"objective": "99", "indicator": "speed"}),
    *_each("slo.latencyThreshold", "0.5", "-1", slo__objective="99", slo__indicator="latency"),
    *_each("slo.window", "5m", "1y", "d", slo__objective="99"),
    *(
        {"speculativeDecoding.type": kind, **more}
        for kind in ("none", "draft", "draft-eagle3", "draft-mtp", "mtp", "ngram-mod", "guess")
        for more in ({}, _DRAFT, _REF, {**_DRAFT, **_REF})
    ),
    *_each("speculativeDecoding.pMin", 0, 1, 1.1, -0.1, speculativeDecoding__type="mtp"),
    *_each("speculativeDecoding.nDraftMax", 1, 0, speculativeDecoding__type="mtp"),
    {"speculativeDecoding.nDraftMax": 1},
    *_each("vllmConfig.speculative", {"enabled": True}, {"enabled": False}, {"enabled": True, "model": "x"}),
    *_each("tgiConfig", {"maxInputLength": 5, "maxTotalTokens": 5}, {"maxInputLength": 5, "maxTotalTokens": 6}),
    *_each(
        "sglangConfig.speculative",
        {"enabled": True}, {"enabled": True, "algorithm": "EAGLE", "acceptThresholdAcc": 1}, {"acceptThresholdAcc": 1},
        {"enabled": True, "algorithm": "Medusa", "acceptThresholdSingle": 1.5}, {"algorithm": "GUESS"},
    ),
]  # fmt: skip

_POD_PARTS: Final[list[Case]] = [
    *_each(
        "probeOverrides.startup",
        {"tcpSocket": {"port": 8080}, "failureThreshold": 60}, {"tcpSocket": {"port": "http"}},
        {"tcpSocket": {"prot": 8080}}, {"tcpSocket": {}}, {"tcpSocket": {"port": 1.5}},
        {"tcpSocket": {"port": True}}, {"tcpSocket": {"port": []}}, {"periodSeconds": "5"},
        {"httpGet": {"port": 80, "httpHeaders": [{"name": "a"}]}}, {"grpc": {"port": 1}},
    ),
    *_each(
        "env",
        [{"name": "A", "value": "b"}], [{"name": ""}], [{"value": "b"}], [{"name": "A", "value": 1}],
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
        [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "much"}}}],
        [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}}}],
        [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}}],
        [{"name": "A", "valueFrom": {"bogus": 1}}],
    ),
    *_each(
        "extraVolumes",
        [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}], [{"name": "v", "emptyDir": {"sizeLimit": "big"}}],
        [{"emptyDir": {}}], [{"name": "v", "rbd": {"image": "i", "monitors": ["m"]}}], [{"name": "v", "fortress": {}}],
        [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}}}}],
    ),
    *_each("extraVolumeMounts", [{"name": "v", "mountPath": "/v"}], [{"name": "v"}]),
    *_each("tolerations", [{"key": "a", "tolerationSeconds": 3_000_000_000}], [{"tolerationSeconds": "1"}]),
    *_each("nodeSelector", {"a": "b"}, {"a": True}),
    *_each("securityContext", {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}}, {"runAsUser": "root"}),
    *_each("podSecurityContext", {"seccompProfile": {"type": "RuntimeDefault"}}, {"seccompProfile": {}}),
    *_each(
        "affinity",
        {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
    ),
    *_each(
        "topologySpreadConstraints",
        [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}], [{"maxSkew": 1}],
    ),
]  # fmt: skip

_MAC: Final = {"name": "mac", "inferenceServiceRef": {"name": "phi"}}
_ROUTERS: Final[list[Case]] = [
    {},
    *_each("backends", [], None, "mac", [_MAC, _MAC], [{**_MAC, "name": f"b{index}"} for index in range(65)]),
    *_each("backends.0.name", "a-1", "A", "", "-a", "x" * 63, "x" * 64),
    *_each("backends.0.tier", "local", "cloud", "sky"),
    *_each("backends.0.external", {"provider": "openai", "model": "x"}, None, {}),
    {"backends": [{"name": "none"}]},
    *(
        {"backends": [{"name": "sky", "external": external, **tier}]}
        for external in (
            {"provider": "openai", "model": "x"},
            {"provider": "openai", "model": "x", "url": "http://vllm.lan:8000"},
            {"provider": "bedrock", "model": "x"},
            {"provider": "vertex_ai", "model": "x", "url": "https://eu.example.com"},
            {"provider": "openai", "model": ""},
            {"provider": "other", "model": "x"},
            {"provider": "openai", "model": "x", "url": "ftp://x"},
        )
        for tier in ({}, {"tier": "local"}, {"tier": "cloud"})
    ),
    *_each("backends.0.inferenceServiceRef", {"name": ""}, {}),
    *_each("backends.0.weight", 0, -1),
    *_each(
        "backends.0.timeout",
        "100ms", "99ms", "30m", "30m1s", "1.5s", "1m30s", "0.5h", "0.6h", "5", "", "1d", "1s1", "1" * 33 + "s",
    ),
    *_each("backends.0.healthCheck", {}, {"intervalSeconds": 0}, {"timeoutSeconds": 1}),
    *_each("backends.0.costPerMillionTokens", {"promptUSD": "0.15"}, {"promptUSD": ".15"}, {"completionUSD": "-1"}),
    *_each("dataPlane", "Proxy", "Gateway", "Wire"),
    {"dataPlane": "Gateway", "gatewayRef": {"name": "g"}},
    *_each("defaultRouteStrategy", "BackendNameMatch", "Random"),
    *_each("endpoint.nodePort", 30_000),
    *_each("proxy.replicas", 1, 0, 10, 11),
    *_each("proxy.quarantineDuration", "15s", "soon"),
    *_each("proxy.responseHeaderTimeout", "2m", "31m"),
    *_each(
        "proxy.resources",
        {"requests": {"cpu": "50m", "memory": 1}}, {"limits": {"cpu": "much"}}, {"claims": [{"name": "a"}] * 2},
        {"claims": [{}]},
    ),
]  # fmt: skip

_TO_MAC: Final = {"name": "r", "route": {"backends": ["mac"]}}
_TO_SKY: Final = {"name": "r", "route": {"backends": ["mac", "sky"]}}


def _about(*classes: str) -> dict[str, Any]:
    return {"match": {"dataClassification": list(classes)}}


_ROUTER_RULES: Final[list[Case]] = [
    *_each("defaultRoute", "mac", "moon", ""),
    *_each(
        "rules",
        [],
        [_TO_SKY],
        [_TO_MAC, _TO_MAC],
        [{"name": "r", "route": {"backends": []}}],
        [{"name": "r", "route": {"backends": ["moon"]}}],
        [{"name": "r", "route": {}}],
        [{"name": "r"}],
        [{"route": {"backends": ["mac"]}}],
        [{**_TO_SKY, "route": {"backends": ["sky"], "strategy": "random"}}],
        [{**_TO_SKY, "timeout": "1ms"}],
        [{**_TO_MAC, "match": {"latencySLOMs": 0}}],
        [{**_TO_MAC, "match": {"taskComplexity": "hard"}}],
        [{**_TO_MAC, "match": {"headers": {"x": "y"}, "models": ["gpt-*"]}}],
        [{**_TO_MAC, **_about("pii"), "failClosed": True}],
        [{**_TO_MAC, **_about("PII")}],
        [{**_TO_MAC, **_about("public", "Phi"), "failClosed": False}],
        [{**_TO_SKY, **_about("pii"), "failClosed": True}],
        [{**_TO_SKY, **_about("pii")}],
        [{**_TO_SKY, **_about("public")}],
        [{**_TO_MAC, **_about("")}],
        [{**_TO_MAC, **_about(*("c" * size for size in range(1, 18)))}],
        [{**_TO_MAC, "name": f"r{index}"} for index in range(64)],
        [{**_TO_MAC, "name": f"r{index}"} for index in range(65)],
    ),
    *_each("policy.classification", {}, {"mode": "hybrid"}, {"mode": "oracle"}, {"sensitiveClassifications": []}),
    *_each(
        "rules",
        [{**_TO_SKY, **_about("pii")}],
        [{**_TO_SKY, **_about("secret"), "failClosed": True}],
        [{**_TO_MAC, **_about("secret"), "failClosed": True}],
        policy={"classification": {"sensitiveClassifications": ["Secret"]}},
    ),
    *_each(
        "rules",
        [{"name": "r", "route": {"backends": ["sky"]}, **_about("pii"), "failClosed": True}],
        backends__1__tier="local",
        backends__1__external__url="http://vllm.lan",
    ),
    *_each(
        "policy.budgets",
        [{"name": "b", "scope": "router", "maxTokens": 1}],
        [{"name": "b", "scope": "router", "maxUSD": "1.50"}],
        [{"name": "b", "scope": "router"}],
        [{"name": "b", "scope": "router", "maxTokens": 0}],
        [{"name": "b", "scope": "router", "maxTokens": 1, "windowSeconds": 0}],
        [{"name": "b", "scope": "rule", "maxTokens": 1}],
        [{"name": "b", "scope": "rule", "ruleName": "r", "maxTokens": 1}],
        [{"name": "b", "scope": "rule", "ruleName": "q", "maxTokens": 1}],
        [{"name": "b", "scope": "team", "ruleName": "r", "maxTokens": 1}],
        [{"name": "b", "scope": "team", "maxTokens": 1}] * 2,
        [{"name": "b", "scope": "town", "maxTokens": 1}],
        rules=[_TO_MAC],
    ),
    *_each("policy.auth", {}, {"allowlists": []}, {"allowlists": [{"team": "a"}]}),
    *_each(
        "policy.auth.allowlists",
        [{"team": "a", "models": ["m"]}], [{"team": "a"}] * 2, [{"team": " a"}], [{"team": ""}], [{}],
        policy__auth__jwt={"provider": "p", "issuer": "i", "jwksURI": "u", "teamClaim": "t"},
    ),
    *_each("policy.auth.jwt", {"provider": "p", "issuer": "i", "jwksURI": "u", "teamClaim": ""}, {"provider": "p"}),
    *_each("policy.auditLog", {}, {"sink": "file"}, {"sink": "file", "filePath": "/a"}, {"sink": "syslog"}),
    *_each("mcpServer", {"enabled": True}),
]  # fmt: skip
