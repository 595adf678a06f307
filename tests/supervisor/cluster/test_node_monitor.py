"""The node monitor: networks are admitted as Nodes are added, deleted and refused.

It covers the networks of a cluster's nodes, and odd or hostile Nodes.
"""

import random
from pathlib import Path

import pytest
import structlog.testing
import trio

from k8s.scripted import ScriptedServer, event, html, ok, status, watching
from llmkube.k8s.builtins import Node
from llmkube.k8s.codec import decode
from llmkube.supervisor.cluster.node_monitor import MAX_ADDRESSES, REFUSED_SECONDS, NodeMonitor, networks_of
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks
from llmkube.supervisor.values.settings import EVERYWHERE, AgentSettings

GIVEN = ("10.9.0.0/16",)


def node(name, version, address, pods=""):
    metadata = {"name": name, "resourceVersion": str(version), "uid": f"uid-{name}"}
    spec = {"podCIDR": pods, "podCIDRs": [pods]} if pods else {}
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"addresses": addresses}}


def listing(version, *items):
    return ok(
        {"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": str(version)}, "items": list(items)}
    )


async def follow(*answers, until=100.0, publish=None, **changes):
    """Watch for some virtual seconds; return the published networks, the log and the server."""
    settings = AgentSettings("h", Path("/s"), Path("/s"), "x", api_server="https://k", allow_from=GIVEN, **changes)
    published, server = [], ScriptedServer(*answers)

    async def keep(admitted):
        await trio.lowlevel.checkpoint()
        published.append(admitted)

    networks = NodeMonitor(server.client(), settings, publish or keep, random.Random(7))
    with structlog.testing.capture_logs() as logs, trio.move_on_after(until):
        await networks.run()
    return published, logs, server, networks


async def test_the_networks_follow_the_nodes(autojump_clock):
    """Nodes are listed, one is added and one is deleted; a change without effect is published and logged once."""
    published, logs, _, _ = await follow(
        listing(10, node("a", 1, "10.0.0.1", "10.244.0.0/24")),
        watching(
            event("MODIFIED", node("a", 11, "10.0.0.1", "10.244.0.0/24")),
            event("ADDED", node("b", 12, "10.0.0.9", "0.0.0.0/0")),
            5.0,
            event("DELETED", node("a", 13, "10.0.0.1")),
            None,
        ),
        until=50,
    )
    assert published[-2:] == [
        AdmittedNetworks(GIVEN, ("10.0.0.1/32", "10.0.0.9/32", "10.244.0.0/24")),
        AdmittedNetworks(GIVEN, ("10.0.0.9/32",)),
    ]
    problems = [each["problem"] for each in logs if each["event"] == "network of a node not admitted"]
    assert problems == ["node b: spec.podCIDRs: '0.0.0.0/0' is not an address that a node may have"]
    assert len([each for each in logs if each["event"] == "networks admitted"]) == len(published)


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (404, "NotFound"), (404, "")])
async def test_without_the_right_to_list_nodes_the_given_networks_are_used(autojump_clock, code, reason):
    """The refusal is logged once, retried, and over when the right is granted."""
    refused, again = (status(code, reason, "nodes is forbidden") if reason else html(code) for _ in range(2))
    published, logs, server, _ = await follow(
        refused, again, listing(10, node("a", 1, "10.0.0.1")), watching(None), until=2.5 * REFUSED_SECONDS
    )
    assert [each.nodes for each in published] == [(), ("10.0.0.1/32",)]
    assert {each.given for each in published} == {GIVEN}
    assert "no list of nodes" in published[0].problem
    assert published[1].problem == ""
    assert len([each for each in logs if each["event"] == "networks admitted"]) == 2
    assert [round(call.at - server.calls[0].at) for call in server.calls[:3]] == [0, 60, 120]


async def test_published_networks_stay_until_the_api_server_answers(autojump_clock):
    """An API server in trouble interrupts no pod."""
    published, _, _, networks = await follow(status(500, "InternalError"), until=20)
    assert (published, networks.closed) == ([], "")


