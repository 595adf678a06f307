"""Headers that the router forwards."""

import json

import pytest

from llmkube.router.dispatch.forwarded_headers import request_id_of, trace_of
from router.proxy.router_lab import answer, cloud, config_of, error, local, open_lab

FRESH = "f" * 48
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CLIENTS = {
    "Authorization": "Bearer client-secret",
    "X-Api-Key": "client-secret",
    "Cookie": "session=client-secret",
    "OpenAI-Organization": "client-org",
    "X-LLMKube-Classification": "public",
    "X-LLMKube-Team": "client-team",
    "X-Forwarded-For": "client-address",
    "User-Agent": "client-agent",
    "X-Request-Id": "req-1",
    "traceparent": PARENT,
    "tracestate": "a=b",
}


async def test_a_provider_gets_its_own_key_and_nothing_of_the_client(tmp_path):
    """Credentials, cookies and data class are removed; trace and request id pass. Each attempt has its own key."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"key-of-{name}\n")
    config = config_of(*(cloud(name, key_file=str(tmp_path / name)) for name in ("a", "b")))
    async with open_lab(config, a=error(500), b=answer()) as lab:
        assert (await lab.ask(headers=CLIENTS)).status == 200
        written = b"".join(lab.lines).decode()
    for name in ("a", "b"):
        (head,) = lab.players[name].heads
        assert "client" not in head.lower()
        assert f"Authorization: Bearer key-of-{name}\r\n" in head
        assert f"traceparent: {PARENT}\r\n" in head
        assert "X-Request-Id: req-1\r\n" in head
        assert "classification" not in head.lower()
    assert "key-of" not in written
    assert "client-secret" not in written


async def test_a_rotated_key_is_used_without_a_restart(tmp_path):
    """The next request uses it; if it is missing, the operator sees an error and nothing is sent."""
    file = tmp_path / "key"
    async with open_lab(config_of(cloud("a", key_file=str(file))), a=answer()) as lab:
        assert (await lab.ask()).status == 503
        assert not lab.players["a"].asked
        assert lab.metric("llmkube_router_backend_health", backend="a") == 0
        for key in ("one", "two"):
            fresh = tmp_path / "fresh"
            fresh.write_text(key)
            fresh.rename(file)
            assert (await lab.ask()).status == 200
            assert f"Authorization: Bearer {key}\r\n" in lab.players["a"].heads[-1]
    assert lab.audit[0]["attempts"][0]["result"] == "no_key"


async def test_an_engine_of_ours_gets_no_credential_of_the_client():
    """Only headers of the allowlist pass."""
    async with open_lab(config_of(local("mac")), mac=answer()) as lab:
        await lab.ask(headers=CLIENTS)
    (head,) = lab.players["mac"].heads
    assert "client" not in head.lower()


async def test_a_backends_own_headers_are_not_forwarded():
    """Limits and times pass; cookies, server name and location do not."""
    lines = [b"Set-Cookie: a=b", b"Server: secret", b"Location: http://10.0.0.1/", b"x-ratelimit-remaining-tokens: 7"]
    async with open_lab(config_of(cloud("a")), a=answer(lines=lines)) as lab:
        response = await lab.ask()
    names = {name.lower() for name, _ in response.headers}
    assert names == {
        "x-ratelimit-remaining-tokens", "x-request-id", "x-llmkube-backend", "content-type", "server-timing",
        "content-length",
    }  # fmt: skip
    assert "total;dur=" in response.headers.get("server-timing")


async def test_an_error_names_no_address():
    """It names backends only; the audit log has the details."""
    config = config_of(cloud("a", base_url="http://10.1.2.3:8443/v1"))
    async with open_lab(config, {"10.1.2.3": None}) as lab:
        response = await lab.ask()
    assert response.status == 502
    assert b"10.1.2.3" not in response.body
    assert json.loads(response.body)["error"]["message"] == "no backend answered (a: connect_error)"
    assert "10.1.2.3:8443" in lab.audit[0]["attempts"][0]["detail"]


@pytest.mark.parametrize(
    ("given", "parent"),
    [
        (PARENT, PARENT),
        ("cc" + PARENT[2:] + "-more", "cc" + PARENT[2:] + "-more"),
        ("", None),
        ("00-" + "0" * 32 + PARENT[35:], None),
        (PARENT.upper(), None),
        (PARENT + "-more", None),
        ("ff" + PARENT[2:], None),
    ],
)
def test_a_trace_is_passed_on_or_begun(given, parent):
    """W3C trace context: an invalid one is replaced, and its state is dropped."""
    trace = trace_of({"traceparent": given, "tracestate": "a=b"}, FRESH)
    assert trace == (
        {"traceparent": parent, "tracestate": "a=b"} if parent else {"traceparent": f"00-{FRESH[:32]}-{FRESH[32:]}-01"}
    )


@pytest.mark.parametrize(("given", "name"), [("req-1", "req-1"), ("", "x"), ("a\tb", "x"), ("a" * 200, "x")])
def test_a_request_keeps_the_name_that_its_client_gave_it(given, name):
    """The id must be one that a log can hold."""
    assert request_id_of({"x-request-id": given}, "x") == name
