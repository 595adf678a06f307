"""A Gateway routes clients to a service by the name of its model and by its path."""

import pytest

from controller.podobjects import cluster_model, plan, pod_service
from llmkube.controller.render.manifests import is_accepted, route
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import HTTPRoute
from llmkube.runtimes.registry import container_plan_for

GATEWAY = {"gateway": {"enabled": True, "gatewayRef": {"name": "edge", "namespace": "infra"}}}


def test_a_gateway_routes_to_the_service_by_name_and_by_path():
    """The route is attached to the named Gateway, and both rules lead to the service's own port without a timeout."""
    service = pod_service(endpoint={**GATEWAY, "port": 9000})
    made = route(service, plan())["spec"]
    assert made["parentRefs"] == [{"name": "edge", "namespace": "infra"}]
    by_name, by_path = made["rules"]
    assert by_name["matches"] == [{"headers": [{"type": "Exact", "name": "X-Gateway-Model-Name", "value": "phi"}]}]
    assert by_path["matches"] == [{"path": {"type": "PathPrefix", "value": "/ml/chat"}}]
    assert by_path["filters"][0]["urlRewrite"]["path"]["replacePrefixMatch"] == "/"
    for rule in made["rules"]:
        assert rule["backendRefs"] == [{"name": "chat", "port": 9000}]
        assert rule["timeouts"] == {"request": "0s"}


@pytest.mark.parametrize(
    "endpoint", [{}, {"gateway": {"gatewayRef": {"name": "edge"}}}, {"gateway": {"enabled": False}}]
)
def test_a_gateway_that_is_not_enabled_gets_nothing(endpoint):
    """Only `enabled: true` exposes a service."""
    assert route(pod_service(endpoint=endpoint), plan()) is None


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([], False),
        ([{"type": "Accepted", "status": "True"}], True),
        ([{"type": "Accepted", "status": "False"}], False),
        ([{"type": "Accepted", "status": "True"}, {"type": "ResolvedRefs", "status": "False"}], False),
    ],
)
def test_a_route_is_ready_when_a_gateway_has_accepted_it(conditions, ready):
    """A route that is accepted, but has no resolved backend, is not ready."""
    live = {"metadata": {"name": "chat"}, "status": {"parents": [{"conditions": conditions}]}}
    assert is_accepted(decode(HTTPRoute, live)) is ready
    assert not is_accepted(None)


@pytest.mark.parametrize("named", [None, "org/chat-large"])
@pytest.mark.parametrize("runtime", ["vllm", "ollama"])
def test_an_engine_that_checks_names_has_the_name_of_the_route(runtime, named):
    """A client that was routed by the header gets a response, and so does one that uses the service's own name."""
    gateway = GATEWAY["gateway"] | ({"modelName": named} if named else {})
    service = pod_service(runtime=runtime, endpoint={"gateway": gateway})
    made = container_plan_for(service, cluster_model("org/repo", format="safetensors" if runtime == "vllm" else "gguf"))
    [match] = route(service, made)["spec"]["rules"][0]["matches"]
    [led] = [header["value"] for header in match["headers"]]
    words = made.post_start if runtime == "ollama" else made.args[made.args.index("--served-model-name") :]
    assert led == (named or "phi")
    assert {led, "chat"} <= set(words)
