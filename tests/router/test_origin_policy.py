"""Which pages are near: by networks and names; what those get of the gateway is in `test_gateway`."""

import pytest

from llmkube.base.http.message import Headers
from llmkube.router.origin_policy import is_foreign_origin


@pytest.mark.parametrize(
    ("page", "foreign"),
    [
        ("localhost", False),
        ("mac-studio", False),
        ("open_webui", False),
        ("nas.local", False),
        ("ai", True),  # a country's top-level domain, which had an address
        ("pn:8080", True),
        ("xn--p1ai", True),
        ("ai.", True),
        ("a b", True),
        ("localhost, evil", True),
        ("", True),
        ("127.0.0.1", False),
        ("100.64.0.9", False),
        ("[fd00::5]", False),
        ("[fe80::1%25eth0]", False),
        ("[::ffff:c0a8:105]", False),  # 192.168.1.5
        ("[::ffff:808:808]", True),
        ("[64:ff9b::808:808]", True),  # NAT64 of 8.8.8.8
        ("[2001::1]", True),  # Teredo
        ("[2001:10::1]", True),  # ORCHID
        ("[2001:20::1]", True),  # ORCHIDv2
        ("[2002:7f00:1::]", True),  # 6to4 of 127.0.0.1
        ("[::7f00:1]", True),  # IPv4-compatible
        ("[::]", True),
        ("0.0.0.0", True),
        ("192.0.0.1", True),
        ("198.18.0.1", True),
        ("224.0.0.1", True),
    ],
)
def test_a_page_is_near_by_a_list_of_networks_and_names(page, foreign):
    """What no list names is foreign, whatever the Python at hand calls global."""
    assert is_foreign_origin(Headers.of({"Host": "127.0.0.1:8080", "Origin": f"http://{page}"})) == foreign


@pytest.mark.parametrize(
    ("kind", "foreign"),
    [
        ("application/json", False),
        (None, False),
        ("text/plain", True),
        ("Text/Plain; charset=x", True),
        ("application/x-www-form-urlencoded", True),
        ("multipart/form-data; boundary=x", True),
    ],
)
def test_a_form_over_https_is_no_proxy_of_the_user_s(kind, foreign):
    """A page that moves its name here can send a form with its https Origin; what scripts fetch, its browser blocks."""
    headers = {"Host": "evil.example:8080", "Origin": "https://evil.example"}
    assert is_foreign_origin(Headers.of(headers | ({"Content-Type": kind} if kind else {}))) == foreign
