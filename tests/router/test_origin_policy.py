"""Pages that are near, by networks and names, and their CORS headers; `test_gateway` has the results."""

import pytest

from http_lab import head_of
from llmkube.base.http.message import Headers
from llmkube.router.origin_policy import cors_lines, is_foreign_origin, is_preflight, preflight_answer

CHAT = "/v1/chat/completions"


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
    """An address outside the lists is foreign, even if this Python version's `is_global` differs."""
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
    """A DNS rebinding page can send a form with its https Origin; requests by scripts are blocked by the browser."""
    headers = {"Host": "evil.example", "Origin": "https://evil.example"}
    assert is_foreign_origin(Headers.of(headers | ({"Content-Type": kind} if kind else {}))) == foreign


@pytest.mark.parametrize(
    ("origin", "host", "near"),
    [
        ("https://ai.example", "ai.example", True),
        ("https://ai.example", "AI.example:443", True),
        ("https://ai.example:8443", "ai.example:8443", True),
        ("https://ai.example:8443", "ai.example", False),
        ("https://ai.example", "ai.example:8080", False),
        ("https://ai.example:8443", "ai.example:8080", False),
        ("https://ai.example:x", "ai.example", False),
        ("https://ai.example", "ai.example:x", False),
        ("https://ai.example:99999", "ai.example:99999", False),
        ("https://localhost:3000", "ai.example", True),  # near by its name, whatever the proxy
    ],
)
def test_a_page_behind_a_proxy_has_the_host_and_the_port_of_the_request(origin, host, near):
    """Without the setting no page is near because of a proxy; the CORS headers follow the same rule."""
    head = head_of(CHAT, f"Origin: {origin}\r\n").lines.with_value("host", host)
    assert is_foreign_origin(head) is not near
    assert is_foreign_origin(head, https_proxy_pages=False) is ("localhost" not in origin)


@pytest.mark.parametrize(
    ("origin", "granted"),
    [
        ("http://localhost:3977", True),
        ("https://192.168.1.5", True),
        ("app://obsidian.md", True),
        ("vscode-webview://0cd1-4f", True),
        ("tauri://localhost", True),
        ("http://tauri.localhost", True),  # Tauri on Windows and Android
        ("capacitor://localhost", True),
        ("chrome-extension://abcdefghijklmnop", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("ftp://evil.example", False),
        ("wss://evil.example", False),
        ("null", False),
        ("file", False),
        ("file://", False),
        ("FILE:///home/me/Downloads/x.html", False),
        ("file://localhost", False),
        ("about:blank", False),
        ("blob:https://localhost/1", False),
        ("data:text/html,x", False),
        ("content://downloads", False),
        ("", False),
    ],
)
def test_a_page_is_granted_its_own_origin_exactly_if_it_may_use_the_gateway(origin, granted):
    """The header names only that origin; otherwise there is no header."""
    head = head_of(CHAT, f"Origin: {origin}\r\n")
    lines = cors_lines(head).decode()
    assert is_foreign_origin(head.lines) is not granted
    assert lines.startswith(f"Access-Control-Allow-Origin: {origin}\r\n") is granted
    assert bool(lines) is granted


def test_a_program_is_granted_nothing():
    """Without Origin no header is added."""
    assert cors_lines(head_of(CHAT)) == b""


@pytest.mark.parametrize(
    ("method", "lines", "is_one"),
    [
        ("OPTIONS", "Origin: http://a.lan\r\nAccess-Control-Request-Method: POST\r\n", True),
        ("POST", "Origin: http://a.lan\r\nAccess-Control-Request-Method: POST\r\n", False),
        ("OPTIONS", "Access-Control-Request-Method: POST\r\n", False),
        ("OPTIONS", "Origin: http://a.lan\r\n", False),
        ("OPTIONS", "Origin: http://a.lan\r\nAccess-Control-Request-Method: POST\r\nContent-Length: 1\r\n", False),
    ],
)
def test_a_preflight_is_what_a_browser_asks_by_itself(method, lines, is_one):
    """Other OPTIONS requests need a key if there is one."""
    assert is_preflight(head_of(CHAT, lines, method)) is is_one


def test_a_page_may_delete_what_is_kept_for_it():
    """DELETE is allowed there only."""
    for path, methods in ((CHAT, "GET, HEAD, POST"), ("/v1/responses/resp_1", "GET, HEAD, POST, DELETE")):
        asked = head_of(path, "Access-Control-Request-Method: DELETE\r\n", "OPTIONS")
        assert preflight_answer(asked).headers.get("access-control-allow-methods") == methods


def test_a_list_of_headers_that_is_none_is_not_repeated():
    """The header has header names only, or is omitted."""
    asked = head_of(CHAT, "Access-Control-Request-Headers: a, b\r\n", "OPTIONS")
    assert preflight_answer(asked).headers.get("access-control-allow-headers") == "a, b"
    asked = head_of(CHAT, "Access-Control-Request-Headers: a; b\r\n", "OPTIONS")
    assert "access-control-allow-headers" not in preflight_answer(asked).headers
