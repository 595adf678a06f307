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


async def test_this_machine_can_be_scanned():
    """A real query gives an own address or a problem, and never raises, in any network."""
    for server in ("https://127.0.0.1:6443", "https://192.0.2.1:6443", "https://[::1]:6443", "https://no-such.invalid"):
        host_address = await LocalNetwork(server).find_address()
        assert (host_address.address is None) == bool(host_address.problem)
        assert host_address.address is None or is_usable(host_address.address)
    assert (await LocalNetwork("https://127.0.0.1", "203.0.113.9").find_address()).problem


async def test_an_address_that_cannot_be_read_is_unknown():
    """Without a descriptor for the query the network is unknown: neither lost nor a problem."""
    network = LocalNetwork("https://192.0.2.1:6443")
    with no_descriptors():
        assert await network.find_address() is None
    assert await network.find_address() is not None


def test_an_ipv6_address_that_stays_is_preferred(monkeypatch):
    """The kernel gets a valid request for an address that does not expire."""
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


async def test_names_are_not_resolved_with_every_scan(monkeypatch):
    """A scan every few seconds does not query the name servers every few seconds."""
    asked = []

    async def getaddrinfo(host, port, **_):
        await trio.lowlevel.checkpoint()
        asked.append(host)
        if host != "localhost":
            raise OSError("no such name")
        return [(2, 2, 17, "", ("127.0.0.1", port))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    network = LocalNetwork("https://localhost:6443")
    before = await network.find_address()
    assert await network.find_address() == before
    assert asked == ["localhost", *NAMES_FOR_NODES]


def test_this_machine_has_memory():
    """The facts are plausible: some memory, and not more free memory than that."""
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
def test_the_facts_have_the_memory_of_the_budget(monkeypatch, seen, facts):
    """The Lease has the memory that the agent samples, the container's limit included, or nothing."""
    monkeypatch.setattr(network_module, "sample_here", seen)
    assert host_facts() == facts
