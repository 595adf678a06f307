"""`llmkube agent status --watch` in a pipe and on a terminal, power lines, and cordons."""

import datetime
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import contextmanager

import pytest
import trio
from click.testing import CliRunner

from free_ports import free_port
from llmkube.cli.commands.programs.background.agent_status import (
    _read_state,
    _wait_free,
    cordon,
    cordon_sentence,
    power_lines,
    uncordon,
    without_figures,
)
from llmkube.cli.commands.programs.background.launchctl import current_user
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.state_location import ENGINES_LOCK, hold_lock
from llmkube.supervisor.host.processes import OWNER_VARIABLE
from llmkube.supervisor.host_cordon import CordonFile
from llmkube.supervisor.values.cordon import Cordon, cordon_path, cordon_text


@contextmanager
def watching(folder, **streams):
    """Run the program; it is killed when the block ends."""
    command = [sys.executable, "-m", "llmkube", "agent", "status", "--watch", "--state-dir", str(folder)]
    environ = os.environ | {"HOME": str(folder), "TERM": "xterm", "NO_COLOR": "1"}
    environ = {name: value for name, value in environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, start_new_session=True, **streams)
    with process:
        try:
            yield process
        finally:
            process.kill()


def end(process):
    """Press Ctrl-C; return stderr and the exit code."""
    process.send_signal(signal.SIGINT)
    errors = process.stderr.read()
    return errors, process.wait(timeout=60)


