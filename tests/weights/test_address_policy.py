import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.base.errors import UserError
from llmkube.weights.address_policy import AddressPolicy, matching_rule, parse_networks

PRIVATE = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"],
    "private network": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fdff::1"],
    "link-local": ["169.254.1.1", "fe80::1", "febf::1", "::ffff:169.254.9.9"],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.254"],
    "site-local": ["fec0::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255"],
    "documentation": ["192.0.2.1", "198.51.100.7", "203.0.113.7", "2001:db8::1", "3fff::1"],
    "protocol assignments": ["192.0.0.8", "2001:2::1", "2001:10::1", "2001:1ff::1"],
    "local NAT64": ["64:ff9b:1::1"],
    "6to4 relay": ["192.88.99.1"],
    "AS112": ["192.31.196.1", "192.175.48.1"],
    "multicast tunnelling": ["192.52.193.1"],
    "not global unicast": ["4000::1", "5f00::1", "200::1", "fe00::1", "::1:0:0:1", "1::"],
}
NEVER = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "::ffff:224.0.0.1"],
    "reserved or broadcast": ["240.0.0.1", "255.255.255.255"],
    "cloud metadata service": [
        "169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
    ],
    "cloud credentials service": ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"],
    "cloud host service": ["168.63.129.16"],
    "IPv4-compatible": ["::127.0.0.1", "::10.0.0.1", "::8.8.8.8", "::2"],
    "IPv4-translated": ["::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"],
    "6to4": ["2002:7f00:1::", "2002:808:808::1"],
    "Teredo": ["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "discard only": ["100::1"],
}  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
    "169.253.255.255", "169.255.0.0", "2606:4700::1111", "2a00:1450::1", "2001:200::1", "2003::1", "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]  # fmt: skip


def rows(table):
    return [(rule, address) for rule, addresses in table.items() for address in addresses]


@pytest.mark.parametrize(("rule", "address"), rows(PRIVATE) + rows(NEVER))
def test_an_object_leads_to_no_address_that_is_not_public(rule, address):
    """Each kind of address that is not a public one is refused, by the rule that is meant for it."""
    found = AddressPolicy().refusal(ipaddress.ip_address(address))
    assert found is not None
    assert found.name == rule


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_let_through(address):
    """The neighbours of every refused network, and public addresses behind NAT64, can be dialled."""
    assert matching_rule(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(("rule", "address"), rows(NEVER))
def test_some_addresses_no_setting_allows(rule, address):
    """Metadata services, multicast and wrapped addresses stay refused for the operator, too."""
    everything = parse_networks(["0.0.0.0/0", "::/0"])
    for policy in (AddressPolicy(from_operator=True), AddressPolicy(allowed=everything)):
        assert policy.refusal(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize(("rule", "address"), rows(PRIVATE))
def test_the_operator_may_name_private_addresses(rule, address):
    """Addresses on the operator's own command line may be in private networks."""
    assert AddressPolicy(from_operator=True).refusal(ipaddress.ip_address(address)) is None


@given(st.ip_addresses(v=4))
def test_a_wrapped_ipv4_address_is_never_more_welcome_than_the_plain_one(address):
    """Whatever way an IPv4 address is put into an IPv6 one, it gets at most what it got before."""
    number = int(address)
    same = [ipaddress.IPv6Address(prefix + number) for prefix in (0xFFFF << 32, 0x64FF9B << 96)]
    assert [matching_rule(wrapped) for wrapped in same] == [matching_rule(address)] * 2
    teredo = (0x20010000 << 96) + (number ^ 0xFFFFFFFF)
    others = [number, (0xFFFF << 48) + number, (0x2002 << 112) + (number << 80), teredo]
    assert all(matching_rule(ipaddress.IPv6Address(other)) is not None for other in others)


def test_an_allowed_network_opens_itself_and_nothing_else():
    """A network on the operator's list can be reached, also in its mapped form; its neighbours cannot."""
    policy = AddressPolicy(allowed=parse_networks(["192.168.7.0/24", " fd00:1::/32"]))
    for allowed in ("192.168.7.9", "::ffff:192.168.7.9", "fd00:1::9"):
        assert policy.refusal(ipaddress.ip_address(allowed)) is None
    for refused in ("192.168.8.1", "127.0.0.1", "fd00:2::1"):
        assert policy.refusal(ipaddress.ip_address(refused)) is not None


@pytest.mark.parametrize("text", ["", "192.168.0.1/8", "300.0.0.0/8", "localhost", "10.0.0.0/33"])
def test_a_network_that_is_none_is_refused(text):
    """A malformed network names the setting and what is wrong."""
    with pytest.raises(UserError, match="not a network") as caught:
        parse_networks([text])
    assert caught.value.field == "--allow-private-sources"
