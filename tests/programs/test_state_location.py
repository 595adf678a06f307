"""Which program works on a state directory."""

import os
import signal

import pytest
from click.testing import CliRunner

from llmkube.cli.main import cli
from llmkube.programs.failures import CommandError
from llmkube.programs.state_dir import held_state_dir, temporary_state_dir
from llmkube.programs.state_location import ENGINES, SERVER, up_on, wait_gone


def test_up_is_who_runs_engines_and_server(tmp_path):
    """An agent, an API server alone and the two as different programs are no `llmkube up`."""
    assert up_on(tmp_path) is None
    with held_state_dir(tmp_path):
        assert up_on(tmp_path) is None
        with held_state_dir(tmp_path, SERVER):
            assert up_on(tmp_path) == os.getpid()
            (tmp_path / SERVER).write_text("1\n")
            assert up_on(tmp_path) is None
    with temporary_state_dir() as folder:
        assert up_on(folder) == os.getpid()


def test_stopping_the_agent_ends_no_up(tmp_path, monkeypatch):
    """`agent stop` on the folder of a running `llmkube up` sends no signal, and says how that one is stopped."""
    sent = []
    monkeypatch.setattr("os.kill", lambda *args: sent.append(args))
    with held_state_dir(tmp_path, ENGINES, SERVER):
        done = CliRunner().invoke(cli, ["agent", "stop", "--state-dir", str(tmp_path)])
    assert (done.exit_code, sent) == (1, [])
    assert "but `llmkube up` does (pid" in done.stderr
    assert "`llmkube up stop` stops it" in done.stderr
    with held_state_dir(tmp_path):
        done = CliRunner().invoke(cli, ["agent", "stop", "--state-dir", str(tmp_path), "--timeout", "0"])
    assert (done.exit_code, sent) == (4, [(os.getpid(), signal.SIGINT)])


async def test_a_program_that_stays_is_told(tmp_path, autojump_clock):
    """Waiting for an end has a deadline, and the sentence has the pid."""
    with held_state_dir(tmp_path), pytest.raises(CommandError, match=f"pid {os.getpid()} still runs after 3 s"):
        await wait_gone(tmp_path, os.getpid(), 3)
    await wait_gone(tmp_path, os.getpid(), 3)
