"""A router's pods: without rights, without root, with each key in a file of its own."""

import attrs
import pytest

from controller.pod_security import against_restricted
from controller.podobjects import SETTINGS
from llmkube.controller.render.router_objects import (
    KEYS_FOLDER,
    network_policy,
    render_router,
    router_objects_name,
    router_selector,
    to_host,
    to_provider,
    to_service,
)
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.router.config.compile_router import KeyFile

KEYS = (
    KeyFile(path=f"{KEYS_FOLDER}/backends/cloud", secret="openai", key="OPENAI_API_KEY"),
    KeyFile(path=f"{KEYS_FOLDER}/services/chat", secret="chat-keys", key="api-key"),
    KeyFile(path=f"{KEYS_FOLDER}/teams", secret="clients", key=""),
)
DESTINATIONS = (
    to_service("chat"),
    to_host("10.0.0.7", 9001),
    to_provider("https://api.example.com/v1", local=False),
)


def model_router(name="front", **spec):
    backends = [{"name": "chat", "inferenceServiceRef": {"name": "chat"}}]
    meta = {"name": name, "namespace": "ml", "uid": "r-1", "generation": 1}
    return decode(ModelRouter, {"metadata": meta, "spec": {"backends": backends, **spec}})


def router_manifests(*, settings=SETTINGS, keys=KEYS, **spec):
    router = model_router(**({"proxy": {"replicas": 2}} | spec))
    return render_router(router, b'{"version": 1}', settings, keys=keys, destinations=DESTINATIONS)


def pod_of(**spec):
    return router_manifests(**spec).deployment["spec"]["template"]["spec"]


def test_the_pods_run_where_restricted_is_enforced():
    """Even if the cluster sets the user itself."""
    assert against_restricted(router_manifests().deployment["spec"]["template"]) == []
    openshift = attrs.evolve(SETTINGS, fs_group=None)
    template = router_manifests(settings=openshift).deployment["spec"]["template"]
    assert against_restricted(template) == []
    assert "runAsUser" not in template["spec"]["securityContext"]


def test_the_pods_have_no_access_to_the_api_server():
    """No token is mounted, and no account of their own could be given one."""
    pod = pod_of()
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod


def test_a_change_of_the_config_replaces_no_pod():
    """The template is the same for every config: running pods read the file again."""
    router = model_router(proxy={"replicas": 2})
    other = render_router(router, b'{"version": 2}', SETTINGS, keys=KEYS, destinations=())
    assert other.deployment == router_manifests().deployment
    assert other.config != router_manifests().config


def test_the_service_targets_the_port_that_is_listened_on():
    """For any port of the Service, 8080 inside; the original's led to a closed port."""
    service = router_manifests(endpoint={"port": 80, "type": "NodePort", "nodePort": 30080}).kubernetes_service["spec"]
    [port] = service["ports"]
    assert port == {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "nodePort": 30080}
    ports = pod_of()["containers"][0]["ports"]
    assert ports[0] == {"name": "http", "containerPort": 8080, "protocol": "TCP"}


def test_without_keys_there_is_no_volume_for_them():
    """Nor a Secret that the kubelet would look up."""
    assert [one["name"] for one in pod_of(keys=())["volumes"]] == ["config", "scratch"]


def test_the_pods_have_the_fields_of_the_spec():
    """Image, pull secrets, resources, nodes, history."""
    proxy = {
        "image": "example.com/router:1",
        "imagePullSecrets": [{"name": "mine"}],
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"pool": "edge"},
        "revisionHistoryLimit": 3,
    }
    made = router_manifests(proxy=proxy)
    pod = made.deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "example.com/router:1"
    assert pod["imagePullSecrets"] == [{"name": "mine"}]
    assert pod["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}
    assert pod["nodeSelector"] == {"pool": "edge"}
    assert made.deployment["spec"]["revisionHistoryLimit"] == 3
    assert made.budget is None


@pytest.mark.parametrize("name", ["front", "a.b", "1front", "f" * 63, "f" * 253])
def test_every_name_of_a_router_gives_names_that_a_service_may_have(name):
    """Dots become dashes, as in the original; a name that is too long or starts with a digit is cut and marked."""
    made = router_objects_name(name)
    assert len(made) <= 63
    assert made[0].isalpha()
    selector = router_selector(model_router(name))
    assert all(len(value) <= 63 for value in selector.values())


def test_the_plain_name_is_the_original_s():
    """Its objects are found again, and adopted."""
    assert router_objects_name("hybrid-router") == "hybrid-router-router-proxy"
    assert router_objects_name("a.b") == "a-b-router-proxy"


PODS = {"app": "front-router-proxy"}


def rules(*destinations):
    return network_policy(PODS, destinations)["egress"]


def test_only_egress_is_limited():
    """Clients of a router are not limited by it."""
    policy = network_policy(PODS, [])
    assert policy["policyTypes"] == ["Egress"]
    assert policy["podSelector"] == {"matchLabels": PODS}


def test_names_are_looked_up_in_the_cluster_only():
    """DNS is open to pods and to a node's cache: no server of the internet is queried."""
    [dns] = rules()
    assert {port["port"] for port in dns["ports"]} == {53, 5353}
    assert dns["to"] == [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "169.254.20.10/32"}}]


