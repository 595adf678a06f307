"""Click options follow from the settings classes, so that a flag's name, type and default are written once."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from llmkube.base.settings import Setting, settings_of
from llmkube.cli.complete import contexts, namespaces, paths
from llmkube.cli.target_cluster import Where
from llmkube.programs.failures import in_one_sentence

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

HELP = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command."""


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Tell a command's expected failures in one sentence."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with in_one_sentence():
            return command(*args, **kwargs)

    return run


class NumberRange(click.FloatRange):
    """A number within bounds, and a number: `nan` is within any bounds for click, and no clock takes it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text; a usage error names what is wrong with it."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def settings_options(kind: type[Any]) -> Decorator:
    """Add one option per setting of a class; a flag that is not given arrives as None (or an empty tuple).

    All values arrive as text: the resolver checks them, with the same words as for the other sources.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(settings_of(kind)):
            command = _option(each)(command)
        return command

    return decorate


def cluster_options(*, all_namespaces: bool = False) -> Decorator:
    """Add the options that say which cluster and namespace a command looks at; they arrive together, as `where`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(
            *args: Any,
            kubeconfig: str | None,
            context: str | None,
            namespace: str | None,
            all_namespaces: bool = False,
            **kwargs: Any,
        ) -> Any:
            return command(*args, where=Where(kubeconfig, context, namespace, all_namespaces), **kwargs)

        wrapped: Callable[..., Any] = run
        if all_namespaces:
            everywhere = click.option("-A", "--all-namespaces", is_flag=True, help="Look at all namespaces.")
            wrapped = everywhere(wrapped)
        for option in (
            click.option("--kubeconfig", type=click.Path(), metavar="FILE", help="Path of the kubeconfig."),
            click.option("--context", shell_complete=contexts, help="Context of the kubeconfig."),
            click.option(
                "-n", "--namespace", shell_complete=namespaces, help="The namespace; without it, the context's."
            ),
        ):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def output_option(*formats: str) -> Decorator:
    """Add `-o`, with the formats that the command knows; it arrives as `form`, and is empty for people's tables."""

    def chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
        return value or ""

    return click.option(
        "-o", "--output", "form", type=click.Choice(formats), callback=chosen, help="How to print it; else for people."
    )


watch_option = click.option("-w", "--watch", is_flag=True, help="Stay, and show every change until Ctrl-C.")


def _option(each: Setting) -> Decorator:
    names = [each.flag, each.name, *(["-n"] if each.name == "namespace" else [])]
    text = f"{each.help}{_default(each)}  [{each.variable}]"
    if each.type is bool:
        return click.option(f"{each.flag}/--no-{each.flag[2:]}", each.name, default=None, help=text)
    complete = paths if each.type is Path else None
    return click.option(*names, metavar=_metavar(each), multiple=each.type is tuple, help=text, shell_complete=complete)


def _metavar(each: Setting) -> str:
    if each.choices:
        return "|".join(each.choices)
    return {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}.get(each.type.__name__, "TEXT")


def _default(each: Setting) -> str:
    if each.default in (None, (), ""):
        return ""
    return f" Default: {', '.join(each.default) if each.type is tuple else each.default}."
