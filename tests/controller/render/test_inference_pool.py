"""The InferencePool in docs/guides/cluster.md is valid, and selects pods whose port and metrics are those of the page.

Facts: reference of Gateway API's inference extension, `InferencePool` v1, and its model server protocol.
"""

import re
from pathlib import Path

import yaml

from charts.promql import LLAMACPP, SGLANG, VLLM
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
    "SGLang": ("sglang", REPOSITORY, {"resources": {"gpu": 1}}),
    "llama.cpp": ("llamacpp", {"hardware": {"accelerator": "cpu"}}, {}),
}
READ_BY_DEFAULT = {
    "vLLM": {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"},
    "SGLang": {"sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"},
}
"""Metrics that a picker reads of an engine that it knows; those of adapters are optional."""

MOST_PORTS = 8


def blocks(beginning):
    return [yaml.safe_load(text) for text in re.findall(rf"```yaml\n({beginning}.*?)```", PAGE, re.DOTALL)]


def plan_of(runtime, model, spec):
    the_model, service = cluster_model(**model), pod_service(runtime=runtime, **spec)
    return the_model, service, container_plan_for(service, the_model, rendered=RENDERED)


def template_of(asked):
    the_model, service, plan = plan_of(*asked)
    used = plan.uses_weights
    storage = serving_storage(service, the_model, "/models/0/model.gguf", SETTINGS) if used else Storage()
    return service, deployment(service, plan, SETTINGS, WantedPods(weights=Weights(storage)))["spec"]["template"]


def test_the_pool_has_the_fields_that_v1_requires():
    """It has no others, and the picker's Service has a port, without which the API server refuses the pool."""
    (pool,) = blocks(r"apiVersion: inference\.networking")
    assert (pool["apiVersion"], pool["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    spec = pool["spec"]
    assert spec.keys() == {"selector", "targetPorts", "endpointPickerRef"}
    assert spec["selector"].keys() == {"matchLabels"}
    assert 1 <= len(spec["targetPorts"]) <= MOST_PORTS
    for port in (*spec["targetPorts"], spec["endpointPickerRef"]["port"]):
        assert port.keys() == {"number"}
        assert 1 <= port["number"] <= 65535
    assert spec["endpointPickerRef"].keys() == {"name", "port"}  # its kind is Service by default


def test_the_pool_of_the_page_selects_the_pods_and_their_port():
    """Its label leads to the service's pods, and each engine listens at the port of the table."""
    [pool] = blocks(r"apiVersion: inference\.networking")
    assert pool["spec"]["selector"]["matchLabels"] == {SERVICE_LABEL: "chat"}
    ports = dict(re.findall(r"^\| (vLLM|SGLang|llama\.cpp) \| (\d+) \|", PAGE, re.MULTILINE))
    assert str(pool["spec"]["targetPorts"][0]["number"]) == ports["llama.cpp"]
    for name, asked in ENGINES.items():
        service, template = template_of(asked)
        assert template["metadata"]["labels"][SERVICE_LABEL] == service.key.name
        assert str(template["spec"]["containers"][0]["ports"][0]["containerPort"]) == ports[name]


def test_a_picker_reads_metrics_that_our_pods_export():
    """Its defaults for vLLM and SGLang, and the page's for llama.cpp, are also what we judge idleness by."""
    [picker] = blocks("plugins:")
    extractor = picker["plugins"][0]["parameters"]
    [engine] = extractor["engineConfigs"]
    assert extractor["defaultEngine"] == engine["name"]
    read = READ_BY_DEFAULT | {"llama.cpp": {engine["queuedRequestsSpec"], engine["runningRequestsSpec"]}}
    exported = {"vLLM": VLLM, "SGLang": SGLANG, "llama.cpp": LLAMACPP}
    for name, asked in ENGINES.items():
        plan = plan_of(*asked)[-1]
        assert set(plan.busy_metrics) <= read[name] <= exported[name]
        assert plan.metrics_path == "/metrics"
