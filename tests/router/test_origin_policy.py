"""Which pages are granted what, as a table; `test_gateway` shows what becomes of their requests."""

import pytest

from http_lab import head_of
from llmkube.router.origin_policy import is_foreign_origin, is_preflight, page_grant, preflight_answer

CHAT = "/v1/chat/completions"


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
        ("", False),
    ],
)
def test_a_page_is_granted_its_own_origin_exactly_if_it_may_use_the_gateway(origin, granted):
    """The grant names the page and no other; where there is none, there is no line at all."""
    head = head_of(CHAT, f"Origin: {origin}\r\n")
    lines = page_grant(head).decode()
    assert is_foreign_origin(head.lines) is not granted
    assert lines.startswith(f"Access-Control-Allow-Origin: {origin}\r\n") is granted
    assert bool(lines) is granted


def test_a_program_is_granted_nothing():
    """No Origin, no lines: what programs get is as it was."""
    assert page_grant(head_of(CHAT)) == b""


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
    """Anything else with OPTIONS needs a key where there is one."""
    assert is_preflight(head_of(CHAT, lines, method)) is is_one


def test_a_list_of_headers_that_is_none_is_not_repeated():
    """What stands in the answer is a list of header names, or is left out."""
    asked = head_of(CHAT, "Access-Control-Request-Headers: a, b\r\n", "OPTIONS")
    assert preflight_answer(asked).headers.get("access-control-allow-headers") == "a, b"
    asked = head_of(CHAT, "Access-Control-Request-Headers: a; b\r\n", "OPTIONS")
    assert "access-control-allow-headers" not in preflight_answer(asked).headers
