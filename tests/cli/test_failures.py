import errno

import pytest

from llmkube.base.errors import UserError, WorldError
from llmkube.base.settings import SettingError
from llmkube.cli.failures import CommandError, ExitCode, in_one_sentence
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


def test_a_full_disk_under_the_output_is_a_sentence():
    """What a command prints and its file does not take is told as that; other errors of the system are bugs."""
    full = OSError(errno.ENOSPC, "No space left on device")
    assert told(full) == ("the output cannot be written (No space left on device)", ExitCode.FAILED)
    with pytest.raises(OSError, match="elsewhere"), in_one_sentence():
        raise OSError(errno.EBADF, "elsewhere")
