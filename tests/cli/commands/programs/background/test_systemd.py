"""The systemd unit that runs `llmkube up` at login."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.background.systemd import systemctl, unit_path, unit_text
from llmkube.cli.main import cli

ARGV = [sys.executable, "-m", "llmkube", "up", "--state-dir", '/home/a b/100% "mine"/$HOME']


def unit():
    return unit_text(ARGV, Path("/home/a b/100%/up.log"), stop_seconds=60)


def test_words_keep_their_spaces_quotes_and_signs():
    """A path with spaces, quotes, percent and dollar signs stays one argument without expansion."""
    lines = dict(line.split("=", 1) for line in unit().splitlines() if "=" in line)
    assert lines["ExecStart"].endswith('"/home/a b/100%% \\"mine\\"/$$HOME"')
    assert lines["StandardOutput"] == "append:/home/a b/100%%/up.log"
    assert (lines["KillSignal"], lines["TimeoutStopSec"]) == ("SIGINT", "60")


def test_systemd_analyze_accepts_the_unit(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze (package systemd) is not on this machine")
    file = tmp_path / "llmkube-up.service"
    file.write_text(unit())
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [program, "--user", "--man=no", "verify", file], check=False, capture_output=True, text=True, env=env
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_units_lie_where_systemd_looks(tmp_path):
    """An absolute XDG_CONFIG_HOME is used, else ~/.config."""
    place = "systemd/user/llmkube-up.service"
    assert unit_path({"HOME": "/h"}) == unit_path({"HOME": "/h", "XDG_CONFIG_HOME": "x"})
    assert str(unit_path({"HOME": "/h"})) == f"/h/.config/{place}"
    assert str(unit_path({"HOME": "/h", "XDG_CONFIG_HOME": "/x"})) == f"/x/{place}"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A home with a systemctl that records its arguments, and fails if the file `dead` exists."""
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "systemctl"
    program.write_text(f'#!/bin/sh\n[ -e {tmp_path}/dead ] && echo "Failed to connect to bus" >&2 && exit 1\n'
                       f'echo "$@" >> {tmp_path}/calls\n')  # fmt: skip
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "st ate"))
    return tmp_path


def invoke(*args):
    return CliRunner().invoke(cli, ["up", *args], env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_install_runs_it_now_and_at_login(machine):
    """The unit has the given flags, is enabled and started; `uninstall` stops and removes it."""
    done = invoke("install", "--gateway-port", "9000", "--no-insecure-lan", "--accelerator", "cpu")
    assert done.exit_code == 0, done.output
    text = unit_path({"HOME": str(machine)}).read_text()
    assert '"--gateway-port=9000"' in text
    assert '"--accelerator=cpu"' in text
    assert f'"--state-dir" "{machine}/st ate"' in text
    calls = (machine / "calls").read_text().splitlines()
    assert calls == [
        "--user show-environment",
        "--user daemon-reload",
        "--user enable llmkube-up.service",
        "--user restart llmkube-up.service",
    ]
    assert "at login    /" in invoke("status").output
    gone = invoke("uninstall")
    assert gone.exit_code == 0, gone.output
    assert not unit_path({"HOME": str(machine)}).exists()
    assert (machine / "calls").read_text().splitlines()[-2] == "--user disable --now llmkube-up.service"
    assert invoke("uninstall").exit_code == 3


def test_without_a_service_manager_nothing_is_written(machine):
    """If the user's systemd is unreachable, its error is printed and no unit is left."""
    (machine / "dead").touch()
    done = invoke("install")
    assert done.exit_code == 1
    assert "Failed to connect to bus" in done.output
    assert not unit_path({"HOME": str(machine)}).exists()


def test_without_systemd_the_fix_is_named(monkeypatch, tmp_path):
    """The error names `llmkube up start` instead."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="in the background with `llmkube up start`"):
        systemctl("daemon-reload")
