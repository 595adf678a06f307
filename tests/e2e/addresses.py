"""Addresses of the machine that the tests run on."""

import ipaddress

import psutil
import pytest


def own_address() -> str:
    """Return an address of this machine that Kubernetes accepts in a slice."""
    for each in (each for addresses in psutil.net_if_addrs().values() for each in addresses):
        try:
            found = ipaddress.ip_address(each.address)
        except ValueError:  # a hardware address, or one with a zone
            continue
        if not (found.is_loopback or found.is_link_local):
            return str(found)
    pytest.skip("this test needs an address besides loopback, which Kubernetes refuses in EndpointSlices")