def test_a_service_in_pods_is_reached_at_its_port():
    """The pods of the router's namespace with the service's label, and only that port."""
    [_, rule] = rules(to_service("chat"))
    assert rule["to"] == [{"podSelector": {"matchLabels": {"inference.llmkube.dev/service": "chat"}}}]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]


def test_a_host_is_reached_at_its_own_address():
    """Not its network: another machine next to it stays closed."""
    [_, four, six] = rules(to_host("192.168.1.20", 9001), to_host("fd00::7", 9001))
    assert four["to"] == [{"ipBlock": {"cidr": "192.168.1.20/32"}}]
    assert six["to"] == [{"ipBlock": {"cidr": "fd00::7/128"}}]


def test_a_cloud_provider_is_reached_in_the_internet_only():
    """A name that resolves into the cluster, or to a metadata service, is useless."""
    [_, rule] = rules(to_provider("https://api.example.com/v1", local=False))
    assert rule["ports"] == [{"port": 443, "protocol": "TCP"}]
    assert all("except" in one["ipBlock"] for one in rule["to"])
    closed = [network for one in rule["to"] for network in one["ipBlock"]["except"]]
    assert {"10.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16", "fc00::/7"} <= set(closed)


def test_a_local_name_reaches_only_private_addresses():
    """A name that a user calls local is restricted by the network as well: private addresses alone."""
    [_, rule] = rules(to_provider("http://litellm.corp.example:4000", local=True))
    assert rule["ports"] == [{"port": 4000, "protocol": "TCP"}]
    assert {"ipBlock": {"cidr": "10.0.0.0/8"}} in rule["to"]
    assert not any(one["ipBlock"]["cidr"] in {"0.0.0.0/0", "::/0"} for one in rule["to"])


@pytest.mark.parametrize("host", ["litellm.gateways.svc", "litellm.gateways.svc.cluster.local"])
def test_a_service_of_another_namespace_is_reached_there(host):
    """The port of its pods is not known, so their namespace is open."""
    [_, rule] = rules(to_provider(f"http://{host}:4000/v1", local=True))
    assert rule == {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]}


def test_a_provider_by_address_is_reached_there():
    [_, rule] = rules(to_provider("http://10.1.2.3:8000", local=True))
    assert rule == {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 8000, "protocol": "TCP"}]}


def test_two_backends_at_one_place_are_one_rule():
    """A policy has no rule twice."""
    assert len(rules(to_service("chat"), to_service("chat"))) == 2


def test_the_pods_get_proxies_and_additional_certificates():
    """A namespace without the ConfigMap keeps its router; without both the pods are as before."""
    proxies = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc", "LLMKUBE_PROXY": "a.example=direct"}
    pod = pod_of(settings=attrs.evolve(SETTINGS, proxies=proxies, ca_config_map="company"))
    container = pod["containers"][0]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables == {"HOME": "/tmp", "SSL_CERT_FILE": "/etc/llmkube/ca/ca.crt", **proxies}
    assert {"name": "ca", "mountPath": "/etc/llmkube/ca", "readOnly": True} in container["volumeMounts"]
    assert {"name": "ca", "configMap": {"name": "company", "optional": True}} in pod["volumes"]
    assert [each["name"] for each in pod_of()["containers"][0]["env"]] == ["HOME"]
