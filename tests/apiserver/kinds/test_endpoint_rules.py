"""Which addresses an EndpointSlice and Endpoints may name."""

import pytest

from apiserver.stored_objects import SLICE, judged, made

LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"


LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"


MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"


ADDRESSES: list[tuple[str, str, str]] = [
    ("IPv4", "10.0.0.1", ""),
    ("IPv4", "192.168.1.2", ""),
    ("IPv4", "127.0.0.1", LOOPBACK),
    ("IPv4", "127.9.9.9", LOOPBACK),
    ("IPv4", "169.254.1.1", LINK_LOCAL),
    ("IPv4", "224.0.0.5", MULTICAST),
    ("IPv4", "0.0.0.0", "may not be unspecified (0.0.0.0)"),
    ("IPv4", "10.0.0", "must be a valid IP address"),
    ("IPv4", "010.0.0.1", "must not have leading 0s"),
    ("IPv6", "2001:db8::1", ""),
    ("IPv6", "::1", LOOPBACK),
    ("IPv6", "::ffff:127.0.0.1", "must not be an IPv4-mapped IPv6 address"),
    ("IPv6", "2001:DB8:0:0::1", 'must be in canonical form ("2001:db8::1")'),
    ("IPv6", "fe80::1", LINK_LOCAL),
    ("IPv6", "ff02::1", MULTICAST),
    ("FQDN", "host.example.com", ""),
    ("FQDN", "Host", "a lowercase RFC 1123 subdomain"),
]


@pytest.mark.parametrize(("kind", "address", "message"), ADDRESSES)
def test_a_slice_refuses_addresses_that_are_local_everywhere(kind: str, address: str, message: str):
    """Loopback, link-local, unspecified and malformed addresses are refused at their index, others pass."""
    errors = judged("EndpointSlice", addressType=kind, endpoints=[{"addresses": [address]}])
    if message:
        (error,) = errors
        assert error.startswith(f'endpoints[0].addresses[0]: Invalid value: "{address}": {message}')
    else:
        assert errors == []


def test_a_slice_keeps_to_one_family():
    """An address of the other family is refused at the list, as kube-apiserver does."""
    for kind, address in (("IPv4", "2001:db8::1"), ("IPv6", "10.0.0.1")):
        assert judged("EndpointSlice", addressType=kind, endpoints=[{"addresses": [address]}]) == [
            f'endpoints[0].addresses: Invalid value: "{address}": must be an {kind} address'
        ]


def test_endpoints_refuse_loopback_too():
    """The classic Endpoints object has the same rule."""
    subsets = [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 80}]}]
    assert judged("Endpoints", subsets=subsets) == [
        f'subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": {LOOPBACK}'
    ]


def test_a_slices_address_type_is_fixed():
    """The addressType of a stored slice cannot change."""
    old = made("EndpointSlice", **SLICE, endpoints=[])
    old["metadata"]["resourceVersion"] = "1"
    assert judged("EndpointSlice", old, addressType="IPv6", endpoints=[]) == [
        'addressType: Invalid value: "IPv6": field is immutable'
    ]
