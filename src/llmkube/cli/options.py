"""Options of commands that look at a cluster and print what they find."""

import functools
from collections.abc import Callable
from typing import Any

import click

from llmkube.cli.complete import contexts, namespaces
from llmkube.cli.target_cluster import Where
from llmkube.programs.options import Decorator


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
