"""Errors and exit codes of commands: expected failures are reported in one sentence, only bugs show a traceback."""

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
from llmkube.base.messages import escape_controls
from llmkube.base.settings import SettingError

_NAME: Final = "llmkube"
_COMMAND: Final = re.compile(rf"(?<=`){_NAME}(?= )")


def program_name(argv0: str | None = None) -> str:
    """Return `llmkube` if the shell finds this program under that name, else the path by which it was called."""
    invoked_as = sys.argv[0] if argv0 is None else argv0
    if Path(invoked_as).name != _NAME:  # python -m llmkube, or a test
        return _NAME
    found = shutil.which(_NAME)
    on_path = found is not None and Path(found).absolute() == Path(shutil.which(invoked_as) or invoked_as).absolute()
    return _NAME if on_path or os.sep not in invoked_as else invoked_as


def runnable(text: str) -> str:
    """Return a text in which commands in backquotes start with `program_name`, so that they can be pasted."""
    name = program_name()
    return text if name == _NAME else _COMMAND.sub(lambda _: shlex.quote(name), text)


class ExitCode(enum.IntEnum):
    """Exit codes of commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TIMED_OUT = 4


class CommandError(click.ClickException):
    """The failure of a command: a message that includes the fix, and the exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares the default as a ClassVar, and reads the instance

    def format_message(self) -> str:
        """Return the message with commands that can be pasted."""
        return runnable(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message; on a terminal, wrap it between words."""
        stream = sys.stderr if file is None else file
        click.echo(_error_line(self.format_message(), stream), file=stream)


class MistypedError(click.UsageError):
    """An invalid command line: click's usage, and a message that is wrapped like others."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print usage and message."""
        stream = sys.stderr if file is None else file
        usage = io.StringIO()
        click.UsageError("", self.ctx).show(usage)
        click.echo(usage.getvalue().removesuffix("Error: \n") + _error_line(self.message, stream), file=stream)


def _error_line(message: str, stream: IO[Any]) -> str:
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    return wrap_text("Error: " + escape_controls(message, keep="\n\t"), width)


@contextlib.contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn LLMKube's own errors into a CommandError; other exceptions are bugs and propagate.

    Nurseries raise groups: a group that contains only expected errors becomes their distinct messages.
    """
    try:
        yield
    except LLMKubeError as exc:
        raise CommandError(_message(exc), _exit_code(exc)) from exc
    except OSError as exc:
        if not is_disk_full(exc):
            raise
        raise CommandError(f"output cannot be written ({exc.strerror})") from exc
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
    # By HTTP status, not by class: the Kubernetes package is slow to import, and most failures never load it.
    return ExitCode.NOT_FOUND if getattr(error, "code", None) == 404 else ExitCode.FAILED


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def wrap_text(text: str, width: int | None) -> str:
    """Wrap text to `width` characters between words; None does not wrap.

    Continuation lines are indented to the last column of the line.
    """
    if width is None:
        return text
    return "\n".join(line if len(line) <= width else _wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    columns = [found.end() for found in re.finditer(r"(?<=\S) {2,}(?=\S)", line[:width])]
    indent = columns[-1] if columns and columns[-1] <= width * 2 // 3 else 0
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
