"""Objects for a Prometheus operator and Pyrra follow the user's spec and the engines' series."""

import re

import attrs
import pytest
import trio

from controller.objects import NOW
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS, plan, pod_service
from llmkube.controller.render.manifests import objective, objective_obstacle, pod_monitor
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.pod_service_status import ServiceFacts, assess_pods, derive_pod_status
from llmkube.controller.writes.owned_kinds import INSTALL_POLL_SECONDS
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import Verdict
from llmkube.k8s.workloads import PodMonitor
from llmkube.runtimes.registry import container_plan_for

NO_MODEL = decode(Model, {"metadata": {"name": "phi", "namespace": "ml"}, "spec": {"source": "hf://o/r/m.gguf"}})
VLLM = plan(runtime="vllm", latency_metric="vllm:e2e_request_latency_seconds")


def test_availability_is_whether_pods_can_be_scraped():
    """Target and window are the user's; the figure is `up` of the series that our PodMonitor brings."""
    service = pod_service(slo={"objective": "99.5", "window": "4w"})
    made = objective(service, plan(), {})
    assert made["metadata"]["name"] == "chat-availability"
    assert (made["spec"]["target"], made["spec"]["window"]) == ("99.5", "4w")
    metric = 'up{job="llmkube-inference",namespace="ml",service="chat"}'
    assert made["spec"]["indicator"] == {"bool_gauge": {"metric": metric}}
    assert objective(pod_service(), plan(), {}) is None


def test_a_generic_engine_is_scraped_at_its_field():
    """`spec.metricsPath` alone gives any image a PodMonitor; without it there is none to scrape in vain."""
    spec = {"runtime": "generic", "image": "example.org/engine:1", "containerPort": 9000}
    [there, not_there] = [pod_service(**spec, **more) for more in ({"metricsPath": "/stats/prom"}, {})]
    made = pod_monitor(there, container_plan_for(there, NO_MODEL), {})
    [endpoint] = made["spec"]["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["port"]) == ("/stats/prom", "http")
    assert pod_monitor(not_there, container_plan_for(not_there, NO_MODEL), {}) is None


def test_a_prometheus_selects_monitors_by_the_operators_labels():
    """The controller's objects have them, so that Pyrra's derived objects have them, too; ours are not replaced."""
    service, more = pod_service(slo={"objective": "99"}), {"release": "prometheus", "app": "theirs"}
    for made in (pod_monitor(service, plan(), more), objective(service, plan(), more)):
        assert made["metadata"]["labels"]["release"] == "prometheus"
        assert made["metadata"]["labels"]["app"] == "chat"


async def test_the_operators_labels_reach_created_objects(autojump_clock):
    """A PodMonitor that no Prometheus selects would not be scraped."""
    workloads = attrs.evolve(SETTINGS, monitor_labels={"release": "prometheus"})
    async with open_pods(workloads=workloads) as hands:
        await hands.install(PodMonitor)
        await trio.sleep(INSTALL_POLL_SECONDS)
        await hands.bring_up()
        assert (await hands.json(PodMonitor))["metadata"]["labels"]["release"] == "prometheus"


def test_latency_is_the_share_of_answers_in_time():
    """The bucket's bound is written as Prometheus writes it."""
    slo = {"objective": "99", "indicator": "latency", "latencyThreshold": "2", "name": "fast"}
    made = objective(pod_service(slo=slo), VLLM, {})
    assert made["metadata"]["name"] == "fast"
    place = 'job="llmkube-inference",namespace="ml",service="chat"'
    assert made["spec"]["indicator"]["latency"] == {
        "success": {"metric": f'vllm:e2e_request_latency_seconds_bucket{{{place},le="2.0"}}'},
        "total": {"metric": f"vllm:e2e_request_latency_seconds_count{{{place}}}"},
    }


@pytest.mark.parametrize(
    ("container", "slo", "says"),
    [
        (
            plan(),
            {"indicator": "latency", "latencyThreshold": "1"},
            r"spec\.slo\.indicator .*use indicator availability",
        ),
        (plan(metrics_port_name=""), {}, r"spec\.slo .*exports no metrics"),
        (plan(), {"name": "No Name"}, r"spec\.slo\.name .*lower-case"),
    ],
)
def test_an_objective_without_a_metric_is_named(container, slo, says):
    """Nothing is created, and the field names the value to write instead."""
    service = pod_service(slo={"objective": "99", **slo})
    assert objective(service, container, {}) is None
    obstacle = objective_obstacle(service, container)
    scene = ServiceFacts(model=Verdict("Ready", "ModelReady", ""), plan=container, unmet=(obstacle,))
    status = derive_pod_status(service, scene, ControllerSettings(), verdict=assess_pods(service, scene), now=NOW)
    [found] = [one for one in status["conditions"] if one["type"] == "SpecHonoured"]
    assert found["status"] == "False"
    assert obstacle in found["message"]
    assert re.match(says, obstacle)
