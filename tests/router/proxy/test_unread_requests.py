"""What cannot be read is counted, and of clients that are let in it stands in the audit log."""

import json

import pytest
import trio

from llmkube.base.http.limits import Limits
from llmkube.router.config.routing_config import Auth
from llmkube.router.policy.request_facts import Principal
from llmkube.router.proxy import unread_requests
from llmkube.router.proxy.handler import ROUTES
from llmkube.router.proxy.metrics import RouterMetrics
from router.proxy.router_lab import CHAT, answer, config_of, local, open_lab

KEY = "a-key-that-nobody-logs"
LIMITS = Limits(max_body_bytes=100, max_head_bytes=400, head_seconds=5, body_stall_seconds=5)
BODY = b"what-nobody-logs"


def post(*lines, body=b"", path=CHAT, key=KEY):
    head = (f"POST {path} HTTP/1.1", "Host: r", f"Authorization: Bearer {key}", *lines)
    return "\r\n".join((*head, "", "")).encode() + body


UNREAD = {
    "a long body": (post("Content-Length: 101", body=BODY), 413, "body_too_large", CHAT),
    "a slow body": (post("Content-Length: 99", body=BODY), 408, "request_too_slow", CHAT),
    "a malformed chunk": (post("Transfer-Encoding: chunked", body=BODY), 400, "malformed_request", CHAT),
    "an expectation": (post("Content-Length: 9", "Expect: a"), 417, "malformed_request", CHAT),
    "a long body elsewhere": (post("Content-Length: 101", path="/v1/responses/resp_1"), 413, "body_too_large", "other"),
    "a long head": (post("X: " + "x" * 500), 431, "headers_too_large", None),
    "a slow head": (b"POST / HTTP/1.1\r\n", 408, "request_too_slow", None),
    "a malformed head": (b"GET / FTP/1.1\r\n\r\n", 400, "malformed_request", None),
    "a stranger's probe": (b"GET /healthz HTTP/1.1\r\nHost: r\r\nExpect: a\r\n\r\n", 417, "malformed_request", None),
}


def counted(lab, outcome):
    labels = {"rule": "none", "backend": "none", "classification": "none", "outcome": outcome}
    return lab.metric("llmkube_router_requests_total", **labels) or 0


async def unread(name, tmp_path):
    """A request that cannot be read counts once; one line has its path, its team and its outcome, and no secret."""
    sent, status, outcome, path = UNREAD[name]
    (tmp_path / "team").write_text(KEY)
    config = config_of(local("a"), auth=Auth(keys_folder=str(tmp_path)))
    async with open_lab(config, limits=LIMITS, a=answer()) as lab:
        connection = await lab.front.connect("r", 80)
        await connection.send_all(sent)
        received = b""
        with trio.move_on_after(30):
            while some := await connection.receive_some():
                received += some
        assert int(received.split()[1]) == status
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == outcome
        assert counted(lab, outcome) == 1
        await trio.sleep(1)
        said = [(line["path"], line["team"], line["status"], line["outcome"]) for line in lab.audit]
        assert said == ([] if path is None else [(path, "team", status, outcome)])
        assert not any(word in b"".join(lab.lines) for word in (KEY.encode(), BODY, b"resp_1"))
        assert all(line["requestID"].encode() in received for line in lab.audit)


MUTANTS = {
    "they are not counted": (RouterMetrics, "unread", lambda self, outcome: None, "a long head"),
    "no line": (unread_requests, "principal_of", lambda lines, peer, clients: None, "a long body"),
    "strangers have a line": (
        unread_requests,
        "principal_of",
        lambda lines, peer, clients: Principal(tenant=peer),
        "a stranger's probe",
    ),
    "paths are written as they are": (
        unread_requests,
        "ROUTES",
        (*ROUTES, "/v1/responses/resp_1"),
        "a long body elsewhere",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_what_cannot_be_read(name, tmp_path, autojump_clock):
    """It is counted, and written down for whom the judge has let in."""
    await unread(name, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("bug", MUTANTS)
async def test_a_deliberate_bug_is_caught(bug, tmp_path, autojump_clock, monkeypatch):
    """The case fails with it."""
    place, attribute, mutant, name = MUTANTS[bug]
    monkeypatch.setattr(place, attribute, mutant)
    is_caught = False
    try:
        await unread(name, tmp_path)
    except* AssertionError:
        is_caught = True
    assert is_caught


async def test_a_flood_of_strangers_writes_nothing(tmp_path, autojump_clock):
    """However many come: without a key that counts the log has no line of them, and a metric counts each."""
    (tmp_path / "team").write_text(KEY)
    config = config_of(local("a"), auth=Auth(keys_folder=str(tmp_path)))
    async with open_lab(config, limits=LIMITS, a=answer()) as lab:
        for _ in range(200):
            for sent in (post("Content-Length: 101", key="wrong"), post("X: " + "x" * 500), b"GET / FTP/1.1\r\n\r\n"):
                connection = await lab.front.connect("r", 80)
                await connection.send_all(sent)
                await connection.receive_some()
                await connection.aclose()
        await trio.sleep(1)
        assert [counted(lab, each) for each in ("unauthorized", "headers_too_large", "malformed_request")] == [200] * 3
        assert lab.audit == []