@pytest.fixture
def folder(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return state


async def test_an_agent_that_does_not_answer_is_reported(folder):
    """An agent that holds its folder but does not answer is unhealthy; without a port it is not queried."""
    port = free_port()
    with hold_lock(folder / ENGINES_LOCK):
        state = await _read_state(folder, current_user(), port)
        assert state["agent"].startswith("running")
        assert state["healthz"] == f"not healthy on port {port}"
        assert "healthz" not in await _read_state(folder, current_user(), 0)
    assert "healthz" not in await _read_state(folder, current_user(), port)


@pytest.mark.ci
def test_a_pipe_gets_a_line_for_each_change(folder):
    """The program continues while no agent runs; Ctrl-C exits with 130 and no output."""
    with watching(folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"agent       not running on {folder}\n"
        cordon_path(folder).write_text(cordon_text(Cordon()))
        assert process.stdout.readline() == "cordon      serves nothing until `llmkube agent uncordon`\n"
        cordon_path(folder).unlink()
        assert process.stdout.readline() == "cordon      -\n"
        assert end(process) == ("", 130)
        assert process.stdout.read() == ""


@pytest.mark.ci
def test_a_terminal_of_80_columns_is_redrawn_in_place(tmp_path):
    """Changes are redrawn in place, no line exceeds the terminal, and Ctrl-C prints nothing."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir(mode=0o700)
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        with watching(folder, stdin=slave, stdout=slave) as process:
            os.close(slave)
            seen = b""
            while b"not running" not in seen:
                seen += os.read(master, 65536)
            cordon_path(folder).write_text(cordon_text(Cordon()))
            while b"serves nothing" not in seen:
                seen += os.read(master, 65536)
            assert b"\x1b[1A" in seen or b"\x1b[2K" in seen
            assert end(process) == (b"", 130)
    finally:
        os.close(master)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode("utf-8", "ignore")).replace("\r", "\n").split("\n")
    assert max(map(len, lines)) == 80


MAC = """\
# HELP llmkube_metal_agent_apple_power_gpu_watts What it draws, estimated by macOS.
llmkube_metal_agent_apple_power_cpu_watts 3.25
llmkube_metal_agent_apple_power_gpu_watts 31.5
llmkube_metal_agent_apple_power_combined_watts 34.75
llmkube_metal_agent_service_joules_per_token{name="chat",namespace="ns"} 1.875
llmkube_metal_agent_service_power_watts{name="chat",namespace="ns"} 30.0
llmkube_metal_agent_service_power_watts{name="embed",namespace="ns"} 0.0
llmkube_metal_agent_service_energy_joules_total{name="chat",namespace="ns"} 1000.0
"""

RAPL = """\
llmkube_metal_agent_power_watts{domain="package"} 50.0
llmkube_metal_agent_power_watts{domain="combined"} 50.0
"""

DEAD = """\
llmkube_metal_agent_power_problem{reason="NotPermitted"} 1.0
llmkube_metal_agent_service_energy_joules_total{name="chat",namespace="ns"} 1000.0
"""


@pytest.mark.parametrize(
    ("exposition", "lines"),
    [
        (
            MAC,
            {
                "power": "34.8 W (cpu 3.2, gpu 31.5)",
                "by service": "30.0 W, 1.9 J per token  ns/chat\n0.0 W                    ns/embed",
            },
        ),
        (RAPL, {"power": "50.0 W (package 50.0)"}),
        (
            'llmkube_metal_agent_apple_power_gpu_watts 31.5\nllmkube_metal_agent_power_problem{reason="Stalled"} 1.0\n',
            {"power": "gpu 31.5 W; other domains are not measured: Stalled"},
        ),
        (DEAD, {"power": "not measured: NotPermitted; see `llmkube agent logs`"}),
        ("", {}),
        ("llmkube_metal_agent_cordoned 0.0\nnonsense {{ 1\nllmkube_metal_agent_apple_power_cpu_watts x\n", {}),
    ],
    ids=["a Mac", "Linux", "a stalled domain", "a failed source", "no metrics", "no power"],
)
def test_power_is_reported_of_the_host_and_of_each_service(exposition, lines):
    """Host and services have a line each; a failed measurement gives its cause; without metrics there is none."""
    assert power_lines(exposition) == lines


@pytest.mark.parametrize(
    ("joules", "text"), [(0.04321, "0.043"), (1.0, "1"), (9.4, "9.4"), (99.6, "100"), (4321.0, "4321")]
)
def test_joules_are_two_digits_and_no_exponent(joules, text):
    """Large models on a CPU take hundreds of joules per token."""
    series = f'llmkube_metal_agent_service_joules_per_token{{name="chat",namespace="ns"}} {joules}\n'
    assert power_lines(series)["by service"] == f"{text} J per token  ns/chat"


def test_a_line_per_change_has_no_figures():
    """Watts change all the time; a failed measurement is a change."""
    assert without_figures({"agent": "runs", **power_lines(MAC)}) == {"agent": "runs"}
    assert without_figures(power_lines(DEAD)) == power_lines(DEAD)


def run(command, folder, *words):
    return CliRunner().invoke(command, ["--state-dir", str(folder), *words])


def test_cordon_is_read_by_the_agent(tmp_path):
    """With and without an end; `uncordon` removes it, even if there is none."""
    folder = tmp_path / "state"
    read = CordonFile(cordon_path(folder))
    assert run(cordon, folder).exit_code == 0
    assert read() == Cordon()
    assert run(cordon, folder, "--for", "2h").exit_code == 0
    now = datetime.datetime.now(datetime.UTC)
    assert read().is_active(now + datetime.timedelta(minutes=110))
    assert not read().is_active(now + datetime.timedelta(minutes=130))
    assert cordon_sentence(folder) == f"serves nothing {read().end}"
    for _ in range(2):
        assert run(uncordon, folder).exit_code == 0
        assert read() is None
    assert cordon_sentence(folder) == ""


@pytest.mark.parametrize("words", ["0", "3s", "59s", "-1h", "1000000h", "2x", "soon", "9999d", "nan", ""])
def test_invalid_time_changes_nothing(tmp_path, words):
    """The error names the flag."""
    done = run(cordon, tmp_path / "state", "--for", words)
    assert done.exit_code != 0
    assert "--for" in str(done.output) + str(done.exception)
    assert not cordon_path(tmp_path / "state").exists()


def test_the_shortest_time_is_one_in_which_an_agent_can_end_its_engines(tmp_path):
    """A shorter cordon would expire before the agent acts on it."""
    assert run(cordon, tmp_path, "--for", "60s").exit_code == 0


@contextmanager
def engine_of(folder):
    """Run a process like an engine that an agent of this folder left behind."""
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    environ = os.environ | {OWNER_VARIABLE: str(folder)}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_engines_without_an_agent_are_reported(tmp_path):
    """The command does not claim that memory is free while an engine of a killed agent holds it."""
    with engine_of(tmp_path) as process:
        done = run(cordon, tmp_path)
    assert done.exit_code == ExitCode.FAILED
    assert "1 process of engines still run, and no agent" in done.output
    assert f"kill {process.pid}" in done.output
    assert "serves nothing" in cordon_sentence(tmp_path)
    assert run(cordon, tmp_path).exit_code == 0


@pytest.mark.parametrize("over", ["", cordon_text(Cordon(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)))])
async def test_a_cordon_that_has_ended_is_not_waited_for(tmp_path, over):
    """`uncordon` was run meanwhile, or the time is over: the engines keep running."""
    if over:
        cordon_path(tmp_path).write_text(over)
    with (
        engine_of(tmp_path),
        hold_lock(tmp_path / ENGINES_LOCK),
        trio.fail_after(60),
        pytest.raises(CommandError, match="the cordon has ended, and 1 process of engines still run"),
    ):
        await _wait_free(tmp_path, 600)


async def test_engines_that_outlast_the_timeout_are_reported(tmp_path):
    """The exit code is that of a timeout."""
    cordon_path(tmp_path).write_text(cordon_text(Cordon()))
    with (
        engine_of(tmp_path),
        hold_lock(tmp_path / ENGINES_LOCK),
        pytest.raises(CommandError, match=r"still run after 0\.1 s") as refused,
    ):
        await _wait_free(tmp_path, 0.1)
    assert refused.value.exit_code == ExitCode.TIMED_OUT


def test_a_file_that_is_no_cordon_is_reported(tmp_path):
    """`status` names the command that removes the file."""
    cordon_path(tmp_path).write_text('{"until": "noon"}')
    assert "`llmkube agent uncordon` removes it" in cordon_sentence(tmp_path)
