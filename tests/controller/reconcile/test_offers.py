"""What a service asks of Pyrra and of gateways is made where those are, and named where they are not."""

import re

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.objects import NOW
from controller.podcluster import KUBE, Hands, open_pods
from controller.podkinds import install
from controller.podobjects import SETTINGS, cluster_model, plan, pod_service
from llmkube.controller.optional_kinds import DISCOVERY_SECONDS, INSTALL_POLL_SECONDS
from llmkube.controller.queues import RETRY
from llmkube.controller.render.monitoring import objective, objective_obstacle, pod_monitor
from llmkube.controller.render.routing import is_accepted, route
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.pod_service_status import ServiceFacts, derive_pod_status
from llmkube.k8s.builtins import CustomResourceDefinition
from llmkube.k8s.codec import decode
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import Verdict
from llmkube.k8s.workloads import Deployment, HTTPRoute, PodMonitor, ServiceLevelObjective
from llmkube.runtimes.registry import container_plan_for

VLLM = plan(runtime="vllm", latency_metric="vllm:e2e_request_latency_seconds")
GATEWAY = {"gateway": {"enabled": True, "gatewayRef": {"name": "edge", "namespace": "infra"}}}


async def honoured(hands: Hands) -> tuple[str, str]:
    service = await hands.cluster.service()
    [found] = [one for one in service.status.conditions if one.type == "SpecHonoured"]
    return found.status, found.message


# -- what is rendered --------------------------------------------------------------------------------------------------


def test_availability_is_whether_pods_can_be_scraped():
    """Target and window are the user's; the figure is `up` of the very series that our PodMonitor brings."""
    service = pod_service(slo={"objective": "99.5", "window": "4w"})
    made = objective(service, plan())
    assert made["metadata"]["name"] == "chat-availability"
    assert (made["spec"]["target"], made["spec"]["window"]) == ("99.5", "4w")
    metric = 'up{job="llmkube-inference",namespace="ml",service="chat"}'
    assert made["spec"]["indicator"] == {"bool_gauge": {"metric": metric}}
    assert objective(pod_service(), plan()) is None


def test_a_prometheus_selects_monitors_by_the_operators_labels():
    """What the controller makes has them, so that what Pyrra derives of it has them, too; ours are not replaced."""
    service, more = pod_service(slo={"objective": "99"}), {"release": "prometheus", "app": "theirs"}
    for made in (pod_monitor(service, plan(), more), objective(service, plan(), more)):
        assert made["metadata"]["labels"]["release"] == "prometheus"
        assert made["metadata"]["labels"]["app"] == "chat"


