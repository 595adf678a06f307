"""A router's phase by its known state, row by row."""

import datetime

import pytest

from controller.render.test_router_objects import model_router
from llmkube.controller.status.router_status import (
    BackendHealth,
    RouterFacts,
    deployment_facts,
    derive_router_status,
    unsupported_status,
)
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.workloads import Deployment, Pod
from llmkube.router.config.routing_config import Backend, RoutingConfig

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(minutes=5)
BACKEND = Backend(name="chat", model_id="chat", base_url="http://chat.ml.svc:8080/v1", local=True)
GONE = Backend(name="chat", model_id="chat", base_url="", local=True, missing="no service")
CONFIG = RoutingConfig(name="ml/front", backends={"chat": BACKEND})
UP, DOWN = BackendHealth(healthy=True), BackendHealth(healthy=False, message="refused")


def live(ready=1, wanted=1, *, observed=1):
    status = {"observedGeneration": observed, "replicas": wanted, "updatedReplicas": wanted, "readyReplicas": ready}
    meta = {"name": "x", "generation": 1}
    return decode(Deployment, {"metadata": meta, "spec": {"replicas": wanted}, "status": status})


def broken_pod():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "router-proxy", "state": waiting}]}
    return decode(Pod, {"metadata": {"name": "x"}, "status": status})


def status_of(router=None, **facts):
    seen = deployment_facts(facts.pop("deployment", live()))
    given = {"config": CONFIG, "endpoint": "http://front"} | facts
    return derive_router_status(router or model_router(), RouterFacts(**given, **seen), now=NOW)


def condition(status, kind):
    [found] = [one for one in status["conditions"] if one["type"] == kind]
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(
    ("facts", "phase"),
    [
        ({"health": {"chat": UP}}, "Ready"),
        ({}, "Ready"),
        ({"health": {"chat": DOWN}}, "Degraded"),
        ({"deployment": None}, "Provisioning"),
        ({"deployment": live(0)}, "Provisioning"),
        ({"deployment": live(1, 2)}, "Provisioning"),
        ({"deployment": live(observed=0)}, "Provisioning"),
        ({"deployment": live(0), "pods": (broken_pod(),)}, "Failed"),
        ({"errors": ("spec.x: wrong",), "config": None}, "Degraded"),
        ({"errors": ("spec.x: wrong",), "config": None, "deployment": None}, "Failed"),
        ({"refusal": "exceeded quota"}, "Degraded"),
        ({"refusal": "exceeded quota", "deployment": None}, "Failed"),
    ],
)
def test_the_first_row_that_fits_wins(facts, phase):
    assert status_of(**dict(facts))["phase"] == phase


def test_all_errors_are_reported_at_once():
    """And that the earlier spec is still served, if it is."""
    status = status_of(errors=("spec.a: wrong", "spec.b: wrong"), config=None)
    state, reason, message = condition(status, "Accepted")
    assert (state, reason) == ("False", "Invalid")
    assert message == "spec.a: wrong; spec.b: wrong; the router keeps serving the previous spec"
    nothing = status_of(errors=("spec.a: wrong",), config=None, deployment=None)
    assert condition(nothing, "Accepted")[2] == "spec.a: wrong"


def test_fields_without_effect_are_reported():
    """Nothing is accepted and ignored in silence."""
    status = status_of(ignored=("spec.mcpServer",))
    assert condition(status, "SpecHonoured") == ("False", "FieldsIgnored", "without effect: spec.mcpServer")
    for kind in ("Accepted", "SpecHonoured", "Available"):
        assert condition(status_of(), kind)[0] == "True"


def test_a_backend_that_cannot_be_used_has_a_reason():
    """A missing service, or an error found by the pods: the same place, the same condition."""
    gone = RoutingConfig(name="ml/front", backends={"chat": GONE})
    for facts, why in (({"config": gone}, "no service"), ({"health": {"chat": DOWN}}, "refused")):
        status = status_of(**facts)
        assert (status["backends"][0]["healthy"], status["backends"][0]["message"]) == (False, why)
        assert condition(status, "Degraded") == ("True", "BackendsUnavailable", f"chat: {why}")


def test_a_backend_that_no_pod_reports_is_unknown():
    """Neither healthy nor not: the original reported every existing object as healthy."""
    assert "healthy" not in status_of()["backends"][0]


def test_the_same_result_changes_nothing():
    """The time is that of the result, so that the status is not written at every check."""
    first = status_of(health={"chat": UP})
    router = decode(ModelRouter, {**encode(model_router()), "status": first})
    facts = RouterFacts(config=CONFIG, **deployment_facts(live()), health={"chat": UP}, endpoint="http://front")
    assert derive_router_status(router, facts, now=LATER) == first
    facts = RouterFacts(config=CONFIG, **deployment_facts(live()), health={"chat": DOWN}, endpoint="http://front")
    assert derive_router_status(router, facts, now=LATER)["backends"][0]["lastProbeTime"] == "2026-01-01T00:05:00Z"


def test_the_tier_of_a_provider_without_a_url_is_cloud():
    """Even while the spec is refused."""
    provider = {"name": "far", "external": {"provider": "openai", "model": "gpt"}, "tier": "local"}
    status = status_of(model_router(backends=[provider]), config=None, errors=("spec.x: wrong",))
    assert status["backends"] == [{"name": "far", "tier": "cloud", "address": ""}]


def test_a_router_without_nodes_is_reported():
    """In both conditions that a client would wait for."""
    status = unsupported_status(model_router(), "nowhere", now=NOW)
    assert {one["type"]: one["status"] for one in status["conditions"]} == {"Accepted": "False", "Available": "False"}
    assert status["phase"] == "Failed"
