"""A command fails with one sentence and a number that scripts can tell apart; only bugs show a traceback."""

import contextlib
import enum
import io
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import click

from llmkube.base.errors import LLMKubeError, leaves
from llmkube.base.full_disk import is_disk_full
from llmkube.base.settings import SettingError

_NAME: Final = "llmkube"
_COMMAND: Final = re.compile(rf"(?<=`){_NAME}(?= )")


def program_name(argv0: str | None = None) -> str:
    """Return `llmkube` if that is this program in the shell, else the path by which it was called."""
    invoked_as = sys.argv[0] if argv0 is None else argv0
    if Path(invoked_as).name != _NAME:  # python -m llmkube, or a test
        return _NAME
    found = shutil.which(_NAME)
    on_path = found is not None and Path(found).absolute() == Path(shutil.which(invoked_as) or invoked_as).absolute()
    return _NAME if on_path or os.sep not in invoked_as else invoked_as


def runnable(text: str) -> str:
    """Return a text whose commands in backquotes can be pasted."""
    name = program_name()
    return text if name == _NAME else _COMMAND.sub(lambda _: shlex.quote(name), text)


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

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence, on a terminal broken between words."""
        stream = sys.stderr if file is None else file
        click.echo(_error_line(self.format_message(), stream), file=stream)


class MistypedError(click.UsageError):
    """A command line that cannot be understood: click's usage, and a sentence that is broken as others are."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print both."""
        stream = sys.stderr if file is None else file
        usage = io.StringIO()
        click.UsageError("", self.ctx).show(usage)
        click.echo(usage.getvalue().removesuffix("Error: \n") + _error_line(self.message, stream), file=stream)


def _error_line(message: str, stream: IO[Any]) -> str:
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    return wrap_text(f"Error: {message}", width)


@contextlib.contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn what LLMKube expects to go wrong into a CommandError; let bugs through as they are.

    Nurseries raise groups: a group of nothing but expected errors is printed as its distinct sentences.
    """
    try:
        yield
    except LLMKubeError as exc:
        raise CommandError(_message(exc), _exit_code(exc)) from exc
    except OSError as exc:
        if not is_disk_full(exc):
            raise
        raise CommandError(f"the output cannot be written ({exc.strerror})") from exc
    except ExceptionGroup as group:
        expected, bugs = group.split((LLMKubeError, CommandError))
        if bugs is not None or expected is None:
            raise
        errors = leaves(expected)
        raise CommandError("\n".join(dict.fromkeys(map(_message, errors))), _exit_code(errors[0])) from group


def _exit_code(error: BaseException) -> ExitCode:
    if isinstance(error, CommandError):
        return ExitCode(error.exit_code)
    if isinstance(error, SettingError):
        return ExitCode.USAGE
    # By its HTTP status and not by its class: the Kubernetes room is heavy, and most failures never loaded it.
    return ExitCode.NOT_FOUND if getattr(error, "code", None) == 404 else ExitCode.FAILED


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def wrap_text(text: str, width: int | None) -> str:
    """Return text whose lines have no more characters than `width`, None for any number; no word is cut.

    What is broken goes on below the last column that the line has.
    """
    if width is None:
        return text
    return "\n".join(line if len(line) <= width else _wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    columns = [found.end() for found in re.finditer(r"(?<=\S) {2,}(?=\S)", line[:width])]
    indent = columns[-1] if columns and columns[-1] <= width * 2 // 3 else 0
    return textwrap.fill(
        line, width=width, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * indent
    )