async def test_the_operators_labels_reach_what_is_made(autojump_clock):
    """A PodMonitor that no Prometheus selects would be scraped by nobody."""
    workloads = attrs.evolve(SETTINGS, monitor_labels={"release": "prometheus"})
    async with open_pods(workloads=workloads) as hands:
        await install(hands, PodMonitor)
        await trio.sleep(INSTALL_POLL_SECONDS)
        await hands.bring_up()
        assert (await hands.json(PodMonitor))["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("nodes", [{}, {"example.com/gpu": "shared"}])
async def test_a_shared_gpu_is_where_the_operator_says(nodes, autojump_clock):
    """The pods go to those nodes; where the operator names none, the field is named as one without effect."""
    async with open_pods(workloads=attrs.evolve(SETTINGS, shared_gpu_selector=nodes)) as hands:
        await hands.bring_up(resources={"gpu": 1, "gpuSharing": {"mode": "shared"}})
        assert (await hands.json(Deployment))["spec"]["template"]["spec"].get("nodeSelector", {}) == nodes
        assert ("gpuSharing.mode" in (await honoured(hands))[1]) is not bool(nodes)


def test_latency_is_the_share_of_answers_in_time():
    """The bucket's bound is written as Prometheus writes it."""
    slo = {"objective": "99", "indicator": "latency", "latencyThreshold": "2", "name": "fast"}
    made = objective(pod_service(slo=slo), VLLM)
    assert made["metadata"]["name"] == "fast"
    place = 'job="llmkube-inference",namespace="ml",service="chat"'
    assert made["spec"]["indicator"]["latency"] == {
        "success": {"metric": f'vllm:e2e_request_latency_seconds_bucket{{{place},le="2.0"}}'},
        "total": {"metric": f"vllm:e2e_request_latency_seconds_count{{{place}}}"},
    }


@pytest.mark.parametrize(
    ("container", "slo", "says"),
    [
        (plan(), {"indicator": "latency", "latencyThreshold": "1"}, r"spec\.slo\.indicator .*use availability"),
        (plan(metrics_port_name=""), {}, r"spec\.slo .*tells no metrics"),
        (plan(), {"name": "No Name"}, r"spec\.slo\.name .*lower-case"),
    ],
)
def test_an_objective_that_nothing_can_be_held_to_is_named(container, slo, says):
    """Nothing is made, and the field says what to write instead."""
    service = pod_service(slo={"objective": "99", **slo})
    assert objective(service, container) is None
    obstacle = objective_obstacle(service, container)
    scene = ServiceFacts(model=Verdict("Ready", "ModelReady", ""), plan=container, unmet=(obstacle,))
    status = derive_pod_status(service, scene, ControllerSettings(), now=NOW)
    [found] = [one for one in status["conditions"] if one["type"] == "SpecHonoured"]
    assert found["status"] == "False"
    assert obstacle in found["message"]
    assert re.match(says, obstacle)


def test_a_gateway_is_led_to_the_service_by_name_and_by_path():
    """The route hangs on the named Gateway, and both rules lead to the service's own port without a time limit."""
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
def test_a_gateway_that_is_not_turned_on_gets_nothing(endpoint):
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
def test_a_route_is_ready_when_a_gateway_has_taken_it(conditions, ready):
    """A route that is accepted, but leads nowhere, is not ready."""
    live = {"metadata": {"name": "chat"}, "status": {"parents": [{"conditions": conditions}]}}
    assert is_accepted(decode(HTTPRoute, live)) is ready
    assert not is_accepted(None)


# -- in a cluster ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [None, "org/chat-large"])
@pytest.mark.parametrize("runtime", ["vllm", "ollama"])
def test_an_engine_that_minds_names_has_been_given_the_one_that_the_route_leads_by(runtime, named):
    """A client who was led here by the header is answered, and so is one who asks for the service by its own name."""
    gateway = GATEWAY["gateway"] | ({"modelName": named} if named else {})
    service = pod_service(runtime=runtime, endpoint={"gateway": gateway})
    made = container_plan_for(service, cluster_model("org/repo", format="safetensors" if runtime == "vllm" else "gguf"))
    [match] = route(service, made)["spec"]["rules"][0]["matches"]
    [led] = [header["value"] for header in match["headers"]]
    words = made.post_start if runtime == "ollama" else made.args[made.args.index("--served-model-name") :]
    assert led == (named or "phi")
    assert {led, "chat"} <= set(words)


async def test_both_are_made_once_their_kinds_are_there(autojump_clock):
    """Before, the service names what is missing; after, it has its objects, follows edits and gives them up again."""
    async with open_pods() as hands:
        slo = {"objective": "99.5"}
        await hands.bring_up(slo=slo, endpoint=GATEWAY)
        status, message = await honoured(hands)
        assert status == "False"
        assert "spec.slo (Pyrra is not installed here)" in message
        assert "spec.endpoint.gateway (the Gateway API is not installed here)" in message

        await install(hands, ServiceLevelObjective, HTTPRoute)
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        _, message = await honoured(hands)
        assert "spec.slo" not in message
        assert "gateway" not in message
        assert await hands.names(ServiceLevelObjective) == ["chat-availability"]
        assert (await hands.cluster.service()).status.gateway.route_ready is False
        parents = {"status": {"parents": [{"conditions": [{"type": "Accepted", "status": "True"}]}]}}
        key = (await hands.client.list(HTTPRoute, namespace="ml")).items[0].key
        await hands.client.patch(HTTPRoute, key, parents, subresource="status", field_manager=KUBE)
        await trio.sleep(SETTLED)
        gateway = (await hands.cluster.service()).status.gateway
        assert (gateway.route_ready, gateway.model_name) == (True, "phi")

        await hands.create_service(slo={**slo, "name": "other"}, endpoint=GATEWAY)
        await trio.sleep(SETTLED)
        assert await hands.names(ServiceLevelObjective) == ["other"]
        before = await hands.json(Deployment)
        await hands.create_service()
        await trio.sleep(SETTLED)
        assert await hands.names(ServiceLevelObjective) == await hands.names(HTTPRoute) == []
        assert (await hands.cluster.service()).status.gateway is None
        assert (await hands.json(Deployment))["metadata"]["generation"] == before["metadata"]["generation"]


@pytest.mark.parametrize("kind", [PodMonitor, ServiceLevelObjective, HTTPRoute], ids=lambda kind: kind.RESOURCE.kind)
async def test_a_kind_that_was_uninstalled_fails_no_service(autojump_clock, kind):
    """An edit goes through all the same, and once the kind is back the service has its object again."""
    async with open_pods() as hands:
        await install(hands, PodMonitor, ServiceLevelObjective, HTTPRoute)
        await trio.sleep(INSTALL_POLL_SECONDS)
        spec = {"slo": {"objective": "99.5"}, "endpoint": GATEWAY}
        await hands.bring_up(**spec)
        [name] = await hands.names(kind)
        await hands.client.delete(CustomResourceDefinition, Key("", kind.RESOURCE.full_name))
        await trio.sleep(INSTALL_POLL_SECONDS)
        await hands.create_service(**spec, podLabels={"team": "ml"}, suspend=True)
        assert (await hands.where()).startswith("Suspended/")
        assert (await hands.json(Deployment))["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
        errors = hands.cluster.reconciles("inferenceservice", "error")
        await trio.sleep(INSTALL_POLL_SECONDS)
        assert hands.cluster.reconciles("inferenceservice", "error") == errors
        await install(hands, kind)
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        assert await hands.names(kind) == [name]


async def test_what_else_is_not_found_is_not_taken_for_the_kind(autojump_clock):
    """A 404 about an owner or a namespace that has gone is met again after growing pauses, for as long as it lasts."""
    async with open_pods() as hands:
        await install(hands, PodMonitor)
        await trio.sleep(INSTALL_POLL_SECONDS)
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
        faults = hands.cluster.faults
        faults.refusals["podmonitors"], faults.refused = 'namespaces "ml" not found', (404, "NotFound")
        faults.delays["podmonitors"] = 1.0  # so that time goes on while it is read
        asked = len(faults.calls)
        await hands.finish_job()
        await trio.sleep(60)
        writes = [one for one in faults.calls[asked:] if one.resource == "podmonitors" and "patch" in one.verbs]
        assert 0 < len(writes) < 10
        faults.refusals.clear()
        await trio.sleep(RETRY.cap_seconds + 5)
        assert await hands.names(PodMonitor) == ["chat"]


async def test_a_server_that_is_silent_about_a_kind_is_asked_again(autojump_clock):
    """A question that nobody answers is given up after a while, and the kind is found at the next look."""
    async with open_pods() as hands:
        await hands.bring_up(endpoint=GATEWAY)
        await install(hands, HTTPRoute)
        hands.cluster.faults.delays["httproutes"] = 100_000.0
        await trio.sleep(INSTALL_POLL_SECONDS)
        hands.cluster.faults.delays.clear()
        await trio.sleep(INSTALL_POLL_SECONDS + DISCOVERY_SECONDS + SETTLED)
        assert await hands.names(HTTPRoute) == ["chat"]
