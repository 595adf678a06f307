"""Whether a job's interpreter is the one that it was installed with."""

import attrs
import pytest

from llmkube.cli.commands.programs.background import interpreter as module
from llmkube.cli.commands.programs.background.interpreter import (
    Interpreter,
    changes,
    interpreter_at,
    interpreter_news,
    own_interpreter,
    record_interpreter,
    recorded_interpreter,
)

CELLAR = "/opt/homebrew/Cellar/python@3.12"
INSTALLED = Interpreter("/v/bin/python", f"{CELLAR}/3.12.3/bin/python3.12", "3.12.3")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, ""),
        ({"program": "", "version": ""}, "/v/bin/python is gone"),
        ({"version": ""}, "does not run any more (Python 3.12.3 at the install)"),
        ({"version": "3.13.0"}, "is Python 3.13.0, and was 3.12.3"),
        ({"program": f"{CELLAR}/3.12.3_1/bin/python3.12"}, "leads to /opt/homebrew/Cellar/python@3.12/3.12.3_1/"),
    ],
)
def test_what_has_become_of_it(now, said):
    """A sentence says what has changed, what it costs and what to do; of the same one nothing is said."""
    sentence = changes(INSTALLED, attrs.evolve(INSTALLED, **now))
    assert said in sentence
    assert ("run `llmkube agent install` again" in sentence) is bool(said)


def program(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def test_an_interpreter_says_its_version(tmp_path):
    """Of a link that leads nowhere, of a program that fails and of one that says something else nothing is made up."""
    path = program(tmp_path / "python", "echo Python 3.12.9")
    assert interpreter_at(path) == Interpreter(path, path, "3.12.9")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert interpreter_at(str(link)) == Interpreter(str(link), "", "")
    for line in ("exit 3", "echo hello, I am not one"):
        assert interpreter_at(program(tmp_path / "other", line)).version == ""
    own = own_interpreter()
    assert interpreter_at(own.path) == own


def test_it_is_recorded_and_compared(tmp_path, monkeypatch):
    """After an upgrade behind the same path the news says both versions; without a record there are none."""
    assert interpreter_news(tmp_path) == ""
    path = program(tmp_path / "python", "echo Python 3.12.9")
    monkeypatch.setattr(module.sys, "executable", path)
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.12.9")
    record_interpreter(tmp_path)
    assert recorded_interpreter(tmp_path) == Interpreter(path, path, "3.12.9")
    assert interpreter_news(tmp_path) == ""
    program(tmp_path / "python", "echo Python 3.13.0")
    assert "is Python 3.13.0, and was 3.12.9" in interpreter_news(tmp_path)
    (tmp_path / "interpreter.json").write_text("{", encoding="utf-8")
    assert recorded_interpreter(tmp_path) is None
