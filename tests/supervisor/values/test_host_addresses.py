"""The advertised address of a host, decided from a scan of its network."""

import pytest

from llmkube.supervisor.values.host_addresses import (
    NAMES_FOR_NODES,
    HostAddress,
    NetworkView,
    choose,
    is_usable,
    keep_last,
)

LAN, OTHER, GATEWAY, SIX = "192.168.1.50", "10.1.2.3", "192.168.65.254", "2001:db8::50"
OWN = frozenset({LAN, OTHER, SIX})
DOCKER, MINIKUBE = NAMES_FOR_NODES


@pytest.mark.parametrize(
    ("given", "seen", "address", "bind"),
    [
        (None, NetworkView(OWN, LAN), LAN, LAN),
        (None, NetworkView(OWN, SIX), SIX, SIX),
        (OTHER, NetworkView(OWN, LAN), OTHER, OTHER),
        # next to the cluster: an own address is listened on, a virtual machine's gateway leads to the loopback address
        (None, NetworkView(OWN, "127.0.0.1", True, ((DOCKER, GATEWAY),), LAN), GATEWAY, "127.0.0.1"),
        (None, NetworkView(OWN, "127.0.0.1", True, ((MINIKUBE, OTHER),), LAN), OTHER, OTHER),
        (None, NetworkView(OWN, "::1", True, ((DOCKER, "fd00::fe"),), LAN), "fd00::fe", "::1"),
        (None, NetworkView(OWN, "127.0.0.1", True, ((DOCKER, "127.0.0.1"), (MINIKUBE, OTHER)), LAN), OTHER, OTHER),
        (None, NetworkView(OWN, "127.0.0.1", True, (), LAN), LAN, LAN),
    ],
)
def test_the_address_and_what_to_listen_on(given, seen, address, bind):
    """Each row gives an address that slices may hold, and one that engines can listen on."""
    host_address = choose(given, seen)
    assert (host_address.address, host_address.bind, host_address.problem) == (address, bind, "")
    assert host_address.why
    assert is_usable(address)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (NetworkView(OWN), "no route"),
        (NetworkView(OWN, "169.254.7.7"), "no route"),
        (NetworkView(OWN, "fe80::1"), "no route"),
        (NetworkView(frozenset(), "127.0.0.1", True), "--host-ip"),
        (NetworkView(frozenset(), "127.0.0.1", True, ((DOCKER, "127.0.0.1"),), "169.254.1.1"), "--host-ip"),
        (NetworkView(OWN, "127.0.0.1", True), "--host-ip"),
    ],
)
def test_no_address_is_a_problem_with_a_message(seen, words):
    """Loopback and link-local addresses are never advertised; without another one, the reason is reported.

    The addresses of the host are still known: engines on them have not lost them.
    """
    host_address = choose(None, seen)
    assert host_address.address is None
    assert words in host_address.problem
    assert all(host_address.serves(address) for address in seen.own)
    assert not host_address.serves("203.0.113.9")


def test_a_lost_host_ip_is_reported_and_kept():
    """--host-ip is the operator's choice: nothing else is advertised, but its absence is a problem."""
    host_address = choose(LAN, NetworkView(frozenset({OTHER})))
    assert host_address.address == LAN
    assert LAN in host_address.problem


def test_engines_stay_where_they_are_as_long_as_the_host_has_the_address():
    """A new route moves new engines only; a lost or unreachable address moves them all."""
    host_address = HostAddress(OTHER, OTHER, own=OWN)
    assert host_address.serves(LAN)
    assert host_address.advertised(LAN) == LAN
    assert host_address.advertised("") == host_address.advertised(OTHER) == OTHER
    assert not host_address.serves("192.168.9.9")
    assert not host_address.serves("127.0.0.1")
    assert host_address.advertised("192.168.9.9") == OTHER


def test_behind_a_gateway_the_loopback_address_is_advertised_as_the_gateway():
    """An engine on the loopback address is reached under the virtual machine's name for this host."""
    host_address = HostAddress(GATEWAY, "127.0.0.1", own=OWN)
    assert host_address.serves("127.0.0.1")
    assert host_address.advertised("127.0.0.1") == GATEWAY


def test_under_up_nothing_is_published():
    """No engine is advertised, whatever its address."""
    host_address = HostAddress(None)
    assert host_address.advertised("127.0.0.1") is None
    assert host_address.serves("127.0.0.1")
    assert not host_address.serves(LAN)


def test_while_there_is_no_address_the_last_one_stays():
    """A laptop between two networks keeps everything, with the problem recorded; the next address replaces it."""
    before, nothing = choose(None, NetworkView(OWN, LAN)), choose(None, NetworkView())
    between = keep_last(before, nothing)
    assert (between.address, between.own, between.problem) == (LAN, OWN, nothing.problem)
    after = choose(None, NetworkView(frozenset({OTHER}), OTHER))
    assert keep_last(between, after) == after
    assert keep_last(None, nothing) == nothing


def test_before_the_first_scan_no_address_is_lost():
    """An agent that has not scanned its network yet ends no engine for the address that it listens on."""
    assert HostAddress(None, seen=False).serves(LAN)
    assert not HostAddress(None).serves(LAN)
