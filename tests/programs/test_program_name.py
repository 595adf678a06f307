"""Hints say the program as the reader's shell finds it."""

import pytest

from llmkube.programs.program_name import program_name, runnable


@pytest.fixture
def installed(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "llmkube"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_on_path_it_is_its_name(installed):
    """Called by its name, or by the path that its name leads to, it is `llmkube`."""
    assert program_name("llmkube") == "llmkube"
    assert program_name(str(installed)) == "llmkube"


def test_elsewhere_it_is_the_path_that_was_typed(installed, monkeypatch):
    """From a clone the hints have `.venv/bin/llmkube`, also where another llmkube is on PATH."""
    assert program_name(".venv/bin/llmkube") == ".venv/bin/llmkube"
    monkeypatch.setenv("PATH", "/nowhere")
    assert program_name(".venv/bin/llmkube") == ".venv/bin/llmkube"
    assert program_name("/usr/lib/python3/pytest/__main__.py") == "llmkube"


def test_commands_in_a_sentence_can_be_pasted(monkeypatch):
    """Commands in backquotes change, and words do not."""
    monkeypatch.setattr("sys.argv", [".venv/bin/llmkube"])
    text = "llmkube says: see `llmkube list -A`, or start `llmkube up`"
    assert runnable(text) == "llmkube says: see `.venv/bin/llmkube list -A`, or start `.venv/bin/llmkube up`"
