"""Options that commands share, and shell completion of names.

Completion has a short deadline and prints no errors: after a failure it offers nothing.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import trio
from click.shell_completion import CompletionItem

from llmkube.base.errors import LLMKubeError
from llmkube.cli import target_cluster
from llmkube.cli.object_names import KINDS
from llmkube.cli.target_cluster import ClusterFlags, kubeconfig_files
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.options import Decorator, complete_paths, with_options

DEADLINE_SECONDS: Final = 1.0


def services(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of InferenceServices."""
    return _matching(_names(ctx, InferenceService), incomplete)


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of Models."""
    return _matching(_names(ctx, Model), incomplete)


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of InferenceServices, or of another kind after `KIND/`."""
    word, slash, _ = incomplete.partition("/")
    if slash:
        kind = KINDS.get(word.lower(), InferenceService)
        return _matching([f"{word}/{name}" for name in _names(ctx, kind)], incomplete)
    return _matching(_names(ctx, InferenceService), incomplete)


def namespaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the cluster's namespaces."""
    from llmkube.k8s.builtins import Namespace  # noqa: PLC0415 - every command imports this module for its options

    return _matching(_names(ctx, Namespace), incomplete)


def contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the contexts of the kubeconfig, without network access."""
    import yaml  # noqa: PLC0415 - as above

    names: dict[str, None] = {}
    for path in kubeconfig_files(_flags_so_far(ctx)):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        entries = content.get("contexts") if isinstance(content, Mapping) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping):
                names[str(entry.get("name"))] = None
    return _matching(names, incomplete)


def _catalog() -> Iterable[str]:
    from llmkube.cli.catalog.entries import entries  # noqa: PLC0415 - only for completion

    return entries()


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the models of the catalog, and let the shell complete files: a source may be a path."""
    named = [] if "/" in incomplete else [CompletionItem(name) for name in _catalog() if name.startswith(incomplete)]
    return [*named, CompletionItem(incomplete, type="file")]


def catalog_or_services(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of InferenceServices and of models in the catalog."""
    return _matching(dict.fromkeys([*_names(ctx, InferenceService), *_catalog()]), incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _flags_so_far(ctx: click.Context) -> ClusterFlags:
    """Return the cluster flags of an incomplete command line."""
    return ClusterFlags(ctx.params.get("kubeconfig"), ctx.params.get("context"), ctx.params.get("namespace"))


def _names(ctx: click.Context, kind: type[Any]) -> list[str]:
    where = _flags_so_far(ctx)

    async def connect_and_list() -> list[str]:
        with trio.fail_after(DEADLINE_SECONDS):
            async with target_cluster.open_cluster(where) as cluster:
                within = cluster.namespace if kind.RESOURCE.namespaced else None
                return sorted(each.metadata.name for each in (await cluster.client.list(kind, namespace=within)).items)

    try:
        return trio.run(connect_and_list)
    except (LLMKubeError, click.ClickException, OSError, trio.TooSlowError):
        return []


def cluster_options(*, all_namespaces: bool = False) -> Decorator:
    """Add the options that choose cluster and namespace; the command gets them as one argument, `where`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(
            *args: Any,
            kubeconfig: Path | None,
            context: str | None,
            namespace: str | None,
            all_namespaces: bool = False,
            **kwargs: Any,
        ) -> Any:
            file = kubeconfig if kubeconfig != Path() else None  # an empty value is that of an unset variable
            return command(*args, where=ClusterFlags(file, context, namespace, all_namespaces), **kwargs)

        file = click.Path(path_type=Path)
        everywhere = click.option("-A", "--all-namespaces", is_flag=True, help="Use all namespaces.")
        return with_options(
            click.option("-n", "--namespace", shell_complete=namespaces, help="Namespace. Default: the context's."),
            click.option("--context", shell_complete=contexts, help="Context of the kubeconfig."),
            click.option("--kubeconfig", type=file, metavar="FILE", help="Path of the kubeconfig."),
            *((everywhere,) if all_namespaces else ()),
        )(run)

    return decorate


def manifests_option(name: str, help_text: str, *, required: bool = False) -> Decorator:
    """Add `-f`, for files with manifests; it can be repeated."""
    return click.option(
        "-f",
        "--filename",
        name,
        metavar="FILE",
        multiple=True,
        required=required,
        shell_complete=complete_paths,
        help=help_text,
    )


def output_option(*formats: str) -> Decorator:
    """Add `-o` with these formats; the command gets it as `form`, which is empty by default."""

    def chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
        return value or ""

    help_text = "Output format. Default: readable text."
    return click.option("-o", "--output", "form", type=click.Choice(formats), callback=chosen, help=help_text)


watch_option = click.option("-w", "--watch", is_flag=True, help="Show changes until Ctrl-C.")
