"""Which networks a cluster's nodes open, and what an odd or hostile Node does not."""

import pytest

from llmkube.k8s.builtins import Node
from llmkube.k8s.codec import decode
from llmkube.supervisor.cluster.node_networks import MAX_ADDRESSES, networks_of


def node(*addresses, pods=(), name="n"):
    said = [{"type": "InternalIP", "address": each} if isinstance(each, str) else dict(each) for each in addresses]
    spec = {"podCIDR": pods[0], "podCIDRs": list(pods)} if pods else {}  # as kube-apiserver keeps them
    return decode(Node, {"metadata": {"name": name}, "spec": spec, "status": {"addresses": said}})


@pytest.mark.parametrize(
    ("found", "networks"),
    [
        (node(), ()),
        (node("192.168.77.1", pods=["10.244.0.0/24"]), ("10.244.0.0/24", "192.168.77.1/32")),
        (node("fd00::1", pods=["10.1.2.0/24", "fd01::/64"]), ("10.1.2.0/24", "fd00::1/128", "fd01::/64")),
        (node({"type": "ExternalIP", "address": "203.0.113.7"}), ("203.0.113.7/32",)),
        (node({"type": "Hostname", "address": "192.168.77.1"}), ()),
        (node({"type": "InternalDNS", "address": "n.example"}), ()),
        (node(pods=["10.244.0.0/16"]), ("10.244.0.0/16",)),
    ],
)
def test_a_node_opens_its_addresses_and_the_networks_of_its_pods(found, networks):
    """Names open nothing."""
    assert networks_of([found]) == (networks, ())


@pytest.mark.parametrize(
    "found",
    [
        *(node(each) for each in ("0.0.0.0", "::", "127.0.0.1", "224.0.0.1", "fe80::1", "fe80::1%eth0", "10.0.0.0/8")),
        *(node(each) for each in ("", "host", "0.0.0.0/0", "1", "10.0.0.256")),
        *(node(pods=[each]) for each in ("0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "10.0.0.0/8", "10.244.0.0/15")),
        *(node(pods=[each]) for each in ("::/0", "2000::/3", "fd00::/47", "::/96", "127.0.0.0/16", "224.0.0.0/16")),
        *(node(pods=[each]) for each in ("10.244.0.1/24", "all", "10.244.0.0/33")),
    ],
)
def test_what_no_node_has_opens_nothing_and_is_told(found):
    """The value and the node are named; what else the node has counts."""
    networks, (refused,) = networks_of([found, node("10.0.0.1", name="m")])
    assert networks == ("10.0.0.1/32",)
    assert refused.startswith("node n: ")


def test_a_node_with_many_addresses_opens_a_few_and_adjacent_networks_are_joined():
    """A kubelet writes its own addresses; a hundred nodes of one cluster need few lines."""
    networks, _ = networks_of([node(*(f"10.0.0.{each}" for each in range(256)))])
    assert networks == (f"10.0.0.0/{32 - MAX_ADDRESSES.bit_length() + 1}",)
    assert networks_of([node(pods=[f"10.244.{each}.0/24"]) for each in range(4)]) == (("10.244.0.0/22",), ())
