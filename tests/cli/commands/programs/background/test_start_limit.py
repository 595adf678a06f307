"""Consecutive failed starts are counted and limited; a changed Python is reported."""

import contextlib

import attrs
import pytest
import trio
from click.testing import CliRunner

from cli.cli_objects import kubeconfig
from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.background import start_limit as module
from llmkube.cli.commands.programs.background.start_limit import (
    FailedStarts,
    Interpreter,
    compare_interpreters,
    counted_start,
    failed_starts_path,
    interpreter_at,
    interpreter_problem,
    own_interpreter,
    read_failed_starts,
    record_interpreter,
    recorded_interpreter,
    reset_once_stable,
)
from llmkube.cli.main import cli


def fail(folder, boot="one", why="no llama-server"):
    with pytest.raises(UserError), counted_start(folder, boot):
        raise UserError(why)


def test_failures_add_up_and_a_good_end_forgets_them(tmp_path):
    """The last reason is kept for `status`."""
    fail(tmp_path)
    fail(tmp_path, why="no kubeconfig")
    assert read_failed_starts(tmp_path, "one") == FailedStarts("one", 2, "no kubeconfig")
    with counted_start(tmp_path, "one"):
        pass
    assert read_failed_starts(tmp_path, "one").count == 0


def test_killed_start_is_counted(tmp_path):
    """The count is written before the attempt, so that a SIGKILL is counted."""
    seen = []
    with contextlib.suppress(KeyboardInterrupt), counted_start(tmp_path, "one"):
        seen.append(read_failed_starts(tmp_path, "one").count)
        raise KeyboardInterrupt
    assert seen == [1]
    assert read_failed_starts(tmp_path, "one").count == 1


def test_count_restarts_at_boot(tmp_path):
    """A damaged file has no count."""
    fail(tmp_path)
    assert read_failed_starts(tmp_path, "two").count == 0
    failed_starts_path(tmp_path).write_text("{")
    assert read_failed_starts(tmp_path, "one").count == 0


async def test_count_is_reset_after_a_minute_of_service(tmp_path, autojump_clock):
    """A later crash is then a first failure."""
    fail(tmp_path)
    await reset_once_stable(tmp_path)
    assert trio.current_time() >= 60
    assert not failed_starts_path(tmp_path).exists()
    with contextlib.suppress(UserError), counted_start(tmp_path, "one"):
        failed_starts_path(tmp_path).unlink()
        raise UserError("after a day")
    assert not failed_starts_path(tmp_path).exists()


def test_the_agent_gives_up_with_0_after_its_limit(tmp_path):
    """Launchd restarts a job with any other exit code."""
    state = tmp_path / "state"
    env = {"HOME": str(tmp_path), "NO_COLOR": "1"}
    args = ["agent", f"--state-dir={state}", "--llama-server=/nowhere/llama-server", "--start-limit=2"]
    config = kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1")
    args.append(f"--kubeconfig={config}")
    for _ in range(2):
        done = CliRunner().invoke(cli, args, env=env)
        assert (done.exit_code, "/nowhere/llama-server" in done.output) == (1, True), done.output
    given_up = CliRunner().invoke(cli, args, env=env)
    assert given_up.exit_code == 0
    assert "start limit reached" in given_up.output
    assert "/nowhere/llama-server" in given_up.output
    assert "llmkube agent start" in given_up.output


CELLAR = "/opt/homebrew/Cellar/python@3.12"
INSTALLED = Interpreter("/v/bin/python", f"{CELLAR}/3.12.3/bin/python3.12", "3.12.3")


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({}, ""),
        ({"program": "", "version": ""}, "/v/bin/python, the Python 3.12.3 of the job, no longer exists"),
        ({"version": ""}, "the Python 3.12.3 of the job, no longer runs"),
        ({"version": "3.13.0"}, "is Python 3.13.0, and was 3.12.3"),
        ({"program": f"{CELLAR}/3.12.3_1/bin/python3.12"}, "links to /opt/homebrew/Cellar/python@3.12/3.12.3_1/"),
    ],
)
def test_changed_interpreter_is_reported(now, message):
    """The sentence names the change, its effect and the fix; an unchanged interpreter gives none."""
    sentence = compare_interpreters(INSTALLED, attrs.evolve(INSTALLED, **now))
    assert message in sentence
    assert ("run `llmkube agent install` again" in sentence) is bool(message)


def program(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def test_an_interpreter_reports_its_version(tmp_path):
    """A broken link, a failing program and another program have no version."""
    path = program(tmp_path / "python", "echo Python 3.12.9")
    assert interpreter_at(path) == Interpreter(path, path, "3.12.9")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert interpreter_at(str(link)) == Interpreter(str(link), "", "")
    for line in ("exit 3", "echo hello, I am not one"):
        assert interpreter_at(program(tmp_path / "other", line)).version == ""
    own = own_interpreter()
    assert interpreter_at(own.path) == own


def test_interpreter_is_recorded_and_compared(tmp_path, monkeypatch):
    """An upgrade behind the same path reports both versions; without a record nothing is reported."""
    assert interpreter_problem(tmp_path) == ""
    path = program(tmp_path / "python", "echo Python 3.12.9")
    monkeypatch.setattr(module.sys, "executable", path)
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.12.9")
    record_interpreter(tmp_path)
    assert recorded_interpreter(tmp_path) == Interpreter(path, path, "3.12.9")
    assert interpreter_problem(tmp_path) == ""
    program(tmp_path / "python", "echo Python 3.13.0")
    assert "is Python 3.13.0, and was 3.12.9" in interpreter_problem(tmp_path)
    (tmp_path / "interpreter.json").write_text("{", encoding="utf-8")
    assert recorded_interpreter(tmp_path) is None
