"""A router's pods reach what their router names, and nothing else."""

import pytest

from llmkube.controller.render.router_objects import network_policy, to_host, to_provider, to_service

PODS = {"app": "front-router-proxy"}


def rules(*destinations):
    return network_policy(PODS, destinations)["egress"]


def test_only_what_leaves_is_limited():
    """Who may ask a router is not for it to say."""
    policy = network_policy(PODS, [])
    assert policy["policyTypes"] == ["Egress"]
    assert policy["podSelector"] == {"matchLabels": PODS}


def test_names_are_looked_up_in_the_cluster_only():
    """DNS is open to pods and to a node's cache: no server of the internet is asked."""
    [dns] = rules()
    assert {port["port"] for port in dns["ports"]} == {53, 5353}
    assert dns["to"] == [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "169.254.20.10/32"}}]


def test_a_service_in_pods_is_reached_at_its_port():
    """The pods of the router's namespace with the service's label, and no other port of them."""
    [_, rule] = rules(to_service("chat"))
    assert rule["to"] == [{"podSelector": {"matchLabels": {"inference.llmkube.dev/service": "chat"}}}]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]


def test_a_host_is_reached_at_its_own_address():
    """Not its network: another machine beside it stays closed."""
    [_, four, six] = rules(to_host("192.168.1.20", 9001), to_host("fd00::7", 9001))
    assert four["to"] == [{"ipBlock": {"cidr": "192.168.1.20/32"}}]
    assert six["to"] == [{"ipBlock": {"cidr": "fd00::7/128"}}]


def test_a_cloud_provider_is_reached_in_the_internet_only():
    """A name that leads into the cluster, or to a metadata service, is of no use."""
    [_, rule] = rules(to_provider("https://api.example.com/v1", local=False))
    assert rule["ports"] == [{"port": 443, "protocol": "TCP"}]
    assert all("except" in one["ipBlock"] for one in rule["to"])
    closed = [network for one in rule["to"] for network in one["ipBlock"]["except"]]
    assert {"10.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16", "fc00::/7"} <= set(closed)


def test_a_name_that_is_said_to_be_local_leads_nowhere_else():
    """What a user calls local is held to it by the network as well: private addresses alone."""
    [_, rule] = rules(to_provider("http://litellm.corp.example:4000", local=True))
    assert rule["ports"] == [{"port": 4000, "protocol": "TCP"}]
    assert {"ipBlock": {"cidr": "10.0.0.0/8"}} in rule["to"]
    assert not any(one["ipBlock"]["cidr"] in {"0.0.0.0/0", "::/0"} for one in rule["to"])


@pytest.mark.parametrize("host", ["litellm.gateways.svc", "litellm.gateways.svc.cluster.local"])
def test_a_service_of_another_namespace_is_reached_there(host):
    """The port of its pods is not known, so their namespace is what is open."""
    [_, rule] = rules(to_provider(f"http://{host}:4000/v1", local=True))
    assert rule == {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]}


def test_a_provider_by_address_is_reached_there():
    """An address says all."""
    [_, rule] = rules(to_provider("http://10.1.2.3:8000", local=True))
    assert rule == {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 8000, "protocol": "TCP"}]}


def test_two_backends_at_one_place_are_one_rule():
    """A policy has no rule twice."""
    assert len(rules(to_service("chat"), to_service("chat"))) == 2
