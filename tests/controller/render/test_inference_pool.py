"""The InferencePool in docs/guides/cluster.md selects the pods of a service, at the ports of its table."""

import re
from pathlib import Path

import yaml

from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.manifests import WantedPods, deployment
from llmkube.controller.render.storage import Storage, Weights, serving_storage
from llmkube.k8s.wire.names import SERVICE_LABEL
from llmkube.runtimes.registry import container_plan_for

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8")
REPOSITORY = {"source": "org/repo", "format": "safetensors"}
ENGINES = {
    "vLLM": ("vllm", REPOSITORY, {"resources": {"gpu": 1}}),
    "llama.cpp": ("llamacpp", {"hardware": {"accelerator": "cpu"}}, {}),
}


def template_of(runtime, model, spec):
    the_model, service = cluster_model(**model), pod_service(runtime=runtime, **spec)
    plan = container_plan_for(service, the_model, rendered=RENDERED)
    used = plan.uses_weights
    storage = serving_storage(service, the_model, "/models/0/model.gguf", SETTINGS) if used else Storage()
    return service, deployment(service, plan, SETTINGS, WantedPods(weights=Weights(storage)))["spec"]["template"]


def test_the_pool_of_the_page_selects_the_pods_and_their_port():
    """Its label leads to the service's pods, and each engine listens at the port of the table."""
    (text,) = re.findall(r"```yaml\n(apiVersion: inference\.networking\.k8s\.io/v1\n.*?)```", PAGE, re.DOTALL)
    pool = yaml.safe_load(text)["spec"]
    assert pool["selector"]["matchLabels"] == {SERVICE_LABEL: "chat"}
    ports = dict(re.findall(r"^\| (vLLM|llama\.cpp) \| (\d+) \|", PAGE, re.MULTILINE))
    assert str(pool["targetPorts"][0]["number"]) == ports["llama.cpp"]
    for name, asked in ENGINES.items():
        service, template = template_of(*asked)
        assert template["metadata"]["labels"][SERVICE_LABEL] == service.key.name
        assert str(template["spec"]["containers"][0]["ports"][0]["containerPort"]) == ports[name]
