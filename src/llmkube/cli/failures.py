"""A command fails with one sentence and a number that scripts can tell apart; only bugs show a traceback."""

import contextlib
import enum
import errno
from collections.abc import Iterator
from typing import Final

import click

from llmkube.base.errors import LLMKubeError
from llmkube.base.settings import SettingError
from llmkube.cli.program_name import runnable

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Why a file that a command prints into does not take it."""


class ExitCode(enum.IntEnum):
    """What the shell sees."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TIMED_OUT = 4


class CommandError(click.ClickException):
    """The end of a command: a sentence that says what to do next, and the exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares the default as a ClassVar, and reads the instance

    def format_message(self) -> str:
        """Return the sentence with commands that the reader can paste."""
        return runnable(self.message)


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn what LLMKube expects to go wrong into a CommandError; let bugs through as they are.

    Nurseries raise groups: a group of nothing but expected errors is printed as its distinct sentences.
    """
    try:
        yield
    except LLMKubeError as exc:
        raise CommandError(_sentence(exc), _exit_code(exc)) from exc
    except OSError as exc:
        if exc.errno not in FULL:
            raise
        raise CommandError(f"the output cannot be written ({exc.strerror})") from exc
    except ExceptionGroup as group:
        expected, bugs = group.split((LLMKubeError, CommandError))
        if bugs is not None or expected is None:
            raise
        leaves = list(_leaves(expected))
        raise CommandError("\n".join(dict.fromkeys(map(_sentence, leaves))), _exit_code(leaves[0])) from group


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _exit_code(error: BaseException) -> ExitCode:
    if isinstance(error, CommandError):
        return ExitCode(error.exit_code)
    if isinstance(error, SettingError):
        return ExitCode.USAGE
    # By its HTTP status and not by its class: the Kubernetes room is heavy, and most failures never loaded it.
    return ExitCode.NOT_FOUND if getattr(error, "code", None) == 404 else ExitCode.FAILED


def _sentence(error: BaseException) -> str:
    return str(error) or type(error).__name__
