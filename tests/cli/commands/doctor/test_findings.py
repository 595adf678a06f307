"""Reports of doctor on a terminal of 80 columns, with NO_COLOR, in a pipe and as JSON."""

import json

import pytest

from llmkube.cli.commands.doctor import findings
from llmkube.cli.commands.doctor.findings import as_json, as_text, exit_code, failed, passed, warned

FINDINGS = (
    passed("55.4 GiB free in /home/ada", name="disk"),
    warned(
        "this Mac falls asleep after 10 min",
        why="asleep it answers no request",
        fix="`sudo pmset -a sleep 0`",
        name="sleep",
    ),
    failed(
        "the job gets errno 65 (EHOSTUNREACH) from every machine on its network: Local Network Privacy",
        why="pods may be unable to reach its engines",
        fix="`llmkube agent install --daemon`, or allow it in System Settings, Privacy & Security, Local Network",
        name="local network",
    ),
)


@pytest.fixture
def terminal(monkeypatch):
    """Standard output is a terminal of 80 columns."""
    monkeypatch.setattr(findings.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_terminal_lines_wrap_with_a_hanging_indent(terminal, monkeypatch):
    """With NO_COLOR the verdict is still the first word."""
    monkeypatch.setenv("NO_COLOR", "1")
    text = as_text(FINDINGS)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines() == [
        "pass  disk           55.4 GiB free in /home/ada",
        "warn  sleep          this Mac falls asleep after 10 min",
        "                     asleep it answers no request",
        "                     fix: `sudo pmset -a sleep 0`",
        "fail  local network  the job gets errno 65 (EHOSTUNREACH) from every machine on",
        "                     its network: Local Network Privacy",
        "                     pods may be unable to reach its engines",
        "                     fix: `llmkube agent install --daemon`, or allow it in",
        "                     System Settings, Privacy & Security, Local Network",
        "",
        "1 fail, 1 warn, 1 pass. Nothing was changed here.",
    ]


def test_a_terminal_has_the_verdict_in_colour_and_nothing_else(terminal):
    text = as_text(FINDINGS)
    assert text.count("\x1b[0m") == 3
    assert "\x1b[31m\x1b[1mfail\x1b[0m  local network" in text


def test_in_a_pipe_each_sentence_is_one_line():
    text = as_text(FINDINGS)
    assert "\x1b" not in text
    assert f"fail  local network  {FINDINGS[2].found}" in text.splitlines()
    assert len(text.splitlines()) == 9


def test_control_characters_are_replaced():
    """Control characters and line ends of other programs' output cannot control the terminal."""
    text = as_text([warned("it says \x1b[2Jone\ntwo", why="a", fix="b", name="FileVault")])
    assert "it says \ufffd[2Jone two" in text


def test_programs_get_every_field():
    """JSON has every field, and the counts, in the order of the report."""
    data = json.loads(as_json(FINDINGS))
    assert (data["pass"], data["warn"], data["fail"]) == (1, 1, 1)
    assert [each["name"] for each in data["findings"]] == ["disk", "sleep", "local network"]
    assert data["findings"][1] == {
        "name": "sleep",
        "verdict": "warn",
        "found": "this Mac falls asleep after 10 min",
        "why": "asleep it answers no request",
        "fix": "`sudo pmset -a sleep 0`",
    }


def test_only_a_failure_sets_the_exit_code():
    """Warnings exit with 0."""
    well, doubtful, bad = passed("b"), warned("b", why="c", fix="d"), failed("b", why="c", fix="d")
    assert exit_code([well, doubtful]) == 0
    assert exit_code([well, bad, doubtful]) == 1