async def test_listed_nodes_stay_when_the_right_to_list_is_revoked(autojump_clock):
    published, _, _, _ = await follow(
        listing(10, node("a", 1, "10.0.0.1")), status(403, "Forbidden"), status(403, "Forbidden"), until=1000
    )
    assert published == [AdmittedNetworks(GIVEN, ("10.0.0.1/32",))]


async def test_a_cluster_without_nodes_admits_the_given_networks(autojump_clock):
    published, (logged,), _, networks = await follow(listing(10), watching(None), until=5)
    assert published == [AdmittedNetworks(GIVEN)]
    assert (networks.closed, logged["log_level"]) == ("", "info")


async def test_insecure_lan_admits_every_address(autojump_clock):
    """Nodes are not listed."""
    published, _, server, _ = await follow(until=5, insecure_lan=True)
    assert (published, server.calls) == ([AdmittedNetworks(EVERYWHERE)], [])


async def test_a_failed_write_to_disk_is_reported(autojump_clock):
    """Proxies keep their networks, and the agent continues."""

    async def full(_):
        await trio.lowlevel.checkpoint()
        raise OSError(28, "No space left on device")

    _, logs, _, _ = await follow(listing(10, node("a", 1, "10.0.0.1")), watching(None), until=5, publish=full)
    assert [each["log_level"] for each in logs] == ["info", "warning"]


def node_at(*addresses, pods=(), name="n"):
    reported = [{"type": "InternalIP", "address": each} if isinstance(each, str) else dict(each) for each in addresses]
    spec = {"podCIDR": pods[0], "podCIDRs": list(pods)} if pods else {}  # as kube-apiserver keeps them
    return decode(Node, {"metadata": {"name": name}, "spec": spec, "status": {"addresses": reported}})


@pytest.mark.parametrize(
    ("found", "networks"),
    [
        (node_at(), ()),
        (node_at("192.168.77.1", pods=["10.244.0.0/24"]), ("10.244.0.0/24", "192.168.77.1/32")),
        (node_at("fd00::1", pods=["10.1.2.0/24", "fd01::/64"]), ("10.1.2.0/24", "fd00::1/128", "fd01::/64")),
        (node_at({"type": "ExternalIP", "address": "203.0.113.7"}), ("203.0.113.7/32",)),
        (node_at({"type": "Hostname", "address": "192.168.77.1"}), ()),
        (node_at({"type": "InternalDNS", "address": "n.example"}), ()),
        (node_at(pods=["10.244.0.0/16"]), ("10.244.0.0/16",)),
    ],
)
def test_a_node_opens_its_addresses_and_the_networks_of_its_pods(found, networks):
    """Host names are ignored."""
    assert networks_of([found]) == (networks, ())


@pytest.mark.parametrize(
    "found",
    [
        *(
            node_at(each)
            for each in ("0.0.0.0", "::", "127.0.0.1", "224.0.0.1", "fe80::1", "fe80::1%eth0", "10.0.0.0/8")
        ),
        *(node_at(each) for each in ("", "host", "0.0.0.0/0", "1", "10.0.0.256")),
        *(node_at(pods=[each]) for each in ("0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "10.0.0.0/8", "10.244.0.0/15")),
        *(node_at(pods=[each]) for each in ("::/0", "2000::/3", "fd00::/47", "::/96", "127.0.0.0/16", "224.0.0.0/16")),
        *(node_at(pods=[each]) for each in ("10.244.0.1/24", "all", "10.244.0.0/33")),
    ],
)
def test_a_network_that_no_node_can_have_is_rejected_and_reported(found):
    """The value and the node are logged; the node's other addresses are admitted."""
    networks, (refused,) = networks_of([found, node_at("10.0.0.1", name="m")])
    assert networks == ("10.0.0.1/32",)
    assert refused.startswith("node n: ")


def test_a_node_with_many_addresses_opens_a_few_and_adjacent_networks_are_joined():
    """A kubelet writes its own addresses; a hundred nodes of one cluster need few lines."""
    networks, _ = networks_of([node_at(*(f"10.0.0.{each}" for each in range(256)))])
    assert networks == (f"10.0.0.0/{32 - MAX_ADDRESSES.bit_length() + 1}",)
    assert networks_of([node_at(pods=[f"10.244.{each}.0/24"]) for each in range(4)]) == (("10.244.0.0/22",), ())
