"""`llmkube up start`, `stop`, `status` and `logs`, without an engine."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmkube.cli.commands.programs.background.up_commands import UP_LOG, addresses_of, command_line
from llmkube.cli.main import cli
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import ADDRESSES_FILE, ENGINES_LOCK, SERVER_LOCK

ADDRESSES = "API server  https://127.0.0.1:1\npage        http://127.0.0.1:2/\nprobes      http://127.0.0.1:3"


def invoke(*args, state):
    env = {"COLUMNS": "80", "NO_COLOR": "1", "LLMKUBE_STATE_DIR": str(state), "HOME": str(state.parent)}
    return CliRunner().invoke(cli, ["up", *args], env=env)


def test_what_runs_is_reported_with_its_addresses(tmp_path):
    """`status` prints pid and addresses; `start` prints them too and starts no second process."""
    state = tmp_path / "st ate"
    with hold_state_dir(state, ENGINES_LOCK, SERVER_LOCK):
        (state / ADDRESSES_FILE).write_text(ADDRESSES)
        shown = invoke("status", state=state)
        assert shown.exit_code == 0
        line = f"llmkube up is running (pid {os.getpid()}) with the state directory {state}"
        assert f"{line}\n{ADDRESSES}\n" in shown.output
        again = invoke("start", state=state)
        assert (again.exit_code, again.output) == (
            0,
            f"llmkube up is already running (pid {os.getpid()})\n{ADDRESSES}\n",
        )


def test_commands_exit_with_3_if_nothing_runs(tmp_path):
    state = tmp_path / "state"
    for command, words in (("status", "is not running"), ("stop", "is not running"), ("logs", "not found")):
        done = invoke(command, state=state)
        assert (done.exit_code, words in done.output) == (3, True), done.output


def test_logs_are_those_of_the_background(tmp_path):
    """The last lines of the file are printed without control characters."""
    state = tmp_path / "state"
    with hold_state_dir(state):
        (state / UP_LOG).write_text("one\ntwo\x1b[2J\nthree\n")
    assert invoke("logs", "--tail", "2", state=state).output == "two�[2J\nthree\n"


@pytest.mark.ci
def test_a_start_that_fails_reports_why(tmp_path):
    """The last error of the background program is the error of `start`."""
    done = invoke("start", "--llama-server", str(tmp_path / "nowhere"), state=tmp_path / "state")
    assert done.exit_code == 1
    assert "llmkube up exited: --llama-server" in done.output


@pytest.mark.ci
def test_users_of_an_earlier_version_learn_once_that_models_are_loaded_on_request(tmp_path):
    """The terminal has the line at the first start, not the log of the background program."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "kubeconfig").touch()
    shown = [invoke("start", "--llama-server", str(tmp_path / "nowhere"), state=state).output for _ in range(2)]
    assert [each.count("models are loaded when a request needs them") for each in shown] == [1, 0]
    assert "--activation Always" in shown[0]


def test_flags_are_passed_on(tmp_path):
    """Given flags reach the program that runs later, with absolute paths."""
    flags = {"gateway_port": "9000", "accelerator": ("cpu", "metal"), "insecure_lan": True, "llama_server": "bin/x"}
    words = command_line({**flags, "state_dir": "ignored", "listen": None}, tmp_path)
    assert words[:6] == [sys.executable, "-m", "llmkube", "up", "--state-dir", str(tmp_path)]
    assert set(words[6:]) == {
        "--gateway-port=9000",
        "--accelerator=cpu",
        "--accelerator=metal",
        "--insecure-lan",
        f"--llama-server={Path.cwd()}/bin/x",
    }


def test_without_addresses_nothing_is_reported(tmp_path):
    """A program that is still starting has no addresses; control characters in them do not reach the terminal."""
    assert addresses_of(tmp_path) == ""
    (tmp_path / ADDRESSES_FILE).write_text("one\x1b[2J\ntwo")
    assert addresses_of(tmp_path) == "one\ufffd[2J\ntwo"
