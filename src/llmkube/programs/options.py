"""Derive click options from the settings classes, so that a flag's name, type and default are written once."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from llmkube.base.settings import Setting, settings_of
from llmkube.programs.failures import errors_as_messages

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

HELP = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command."""


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Report a command's expected failures as messages without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with errors_as_messages():
            return command(*args, **kwargs)

    return run


def command(name: str, group: Any = click, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a guarded command of a function, in a group or on its own."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        result: click.Command = group.command(name, **{"context_settings": HELP, **settings})(guarded(function))
        return result

    return decorate


class NumberRange(click.FloatRange):
    """A number within bounds. It rejects `nan`, which click accepts within any bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text, or raise a usage error."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def with_options(*options: Decorator) -> Decorator:
    """Add several options, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def settings_options(kind: type[Any]) -> Decorator:
    """Add an option for each setting of a class; a flag that is not given is None (or an empty tuple).

    All values are passed as text: the resolver validates them, with the same messages as for the other sources.
    """
    return with_options(*map(_option, settings_of(kind)))


def complete_paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete files, unless the user types a URL."""
    return [] if "://" in incomplete else [CompletionItem(incomplete, type="file")]


def _option(each: Setting) -> Decorator:
    names = [each.flag, each.name, *(["-n"] if each.name == "namespace" else [])]
    text = f"{each.help}{_default(each)}  [{each.variable}]"
    if each.type is bool:
        return click.option(f"{each.flag}/--no-{each.flag[2:]}", each.name, default=None, help=text)
    if each.removed:
        return click.option(each.flag, each.name, hidden=True)
    complete = complete_paths if each.type is Path else None
    return click.option(*names, metavar=_metavar(each), multiple=each.type is tuple, help=text, shell_complete=complete)


def _metavar(each: Setting) -> str:
    if each.choices:
        return "|".join(each.choices)
    return {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}.get(each.type.__name__, "TEXT")


def _default(each: Setting) -> str:
    if each.default in (None, (), ""):
        return ""
    return f" Default: {', '.join(each.default) if each.type is tuple else each.default}."
