"""The front door of the chart: it starts with what it is given, and may only read what it serves."""

from pathlib import Path

import pytest
import yaml

from charts.helm_runs import CHART, OPENSHIFT, OUR_IMAGE, VARIANTS, named, render, run
from charts.test_chart import printed
from llmkube.cli.commands.programs.gateway import gateway, settings_of
from llmkube.controller.informers import FRONT_DOOR_LABEL
from llmkube.controller.render.router_objects import DRAINED
from llmkube.k8s.wire.names import SERVICE_LABEL
from llmkube.programs.config import GatewayConfig
from llmkube.programs.gateway.engines import SERVICE_KEYS
from llmkube.programs.gateway.gateway import TEAMS

pytestmark = pytest.mark.ci

OPEN = ("--set", "gateway.enabled=true,gateway.allowAnonymous=true")
SELECTOR = {"app.kubernetes.io/component": "gateway"}
SELECTOR |= {"app.kubernetes.io/name": "llmkube", "app.kubernetes.io/instance": "llmkube"}


def door(objects):
    """Return the Deployment, and its only container."""
    found = named(objects, "Deployment")["llmkube-gateway"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return found, container


def flags(container):
    return gateway.make_context("gateway", container["args"][1:], resilient_parsing=False).params


def test_it_is_not_installed_unless_asked_for():
    """Nothing of it is in a default release, and without keys it stops with the value to set."""
    assert not [each for each in render() if "gateway" in each["metadata"]["name"]]
    output = run("helm", "template", "llmkube", str(CHART), *OUR_IMAGE, "--set", "gateway.enabled=true", code=1)
    assert "gateway.keysSecret is empty" in output
    tokens = "gateway.enabled=true,gateway.policy.policy.auth.jwt.issuer=https://id.example.com"
    run("helm", "template", "llmkube", str(CHART), *OUR_IMAGE, "--set", tokens)


def test_the_program_takes_its_arguments():
    """`llmkube gateway` knows every flag; namespaces default to the controller's."""
    _, container = door(render(*VARIANTS["gateway"]))
    given = flags(container)
    assert given["namespace"] == ("ml", "chat")
    assert not given["allow_anonymous"]
    assert flags(door(render(*OPEN))[1])["namespace"] == ()
    assert flags(door(render(*OPEN, "--set", "controller.namespace=one"))[1])["namespace"] == ("one",)


def test_keys_and_policy_are_mounted_where_the_program_looks():
    """Keys of clients, engines and providers; the policy is a ModelRouter that compiles with them."""
    objects = render(*VARIANTS["gateway"])
    found, container = door(objects)
    volumes = {each["name"]: each for each in found["spec"]["template"]["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    folder = flags(container)["keys_dir"]
    assert mounts[f"{folder}/{TEAMS}"]["secret"] == {"secretName": "gateway-keys", "optional": True}
    engines = [each["secret"] for each in mounts[f"{folder}/{SERVICE_KEYS}"]["projected"]["sources"]]
    assert [(each["name"], each["items"][0]["path"]) for each in engines] == [
        ("phi-keys", "ml.phi"),
        ("mail-keys", "chat.mail"),
    ]
    assert f"{folder}/backends" in mounts
    assert str(Path(flags(container)["policy"]).parent) in mounts


def test_the_policy_compiles(tmp_path):
    """The ConfigMap is a ModelRouter of the first namespace, with the keys of the Secret."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(named(render(*VARIANTS["gateway"]), "ConfigMap")["llmkube-gateway"]["data"]["policy.yaml"])
    asked = []
    config = settings_of(GatewayConfig(state_dir=tmp_path, keys_dir=tmp_path, policy=policy)).read_policy(
        lambda *name: asked.append(name)
    )
    assert config.name == "ml/llmkube-gateway"
    assert config.auth.keys_folder == f"{tmp_path}/{TEAMS}"
    assert asked == [("ml", "phi")]


@pytest.mark.parametrize("namespace", ["ml", "chat"])
def test_its_rights_are_those_of_the_program(namespace):
    """A Role in each namespace that it serves, or one ClusterRole."""
    roles = {each["metadata"]["namespace"]: each for each in render(*VARIANTS["gateway"]) if each["kind"] == "Role"}
    for wanted in yaml.safe_load_all(printed("rbac", "gateway", "-n", namespace)):
        if wanted["kind"] == "Role":
            assert roles[namespace]["rules"] == wanted["rules"]
    every = {each["kind"]: each for each in yaml.safe_load_all(printed("rbac", "gateway", "-A"))}
    assert named(render(*OPEN), "ClusterRole")["llmkube-gateway"]["rules"] == every["ClusterRole"]["rules"]


@pytest.mark.parametrize("more", [(), ("-f", str(OPENSHIFT))])
def test_its_pods_meet_the_restricted_standard_and_drain(more):
    """No root, no capability, a read-only root; SIGTERM comes once requests have ended."""
    found, container = door(render(*OPEN, *more))
    pod = found["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"].get("runAsUser") == (None if more else 65532)
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["lifecycle"]["preStop"]["httpGet"]["path"] == DRAINED
    assert pod["terminationGracePeriodSeconds"] > 300


def test_one_set_of_labels_selects_its_pods():
    """Service, budget, policy, monitor and Deployment select the same pods, which no value can change."""
    objects = [each for each in render(*VARIANTS["gateway"]) if each["metadata"]["name"] == "llmkube-gateway"]
    found, _ = door(objects)
    assert found["spec"]["template"]["metadata"]["labels"].items() >= SELECTOR.items()
    assert "replicas" not in found["spec"], "the autoscaler writes it"
    seen = {}
    for each in objects:
        spec = each.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector"))
        if selector:
            seen[each["kind"]] = selector.get("matchLabels", selector)
    kinds = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"}
    assert seen == dict.fromkeys(kinds, SELECTOR)
    assert (
        named(objects, "HorizontalPodAutoscaler")["llmkube-gateway"]["spec"]["scaleTargetRef"]["kind"] == "Deployment"
    )


def test_the_network_policy_lets_it_reach_engines():
    """Out: names, the API server, the pods of services, the collector of traces, and what the operator adds."""
    spec = named(render(*VARIANTS["gateway"]), "NetworkPolicy")["llmkube-gateway"]["spec"]
    *_, engines, collector, added = spec["egress"]
    assert collector["to"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    outside = "traces.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://[2001:db8::1]:9000/v1/traces"
    *_, collector, _ = named(render(*VARIANTS["gateway"], "--set", outside), "NetworkPolicy")["llmkube-gateway"][
        "spec"
    ]["egress"]
    assert collector == {"ports": [{"port": 9000, "protocol": "TCP"}]}
    assert engines["to"][0]["podSelector"]["matchExpressions"][0]["key"] == SERVICE_LABEL
    assert added == {"to": [{"ipBlock": {"cidr": "192.168.1.0/24"}}]}
    assert [rule["ports"][0]["port"] for rule in spec["ingress"]] == ["http", "metrics"]


def test_its_pods_are_the_endpoints_of_services_at_zero():
    """The label by which the controller finds them; a front door of a few namespaces could not serve all of these."""
    value = "gateway.endpointsAtZero=true,gateway.enabled=true,gateway.allowAnonymous=true"
    service = named(render("--set", value), "Service")["llmkube-gateway"]
    assert service["metadata"]["labels"][FRONT_DOOR_LABEL] == "true"
    assert FRONT_DOOR_LABEL not in service["spec"]["selector"]
    some = ("--set", f"{value},gateway.namespaces={{ml}}")
    assert "gateway.namespaces to be empty" in run("helm", "template", "llmkube", str(CHART), *OUR_IMAGE, *some, code=1)
