"""The manifests printed in the guides yield the objects that the guides describe."""

from pathlib import Path

import attrs
import yaml

from controller.podcluster import open_pods
from controller.podobjects import SETTINGS
from llmkube.k8s.builtins import Service
from llmkube.k8s.workloads import Deployment, Job

GUIDES = Path(__file__).parents[2] / "k8s" / "data" / "guide-manifests.yaml"
PRINTED = {
    (one["kind"], one["metadata"]["name"]): one["spec"]
    for one in yaml.safe_load_all(GUIDES.read_text(encoding="utf-8"))
    if one
}
CLASSES = attrs.evolve(SETTINGS, priority_class_prefix="llmkube-")


def service_of(name):
    return PRINTED[("InferenceService", name)]


async def serve(hands, name, source):
    """Apply a guide's service, and a Model of its reference if the guide prints none."""
    spec = service_of(name)
    model = PRINTED.get(("Model", spec["modelRef"]))
    body = dict(model) if model else {"source": source, "hardware": {"accelerator": "cuda"}}
    await hands.create_model(spec["modelRef"], **body)
    await hands.apply(name, **spec)


async def test_the_reference_example_is_served(autojump_clock):
    """Qwen3 on CUDA: a Job first; then two pods of 1 GPU, 2 CPUs and 16Gi, with class, runtime class and labels."""
    async with open_pods(workloads=CLASSES) as hands:
        await serve(hands, "chat-prod", "")
        assert await hands.where("chat-prod") == "Pending/Pending"
        await hands.finish_job()
        assert await hands.where("chat-prod") == "Creating/Creating"
        live = await hands.json(Deployment, "chat-prod")
        template = live["spec"]["template"]
        [container, _] = template["spec"]["containers"]
        assert live["spec"]["replicas"] == 2
        assert template["metadata"]["labels"]["cost-center"] == "ai-platform"
        assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "true"
        assert template["spec"]["runtimeClassName"] == "nvidia"
        assert template["spec"]["priorityClassName"] == "llmkube-high"
        assert container["resources"]["requests"] == {"cpu": "2", "memory": "16Gi"}
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        words = " ".join(container["args"])
        assert "--ctx-size 32768" in words
        assert "--parallel 4" in words
        await hands.roll_out("chat-prod")
        assert await hands.where("chat-prod") == "Ready/InferenceReady"


async def test_personaplex_is_served(autojump_clock):
    """No Job and no init container; its own command, TCP probes on 8998, a token from a Secret, a node port."""
    async with open_pods() as hands:
        await serve(hands, "personaplex", "nvidia/personaplex-7b-v1")
        assert await hands.names(Job) == []
        spec = (await hands.json(Deployment, "personaplex"))["spec"]["template"]["spec"]
        [container, _] = spec["containers"]
        assert "initContainers" not in spec
        assert container["image"] == "registry.defilan.net/personaplex:7b-v1-4bit-cuda13"
        assert container["command"][:3] == ["python", "-m", "moshi.server"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["tcpSocket"] == {"port": "http"}
        assert container["ports"][0]["containerPort"] == 8998
        env = {one["name"]: one for one in container["env"]}
        assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "HF_TOKEN"}
        assert "NO_TORCH_COMPILE" in env
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert container["resources"]["requests"]["memory"] == "32Gi"
        front = (await hands.json(Service, "personaplex"))["spec"]
        assert (front["type"], front["ports"][0]["port"], front["ports"][0]["targetPort"]) == ("NodePort", 8998, "http")


async def test_vllm_is_served(autojump_clock):
    """The Model is RuntimeResolved; model, length and dtype are arguments, HTTP /health answers on 8000."""
    async with open_pods() as hands:
        await serve(hands, "vllm-tinyllama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0")
        assert await hands.model_where("tinyllama-1b") == "Ready/RuntimeResolved"
        [container, _] = (await hands.json(Deployment, "vllm-tinyllama"))["spec"]["template"]["spec"]["containers"]
        words = " ".join([*container.get("command", []), *container["args"]])
        for option in ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "--max-model-len 2048", "--dtype float16"):
            assert option in words
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"
        assert container["ports"][0]["containerPort"] == 8000
        front = (await hands.json(Service, "vllm-tinyllama"))["spec"]
        assert front["ports"][0]["targetPort"] == "http"


async def test_the_generic_snippet_is_served(autojump_clock):
    """Image, command, arguments and the overridden probe are the user's; nothing is fetched."""
    async with open_pods() as hands:
        await serve(hands, "custom", "org/custom")
        assert await hands.names(Job) == []
        [container, _] = (await hands.json(Deployment, "custom"))["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "my-custom-server:latest"
        assert (container["command"], container["args"]) == (["/app/serve"], ["--port", "8080"])
        assert container["startupProbe"]["tcpSocket"] == {"port": 8080}
        assert container["startupProbe"]["failureThreshold"] == 60
        assert "httpGet" not in container["startupProbe"]


async def test_metal_makes_nothing_in_the_cluster(autojump_clock):
    """A Model for metal has no Job, and its service no Deployment."""
    async with open_pods() as hands:
        await serve(hands, "phi-4-mini", "")
        assert await hands.where("phi-4-mini") == "Pending/NoHost"
        assert await hands.names(Job) == []
        assert not await hands.exists(Deployment, "phi-4-mini")
