"""Every runtime makes a pod."""

import pytest

from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.manifests import deployment, kubernetes_service
from llmkube.controller.render.storage import Storage, serving_storage
from llmkube.controller.status.supply import User, choose_supply, without_effect
from llmkube.runtimes.registry import container_plan_for

PATH = "/models/0123/model.gguf"


def planned(service, model):
    return container_plan_for(service, model, rendered=RENDERED)


@pytest.mark.parametrize(
    ("runtime", "model", "spec"),
    [
        ("llamacpp", {"hardware": {"accelerator": "cpu"}}, {}),
        ("llamacpp", {}, {"resources": {"gpu": 2}, "contextSize": 8192, "flashAttention": True}),
        ("vllm", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        ("tgi", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        ("sglang", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        (
            "generic",
            {"hardware": {"accelerator": "cpu"}},
            {"image": "example.org/x", "args": ["--port", "8080"], "containerPort": 8080},
        ),
    ],
)
def test_every_runtime_makes_a_pod(runtime, model, spec):
    """A container with an image, a port named http, three probes, and a Service that points at that name."""
    the_model, service = cluster_model(**model), pod_service(runtime=runtime, **spec)
    the_plan = planned(service, the_model)
    storage = serving_storage(service, the_model, PATH, SETTINGS) if the_plan.uses_weights else Storage()
    template = deployment(service, the_plan, SETTINGS, replicas=1, storage=storage)["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert container["image"]
    assert container["ports"][0] == {"name": "http", "containerPort": the_plan.port, "protocol": "TCP"}
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert kubernetes_service(service, the_plan)["spec"]["ports"][0]["targetPort"] == "http"
    supply = choose_supply(the_model, [User(brings_weights=not the_plan.needs_model_init)], SETTINGS)
    assert not without_effect(the_model, supply, the_plan.not_honoured)
