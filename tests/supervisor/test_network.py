import socket
import sys

import pytest
import trio

from lacking import no_descriptors
from llmkube.supervisor import network as network_module
from llmkube.supervisor.host.procfs import parse_meminfo
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.network import LocalNetwork, host_facts
from llmkube.supervisor.values.host_addresses import NAMES_FOR_NODES, is_usable
from llmkube.supervisor.values.ports import HostFacts


async def test_this_machine_can_be_looked_at():
    """A real look gives an own address or a problem, and never raises, whatever the network of the test is."""
    for server in ("https://127.0.0.1:6443", "https://192.0.2.1:6443", "https://[::1]:6443", "https://no-such.invalid"):
        host_address = await LocalNetwork(server).look()
        assert (host_address.address is None) == bool(host_address.problem)
        assert host_address.address is None or is_usable(host_address.address)
    assert (await LocalNetwork("https://127.0.0.1", "203.0.113.9").look()).problem


async def test_an_address_that_cannot_be_read_is_unknown():
    """Without a descriptor for the question nothing is known of the network, neither a loss nor a problem."""
    network = LocalNetwork("https://192.0.2.1:6443")
    with no_descriptors():
        assert await network.look() is None
    assert await network.look() is not None


def test_an_ipv6_address_that_stays_is_preferred(monkeypatch):
    """The kernel is asked for an address that does not expire, in words that it understands."""
    if sys.platform not in network_module.STABLE_SOURCE:
        pytest.skip("this system is not known to take the wish")
    option, value = network_module.STABLE_SOURCE[sys.platform]
    asked = []

    class Probe(socket.socket):
        def connect(self, address):
            asked.append(self.getsockopt(socket.IPPROTO_IPV6, option) & 3)

    monkeypatch.setattr(socket, "socket", Probe)
    network_module._route_source([("2001:db8::1", 443)])
    assert asked == [value]


async def test_names_are_not_asked_for_with_every_look(monkeypatch):
    """A look every few seconds does not ask the name servers every few seconds."""
    asked = []

    async def getaddrinfo(host, port, **_):
        await trio.lowlevel.checkpoint()
        asked.append(host)
        if host != "localhost":
            raise OSError("no such name")
        return [(2, 2, 17, "", ("127.0.0.1", port))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    network = LocalNetwork("https://localhost:6443")
    before = await network.look()
    assert await network.look() == before
    assert asked == ["localhost", *NAMES_FOR_NODES]


def test_this_machine_has_memory():
    """The facts are those of a machine: some memory, and not more of it free than there is."""
    facts = host_facts()
    assert 0 < facts.free_bytes <= facts.total_bytes


@pytest.mark.parametrize(
    ("seen", "facts"),
    [
        (lambda: Sample(8 << 30, 5 << 30, Level.CRITICAL), HostFacts(8 << 30, 5 << 30)),
        (lambda: parse_meminfo("no figures")["MemTotal"], HostFacts()),
        (lambda: {}["MemAvailable"], HostFacts()),
    ],
)
def test_the_facts_are_what_the_budget_is_made_of(monkeypatch, seen, facts):
    """What the Lease says of the memory is what the agent samples, the container's limit included, or nothing."""
    monkeypatch.setattr(network_module, "sample_here", seen)
    assert host_facts() == facts
