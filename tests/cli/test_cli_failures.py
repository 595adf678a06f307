import errno

import click
import pytest
from click.testing import CliRunner

from llmkube.base.errors import UserError, WorldError
from llmkube.base.settings import SettingError
from llmkube.cli.failures import CommandError, ExitCode, in_one_sentence
from llmkube.cli.options import guarded
from llmkube.k8s.errors import NotFoundError


def told(error):
    with pytest.raises(CommandError) as caught, in_one_sentence():
        raise error
    return caught.value.message, caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (UserError("is wrong", field="spec.source"), "spec.source: is wrong", ExitCode.FAILED),
        (WorldError("the disk is full"), "the disk is full", ExitCode.FAILED),
        (SettingError("--api-port: no"), "--api-port: no", ExitCode.USAGE),
        (NotFoundError("no such thing", code=404), "no such thing", ExitCode.NOT_FOUND),
        (ExceptionGroup("g", [ExceptionGroup("h", [WorldError("a")]), UserError("b")]), "a\nb", ExitCode.FAILED),
        (ExceptionGroup("g", [WorldError("a"), WorldError("a")]), "a", ExitCode.FAILED),
        (ExceptionGroup("g", [CommandError("late", ExitCode.TIMED_OUT)]), "late", ExitCode.TIMED_OUT),
    ],
)
def test_expected_errors_become_sentences(error, message, code):
    """What LLMKube expects to go wrong ends in its own sentence and its exit code, also out of a nursery."""
    assert told(error) == (message, code)


@pytest.mark.parametrize("error", [ValueError("bug"), ExceptionGroup("g", [WorldError("a"), ValueError("bug")])])
def test_bugs_keep_their_traceback(error):
    """An unexpected error is never dressed up as a user's mistake, even in the company of expected ones."""
    with pytest.raises(type(error)) as caught, in_one_sentence():
        raise error
    assert caught.value is error


def test_a_reader_that_has_gone_is_no_bug():
    """A pipe that is closed while a nursery is open ends a command as one outside of them does: with 1, silently."""

    @click.command()
    @guarded
    def watch():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [BrokenPipeError(errno.EPIPE, "Broken pipe")])])

    done = CliRunner().invoke(watch)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert done.output == ""
