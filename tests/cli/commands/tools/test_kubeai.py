"""`llmkube convert` reads Models of KubeAI in the shapes of its documented samples, or refuses the field by name."""

import pytest
import yaml
from click.testing import CliRunner

from llmkube.base.errors import UserError
from llmkube.cli.main import cli
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.registry import check, container_plan_for

CHAT, L4, FLAGS = ["TextGeneration"], "nvidia-gpu-l4:1", ["--max-model-len=16384", "--gpu-memory-utilization=0.9"]
HUB = "hf://org/chat-8b-fp8"
NVIDIA = {"accelerator": "cuda", "gpu": {"enabled": True, "count": 1, "vendor": "nvidia"}}
WAKES = {"mode": "OnRequest"}

SERVED = {
    "vllm on a GPU": (
        {"features": CHAT, "url": HUB, "engine": "VLLM", "args": FLAGS, "resourceProfile": L4},
        {"source": HUB, "format": "safetensors", "hardware": NVIDIA},
        {"runtime": "vllm", "replicas": 1, "activation": WAKES, "extraArgs": FLAGS},
    ),
    "vllm on eight GPUs, with variables, scaled": (
        {
            "features": CHAT,
            "url": HUB,
            "engine": "VLLM",
            "env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
            "args": ["--tensor-parallel-size=8"],
            "resourceProfile": "nvidia-gpu-h100:8",
            "minReplicas": 1,
            "maxReplicas": 3,
            "targetRequests": 500,
        },
        {"hardware": NVIDIA | {"gpu": NVIDIA["gpu"] | {"count": 8}}},
        {
            "env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}],
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
            "extraArgs": ["--tensor-parallel-size=8"],
            "activation": None,
        },
    ),
    "vllm on AMD": (
        {"features": CHAT, "url": HUB, "engine": "VLLM", "resourceProfile": "amd-gpu-mi300x:1", "minReplicas": 1},
        {"hardware": {"accelerator": "rocm", "gpu": {"enabled": True, "count": 1, "vendor": "amd"}}},
        {"runtime": "vllm"},
    ),
    "sglang": (
        {"features": CHAT, "url": HUB, "engine": "SGLang", "resourceProfile": L4, "args": ["--context-length=2048"]},
        {"format": "safetensors"},
        {"runtime": "sglang", "extraArgs": ["--context-length=2048"]},
    ),
    "vllm on CPUs": (
        {"features": CHAT, "url": HUB, "engine": "VLLM", "env": {"VLLM_CPU_KVCACHE_SPACE": "4"}},
        {"hardware": {"accelerator": "cpu"}},
        {"runtime": "vllm", "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]},
    ),
    "sglang on CPUs, with an image": (
        {"features": CHAT, "url": HUB, "engine": "SGLang", "image": "example.org/sglang:cpu"},
        {"hardware": {"accelerator": "cpu"}},
        {"runtime": "sglang", "image": "example.org/sglang:cpu"},
    ),
    "vllm, a folder of a claim": (
        {"features": CHAT, "url": "pvc://claim/folder", "engine": "VLLM", "resourceProfile": L4},
        {"source": "pvc://claim/folder", "format": "safetensors"},
        {"runtime": "vllm"},
    ),
    "replicas without autoscaling": (
        {"features": CHAT, "url": HUB, "engine": "VLLM", "autoscalingDisabled": True, "replicas": 2}
        | {"resourceProfile": L4},
        {"source": HUB},
        {"replicas": 2, "activation": None, "autoscaling": None},
    ),
    "llama.cpp on a GPU": (
        {"url": "hf://org/small-GGUF:Q8_0", "engine": "LlamaCpp", "resourceProfile": "nvidia-gpu-t4:1"}
        | {"args": ["--n-gpu-layers", "99"]},
        {"hardware": NVIDIA},
        {"extraArgs": ["--n-gpu-layers", "99"]},
    ),
    "llama.cpp, a quantization of a repository": (
        {"url": "hf://org/small-GGUF:Q8_0", "engine": "LlamaCpp", "args": ["--ctx-size", "2048"], "minReplicas": 0},
        {"source": "hf://org/small-GGUF:Q8_0", "format": "gguf", "hardware": {"accelerator": "cpu"}},
        {"runtime": "llamacpp", "activation": WAKES, "extraArgs": ["--ctx-size", "2048"]},
    ),
    "llama.cpp, embeddings": (
        {"features": ["TextEmbedding"], "url": "hf://org/embed-GGUF", "engine": "LlamaCpp", "resourceProfile": "cpu:1"},
        {"source": "hf://org/embed-GGUF"},
        {"mode": "embedding"},
    ),
    "llama.cpp, a file of a claim": (
        {"features": CHAT, "url": "pvc://claim/folder?model=a-00001-of-00003.gguf", "engine": "LlamaCpp"},
        {"source": "pvc://claim/folder/a-00001-of-00003.gguf"},
        {"runtime": "llamacpp"},
    ),
    "ollama": (
        {"features": CHAT, "url": "ollama://qwen2:0.5b", "engine": "OLlama", "resourceProfile": "cpu:1"},
        {"source": "ollama://qwen2:0.5b"},
        {"runtime": "ollama"},
    ),
}
"""Samples by their shape: the spec there, and parts of the specs here."""

NEEDS_IMAGE = {
    "vllm on AMD": "spec.image: LLMKube has no image for vllm on rocm; name one",
    "vllm on CPUs": "spec.image: that of vllm is for GPUs here; name one for CPUs",
}

REFUSED = {
    "spec.engine": {"url": "hf://org/bge", "engine": "Infinity", "features": ["Reranking"]},
    "spec.engine ": {"url": "hf://org/whisper", "engine": "FasterWhisper", "features": ["SpeechToText"]},
    "spec.features": {"url": HUB, "engine": "VLLM", "features": ["SpeechToText"]},
    "spec.resourceProfile": {"url": HUB, "engine": "VLLM", "resourceProfile": "google-tpu-v5e-2x2:4"},
    "spec.url": {"url": "gs://bucket/model", "engine": "VLLM"},
    "spec.url ": {"url": "ollama://host:5000/m?pull=false", "engine": "OLlama"},
    "spec.url  ": {"url": "pvc://claim?model=qwen:0.5b", "engine": "OLlama"},
    "spec.url   ": {"url": "oci://registry.example.org/model:1", "engine": "VLLM"},
    "spec.resourceProfile ": {"url": HUB, "engine": "VLLM", "resourceProfile": "nvidia-gpu-a100:4:2"},
    "spec.envFrom": {"url": HUB, "engine": "VLLM", "envFrom": [{"secretRef": {"name": "s"}}]},
    "spec.jsonPatches": {"url": HUB, "engine": "VLLM", "jsonPatches": [{"op": "remove", "path": "/spec/priority"}]},
    "spec.files": {"url": HUB, "engine": "VLLM", "files": [{"path": "/config/t.jinja", "content": "x"}]},
    "spec": 5,
    "spec.args": {"url": HUB, "engine": "VLLM", "args": 5},
    "spec.args[1]": {"url": HUB, "engine": "VLLM", "args": ["--a", 5]},
    "spec.env": {"url": HUB, "engine": "VLLM", "env": [5]},
    "spec.maxReplicas": {"url": HUB, "engine": "VLLM", "maxReplicas": "many"},
    "spec.adapters": {"url": HUB, "engine": "VLLM", "adapters": [{"name": "a", "url": "hf://org/lora"}]},
}


def convert(spec):
    body = {"apiVersion": "kubeai.org/v1", "kind": "Model", "metadata": {"name": "m"}, "spec": spec}
    done = CliRunner().invoke(cli, ["convert", "-f", "-"], input=yaml.safe_dump(body))
    return done, [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.mark.parametrize("shape", SERVED)
def test_a_sample_becomes_two_objects_that_the_api_and_its_runtime_accept(shape):
    """No field is refused by the definitions; pods are planned for it, or it is one that only hosts serve."""
    spec, model, service = SERVED[shape]
    done, objects = convert(spec)
    assert done.exit_code == 0, done.stderr
    assert [each["kind"] for each in objects] == ["Model", "InferenceService"]
    assert {key: objects[0]["spec"].get(key) for key in model} == model
    assert {key: objects[1]["spec"].get(key) for key in service} == service
    assert "will be refused" not in done.stderr
    decoded, weights = decode(InferenceService, objects[1]), decode(Model, objects[0])
    assert ("spec.image" in done.stderr) == (shape in NEEDS_IMAGE)
    assert NEEDS_IMAGE.get(shape, "") in done.stderr
    if "rocm" in NEEDS_IMAGE.get(shape, ""):
        with pytest.raises(UserError):
            container_plan_for(decoded, weights, rendered=RENDERED)
    elif spec["engine"] == "OLlama":
        check(decoded, weights)
    else:
        assert container_plan_for(decoded, weights, rendered=RENDERED).args
    if "targetRequests" in spec:
        assert "spec.targetRequests: left out" in done.stderr


@pytest.mark.parametrize("field", REFUSED)
def test_what_has_no_counterpart_is_refused_by_its_field(field):
    """Nothing is printed for it, and the exit code is not 0."""
    done, objects = convert(REFUSED[field])
    assert (done.exit_code != 0, objects) == (True, [])
    assert isinstance(done.exception, SystemExit)
    assert f"{field.strip()}: " in done.stderr
