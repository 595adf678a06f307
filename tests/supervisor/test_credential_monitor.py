"""A credential's state is logged once per change, with the current command of `llmkube join`."""

import datetime
import stat

import attrs
import pytest
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.supervisor.credential_monitor import CredentialMonitor, run_problem_file
from llmkube.supervisor.values.host_credential import CredentialState, HostCredential, problem_path
from llmkube.supervisor.values.join_record import JoinRecord, encode_record, record_path, token_path

BOX = JoinRecord(host="box", server="https://a")


@pytest.fixture
def logs():
    with structlog.testing.capture_logs() as lines:
        yield lines


def test_a_refusal_is_reported_once_with_the_current_command(tmp_path, logs):
    """An administrator may have granted a Secret since the agent started."""
    token = token_path(tmp_path, BOX, b"")
    monitor = CredentialMonitor(token)
    record_path(token).write_text(encode_record(attrs.evolve(BOX, secrets=("hf",))))
    monitor.mark_refused()
    monitor.mark_refused()
    now = monitor.value.value
    assert now.state is CredentialState.REFUSED
    assert "--secret hf" in now.command
    assert "engines keep running" in now.advice
    assert now.command in now.advice
    assert [line["command"] for line in logs] == [now.command]
    monitor.mark_accepted()
    assert monitor.value.value.state is CredentialState.ACCEPTED
    assert monitor.value.value.advice == ""
    assert len(logs) == 2


def test_without_a_record_the_command_has_placeholders(tmp_path):
    """And none for a credential that `llmkube join` did not make."""
    monitor = CredentialMonitor(token_path(tmp_path, BOX, b""))
    monitor.mark_refused()
    assert monitor.value.value.command == f"llmkube agent join --network CIDR --state-dir {tmp_path}"
    other = CredentialMonitor()
    other.mark_refused()
    assert other.value.value.command == ""
    assert "renews what the agent's kubeconfig names" in other.value.value.advice


def test_a_token_that_is_not_renewed_is_still_valid(tmp_path, logs):
    """It is logged once per problem, resolves by itself, and is less severe than a refusal."""
    monitor = CredentialMonitor(token_path(tmp_path, BOX, b""))
    monitor.set_expiry(100.0)
    for problem in ("away", "away", "no answer"):
        monitor.mark_not_renewed(problem)
    assert [line["error"] for line in logs] == ["away", "no answer"]
    now = monitor.value.value
    assert (now.state, now.expires_at) == (CredentialState.NOT_RENEWED, 100.0)
    monitor.mark_accepted()
    assert monitor.value.value.state is CredentialState.NOT_RENEWED
    monitor.mark_refused()
    monitor.mark_not_renewed("away")
    monitor.set_expiry(100.0)
    assert monitor.value.value.state is CredentialState.REFUSED
    monitor.mark_accepted()
    monitor.mark_not_renewed("away")
    monitor.set_expiry(200.0)
    assert (monitor.value.value.state, monitor.value.value.expires_at) == (CredentialState.ACCEPTED, 200.0)


async def noted(path, text):
    """Wait until the file has this content; None for no file. A thread writes it."""
    with trio.fail_after(60):
        while (path.read_text() if path.exists() else None) != text:  # noqa: ASYNC110 - a file tells no event
            await trio.sleep(0.01)


async def test_a_file_holds_the_problem_while_there_is_one(tmp_path):
    """A killed agent's file is removed, a file is private, and none stays behind."""
    path = problem_path(tmp_path)
    path.write_text("old")
    value = Mailbox(HostCredential())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_problem_file, value, path)
        await noted(path, None)
        refused = HostCredential(CredentialState.REFUSED, "refused", "llmkube agent join")
        value.put_nowait(refused)
        await noted(path, f"{refused.advice}\n")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        value.put_nowait(HostCredential())
        await noted(path, None)
        value.put_nowait(refused)
        await noted(path, f"{refused.advice}\n")
        nursery.cancel_scope.cancel()
    assert not path.exists()


async def test_a_disk_error_ends_nothing(tmp_path, logs):
    """It is logged, and the next change is tried again."""
    path = problem_path(tmp_path / "later")
    value = Mailbox(HostCredential(CredentialState.REFUSED, "refused"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_problem_file, value, path)
        with trio.fail_after(60):
            while not logs:  # noqa: ASYNC110 - a log tells no event
                await trio.sleep(0.01)
        path.parent.mkdir()
        value.put_nowait(HostCredential(CredentialState.REFUSED, "still refused"))
        await noted(path, f"{value.value.advice}\n")
        nursery.cancel_scope.cancel()
    assert "not written" in logs[0]["event"]


def test_a_valid_credential_is_reported_with_its_expiry():
    """The command is for an expired one; a valid one has no message."""
    ends = datetime.datetime(2026, 1, 8, 12, tzinfo=datetime.UTC).timestamp()
    advice = HostCredential(CredentialState.NOT_RENEWED, "not renewed", "llmkube agent join", ends).advice
    assert "until 2026-01-08 12:00 UTC" in advice
    assert advice.endswith("if it expires, an administrator of the cluster runs: llmkube agent join")
    assert "renews what the agent's kubeconfig names" in HostCredential(CredentialState.REFUSED, "refused").advice
    assert HostCredential(expires_at=ends).advice == ""
