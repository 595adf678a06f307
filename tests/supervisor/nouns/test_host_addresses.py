"""Where a cluster reaches a host, decided from what a look at its network has shown."""

import pytest

from llmkube.supervisor.nouns.host_addresses import NAMES_FOR_NODES, Reach, Surroundings, choose, is_usable, settle

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


def test_before_anybody_has_looked_no_address_is_lost():
    """An agent that has not seen its network yet ends no engine for the address that it listens on."""
    assert Reach(None, seen=False).serves(LAN)
    assert not Reach(None).serves(LAN)
