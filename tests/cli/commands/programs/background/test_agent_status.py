"""`llmkube agent status --watch`, as a program: lines in a pipe, in place on a terminal, and quiet at Ctrl-C."""

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

from free_ports import free_port
from llmkube.cli.commands.programs.background.agent_status import _lines, _look, _News
from llmkube.cli.commands.programs.background.launchd_user import current_user
from llmkube.programs.state_lock import ENGINES, held
from llmkube.supervisor.nouns.cordon import Cordon, cordon_path, cordon_text


@contextmanager
def watching(folder, **streams):
    """The program, which ends with the block whatever happens."""
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
    """Press Ctrl-C; return what the program says and its code."""
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    return said, process.wait(timeout=60)


@pytest.fixture
def folder(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return state


def test_what_has_changed_is_a_line_and_what_has_not_is_none():
    """The first time all of it; then what is new or different, and a dash for what is no longer said."""
    news = _News()
    assert news.since({"agent": "runs", "healthz": "ok"}) == ["agent       runs", "healthz     ok"]
    assert news.since({"agent": "runs", "healthz": "ok"}) == []
    assert news.since({"agent": "does not run"}) == ["agent       does not run", "healthz     -"]
    assert news.since({"agent": "does not run"}) == []


def test_what_has_several_lines_stands_under_its_word():
    """The word begins the first of them."""
    assert _lines({"draws": "30.0 W  a\n0.0 W   b"}) == ["draws       30.0 W  a\n            0.0 W   b"]


async def test_an_agent_that_does_not_answer_is_told(folder):
    """It holds its folder and says nothing: it is stopped, hangs, or is not well. Without a port nobody is asked."""
    port = free_port()
    with held(folder / ENGINES):
        said = await _look(folder, current_user(), port)
        assert said["agent"].startswith("runs")
        assert said["healthz"] == f"no answer that it is well at port {port}"
        assert "healthz" not in await _look(folder, current_user(), 0)
    assert "healthz" not in await _look(folder, current_user(), port)


def test_a_pipe_gets_a_line_for_each_change(folder):
    """It stays also while no agent runs; Ctrl-C ends it with 130 and without a word."""
    with watching(folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"agent       does not run on {folder}\n"
        cordon_path(folder).write_text(cordon_text(Cordon()))
        assert process.stdout.readline() == "cordon      serves nothing until `llmkube agent uncordon`\n"
        cordon_path(folder).unlink()
        assert process.stdout.readline() == "cordon      -\n"
        assert end(process) == ("", 130)
        assert process.stdout.read() == ""


def test_a_terminal_of_80_columns_is_redrawn_in_place(tmp_path):
    """What changes replaces what stood there, no line is wider than the terminal, and Ctrl-C is quiet."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir(mode=0o700)
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        with watching(folder, stdin=slave, stdout=slave) as process:
            os.close(slave)
            seen = b""
            while b"does not run" not in seen:
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
