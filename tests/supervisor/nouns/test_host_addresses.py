"""Where a cluster reaches a host, decided from what a look at its network has shown."""

import socket
import sys

import pytest
import trio

from lacking import no_descriptors
from llmkube.supervisor import network as network_module
from llmkube.supervisor.host.procfs import parse_meminfo
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.network import LocalNetwork, host_facts
from llmkube.supervisor.nouns.host_addresses import NAMES_FOR_NODES, Reach, Surroundings, choose, is_usable, settle
from llmkube.supervisor.nouns.ports import HostFacts

LAN, OTHER, GATEWAY, SIX = "192.168.1.50", "10.1.2.3", "192.168.65.254", "2001:db8::50"
OWN = frozenset({LAN, OTHER, SIX})
DOCKER, MINIKUBE = NAMES_FOR_NODES


@pytest.mark.parametrize(
    ("given", "seen", "address", "bind"),
    [
        (None, Surroundings(OWN, LAN), LAN, LAN),
        (None, Surroundings(OWN, SIX), SIX, SIX),
        (OTHER, Surroundings(OWN, LAN), OTHER, OTHER),
        # beside the cluster: an own address is listened on, a virtual machine's gateway leads to the loopback address
        (None, Surroundings(OWN, "127.0.0.1", True, ((DOCKER, GATEWAY),), LAN), GATEWAY, "127.0.0.1"),
        (None, Surroundings(OWN, "127.0.0.1", True, ((MINIKUBE, OTHER),), LAN), OTHER, OTHER),
        (None, Surroundings(OWN, "::1", True, ((DOCKER, "fd00::fe"),), LAN), "fd00::fe", "::1"),
        (None, Surroundings(OWN, "127.0.0.1", True, ((DOCKER, "127.0.0.1"), (MINIKUBE, OTHER)), LAN), OTHER, OTHER),
        (None, Surroundings(OWN, "127.0.0.1", True, (), LAN), LAN, LAN),
    ],
)
def test_the_address_and_what_to_listen_on(given, seen, address, bind):
    """Each row gives an address that slices may hold, and one that engines can listen on."""
    reach = choose(given, seen)
    assert (reach.address, reach.bind, reach.problem) == (address, bind, "")
    assert reach.why
    assert is_usable(address)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Surroundings(OWN), "no route"),
        (Surroundings(OWN, "169.254.7.7"), "no route"),
        (Surroundings(OWN, "fe80::1"), "no route"),
        (Surroundings(frozenset(), "127.0.0.1", True), "--host-ip"),
        (Surroundings(frozenset(), "127.0.0.1", True, ((DOCKER, "127.0.0.1"),), "169.254.1.1"), "--host-ip"),
        (Surroundings(OWN, "127.0.0.1", True), "--host-ip"),
    ],
)
def test_no_address_is_a_problem_with_words(seen, words):
    """Loopback and link-local addresses are never advertised; without another one, the reason is told.

    The addresses that the host has are known all the same: engines on them have not lost them.
    """
    reach = choose(None, seen)
    assert reach.address is None
    assert words in reach.problem
    assert all(reach.serves(address) for address in seen.own)
    assert not reach.serves("203.0.113.9")


def test_a_given_address_that_is_gone_is_told_and_kept():
    """--host-ip is the operator's word: nothing else is advertised, but its absence is a problem."""
    reach = choose(LAN, Surroundings(frozenset({OTHER})))
    assert reach.address == LAN
    assert LAN in reach.problem


def test_engines_stay_where_they_are_as_long_as_the_host_has_the_address():
    """A new route moves new engines only; a lost address, or one that nobody reaches, moves them all."""
    reach = Reach(OTHER, OTHER, own=OWN)
    assert reach.serves(LAN)
    assert reach.advertised(LAN) == LAN
    assert reach.advertised("") == reach.advertised(OTHER) == OTHER
    assert not reach.serves("192.168.9.9")
    assert not reach.serves("127.0.0.1")
    assert reach.advertised("192.168.9.9") == OTHER


def test_behind_a_gateway_the_loopback_address_is_advertised_as_the_gateway():
    """An engine on the loopback address is reached under the virtual machine's name for this host."""
    reach = Reach(GATEWAY, "127.0.0.1", own=OWN)
    assert reach.serves("127.0.0.1")
    assert reach.advertised("127.0.0.1") == GATEWAY


def test_under_up_nothing_is_published():
    """Without an address there is none, wherever the engine is."""
    reach = Reach(None)
    assert reach.advertised("127.0.0.1") is None
    assert reach.serves("127.0.0.1")
    assert not reach.serves(LAN)


def test_while_there_is_no_address_the_last_one_stays():
    """A laptop between two networks keeps everything, with the problem noted; the next address replaces it."""
    before, nothing = choose(None, Surroundings(OWN, LAN)), choose(None, Surroundings())
    between = settle(before, nothing)
    assert (between.address, between.own, between.problem) == (LAN, OWN, nothing.problem)
    after = choose(None, Surroundings(frozenset({OTHER}), OTHER))
    assert settle(between, after) == after
    assert settle(None, nothing) == nothing


async def test_this_machine_can_be_looked_at():
    """A real look gives an own address or a problem, and never raises, whatever the network of the test is."""
    for server in ("https://127.0.0.1:6443", "https://192.0.2.1:6443", "https://[::1]:6443", "https://no-such.invalid"):
        reach = await LocalNetwork(server).look()
        assert (reach.address is None) == bool(reach.problem)
        assert reach.address is None or is_usable(reach.address)
    assert (await LocalNetwork("https://127.0.0.1", "203.0.113.9").look()).problem


def test_before_anybody_has_looked_no_address_is_lost():
    """An agent that has not seen its network yet ends no engine for the address that it listens on."""
    assert Reach(None, seen=False).serves(LAN)
    assert not Reach(None).serves(LAN)


async def test_a_look_that_cannot_be_made_says_nothing():
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
    network_module._source_towards([("2001:db8::1", 443)])
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
