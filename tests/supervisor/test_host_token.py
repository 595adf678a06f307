"""A host's token is replaced at half of its life by the wall clock; an expired one is reported once."""

import base64
import datetime
import json
import stat

import pytest
import structlog
import trio

from llmkube.k8s.errors import ServerError, TransportError, UnauthorizedError
from llmkube.supervisor.credential_monitor import (
    CHECK_SECONDS,
    RETRY_SECONDS,
    TOKEN_SECONDS,
    CredentialMonitor,
    HostToken,
    read_token,
    request_token,
    run_token_renewal,
)
from llmkube.supervisor.values.host_credential import CredentialState

START = 1_800_000_000.0
LIFE = 7200.0


def token_of(issued, life=LIFE, subject="system:serviceaccount:sys:llmkube-agent-box"):
    body = json.dumps({"sub": subject, "iat": int(issued), "exp": int(issued + life)}).encode()
    return f"e30.{base64.urlsafe_b64encode(body).rstrip(b'=').decode()}.sig"


class Server:
    """A server that issues tokens, or refuses them."""

    def __init__(self):
        self.asked = []
        self.error = None

    async def request_json(self, method, path, *, body):
        await trio.lowlevel.checkpoint()
        self.asked.append((method, path, body["spec"]["expirationSeconds"]))
        if self.error is not None:
            raise self.error
        return {"status": {"token": token_of(START + trio.current_time())}}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
async def renewal(server, tmp_path, autojump_clock):
    """The renewal task, with a token that has just been issued."""
    begun = trio.current_time()
    path = tmp_path / "host-0123456789ab.token"
    path.write_text(token_of(START + begun))
    monitor = CredentialMonitor(path)

    def utcnow():
        return datetime.datetime.fromtimestamp(START + trio.current_time(), datetime.UTC)

    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_token_renewal, server, path, monitor, utcnow)
            yield path, logs, monitor
            nursery.cancel_scope.cancel()


async def test_a_token_is_replaced_at_half_of_its_life(server, renewal, autojump_clock):
    """Once at that time, as a private file; and the new one later in the same way."""
    path, _, monitor = renewal
    await trio.sleep(LIFE / 2 - 1)
    assert server.asked == []
    await trio.sleep(1 + 2 * CHECK_SECONDS)
    account = "/api/v1/namespaces/sys/serviceaccounts/llmkube-agent-box/token"
    assert server.asked == [("POST", account, TOKEN_SECONDS)]
    fresh = read_token(path.read_text())
    assert fresh.issued_at >= START + LIFE / 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await trio.sleep(2 * CHECK_SECONDS)
    assert monitor.value.value.expires_at == fresh.expires_at
    await trio.sleep(LIFE / 2 + 2 * CHECK_SECONDS)
    assert len(server.asked) == 2


async def test_an_expired_token_is_reported_once_with_the_command(server, renewal, autojump_clock):
    """The task continues, names the command that helps, and uses the file that the command writes."""
    path, logs, monitor = renewal
    old = path.read_text()
    server.error = UnauthorizedError("x", code=401)
    await trio.sleep(LIFE + 10 * RETRY_SECONDS + 1)
    (entry,) = [line for line in logs if line["log_level"] == "error"]
    assert "engines keep running" in entry["event"]
    assert entry["command"] == monitor.value.value.command != ""
    assert monitor.value.value.state is CredentialState.REFUSED
    assert path.read_text() == old
    assert old not in str(logs)
    server.error = None
    path.write_text(token_of(START + trio.current_time()))
    asked = len(server.asked)
    await trio.sleep(LIFE / 4)
    assert len(server.asked) == asked


async def test_a_failed_renewal_is_repeated(server, renewal, autojump_clock):
    """A server that is away costs only a log line, and the next attempt succeeds."""
    path, logs, monitor = renewal
    server.error = ServerError("away", code=503)
    await trio.sleep(LIFE / 2 + 5 * RETRY_SECONDS)
    assert len([line for line in logs if line["log_level"] == "warning"]) == 1
    assert monitor.value.value.state is CredentialState.NOT_RENEWED
    assert len(server.asked) > 2
    server.error = None
    await trio.sleep(2 * RETRY_SECONDS)
    assert read_token(path.read_text()).issued_at > START + LIFE / 2
    await trio.sleep(2 * CHECK_SECONDS)
    assert monitor.value.value.state is CredentialState.ACCEPTED


async def test_an_answer_without_a_token_is_none(server):
    """An invalid response never replaces a token."""

    async def nonsense(*_, **__):
        await trio.lowlevel.checkpoint()
        return {"status": {"token": "no"}}

    server.request_json = nonsense
    with pytest.raises(TransportError):
        await request_token(server, "sys", "llmkube-agent-box")


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "a.e30.c", token_of(0, subject="ann"), "a.bnVsbA.c"])
def test_a_token_of_no_service_account_is_not_renewed(text):
    """It may be of another form: then only its issuer can renew it."""
    assert read_token(text) is None


def test_a_token_is_due_at_half_of_its_life():
    """Also one whose life the server has shortened."""
    token = HostToken("sys", "llmkube-agent-box", 100.0, 200.0)
    assert [token.is_due(now) for now in (100.0, 149.0, 150.0, 300.0)] == [False, False, True, True]
