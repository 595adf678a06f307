"""Errors of commands, with hints that name the program as the user's shell finds it."""

import errno
import io

import click
import pytest

from llmkube.base.errors import ExternalError, UserError
from llmkube.base.settings import SettingError
from llmkube.k8s.errors import NotFoundError
from llmkube.programs.failures import (
    CommandError,
    ExitCode,
    MistypedError,
    errors_as_messages,
    program_name,
    runnable,
    wrap_text,
)


def shown(error):
    with pytest.raises(CommandError) as caught, errors_as_messages():
        raise error
    return caught.value.message, caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (UserError("is wrong", field="spec.source"), "spec.source: is wrong", ExitCode.FAILED),
        (ExternalError("the disk is full"), "the disk is full", ExitCode.FAILED),
        (SettingError("--api-port: no"), "--api-port: no", ExitCode.USAGE),
        (NotFoundError("no such thing", code=404), "no such thing", ExitCode.NOT_FOUND),
        (ExceptionGroup("g", [ExceptionGroup("h", [ExternalError("a")]), UserError("b")]), "a\nb", ExitCode.FAILED),
        (ExceptionGroup("g", [ExternalError("a"), ExternalError("a")]), "a", ExitCode.FAILED),
        (ExceptionGroup("g", [CommandError("late", ExitCode.TIMED_OUT)]), "late", ExitCode.TIMED_OUT),
    ],
)
def test_expected_errors_become_sentences(error, message, code):
    """Each expected error becomes its message and its exit code, also from a nursery."""
    assert shown(error) == (message, code)


@pytest.mark.parametrize("error", [ValueError("bug"), ExceptionGroup("g", [ExternalError("a"), ValueError("bug")])])
def test_bugs_keep_their_traceback(error):
    """An unexpected error is never reported as a user's mistake, even in a group with expected ones."""
    with pytest.raises(type(error)) as caught, errors_as_messages():
        raise error
    assert caught.value is error


def test_an_error_cannot_control_the_terminal():
    """Its text may be a server's; its lines stay."""
    stream = io.StringIO()
    CommandError("first\n\tsecond\x1b[2J\x9b\u202e").show(stream)
    assert stream.getvalue() == "Error: first\n\tsecond\\u001b[2J\\u009b\\u202e\n"


def test_a_full_disk_under_the_output_is_a_sentence():
    """A failure to write a command's output is reported as that; other OSErrors are bugs."""
    full = OSError(errno.ENOSPC, "No space left on device")
    assert shown(full) == ("output cannot be written (No space left on device)", ExitCode.FAILED)
    with pytest.raises(OSError, match="elsewhere"), errors_as_messages():
        raise OSError(errno.EBADF, "elsewhere")


LONG = "word " * 20 + "end"
MISTYPED = MistypedError(LONG, click.Context(click.Command("port-forward"), info_name="llmkube port-forward"))


@pytest.mark.parametrize(("error", "usage"), [(CommandError(LONG), ""), (MISTYPED, "Usage: llmkube port-forward")])
@pytest.mark.parametrize(("terminal", "lines"), [(True, 2), (False, 1)])
def test_a_sentence_breaks_between_words_on_a_terminal_alone(monkeypatch, error, usage, terminal, lines):
    """At 80 columns no word of an error is cut, also below click's own usage; scripts get it on one line."""
    monkeypatch.setenv("COLUMNS", "80")
    to = io.StringIO()
    monkeypatch.setattr(to, "isatty", lambda: terminal)
    error.show(to)
    assert to.getvalue().startswith(usage)
    shown = [line for line in to.getvalue().splitlines() if line and not line.startswith(("Usage", "Try"))]
    assert len(shown) == lines
    assert " ".join(shown) == f"Error: {LONG}"


PATH = "/a/path/that/is/longer/than/the/line"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", None, ["one two three"]),
        ("one two three", 80, ["one two three"]),
        ("one two three", 8, ["one two", "three"]),
        (f"see {PATH} there", 12, ["see", PATH, "there"]),
        ("  phase   one two three", 16, ["  phase   one", "          two", "          three"]),
        ("short\nand a longer one", 8, ["short", "and a", "longer", "one"]),
    ],
)
def test_lines_break_between_words(text, width, lines):
    """No word is cut, a column continues below itself, and without a width nothing changes."""
    assert wrap_text(text, width).split("\n") == lines


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
    """Commands in backquotes change, and other text does not."""
    monkeypatch.setattr("sys.argv", [".venv/bin/llmkube"])
    text = "llmkube says: see `llmkube list -A`, or start `llmkube up`"
    assert runnable(text) == "llmkube says: see `.venv/bin/llmkube list -A`, or start `.venv/bin/llmkube up`"
