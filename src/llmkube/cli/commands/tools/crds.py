"""`llmkube crds`."""

import click

from llmkube.k8s.crd.definitions import all_crds, crds_yaml
from llmkube.programs.options import HELP, guarded


@click.command("crds", context_settings=HELP)
@click.option("--docs", is_flag=True, help="Print the reference of all fields instead, as Markdown.")
@guarded
def crds(docs: bool) -> None:
    """Print the CustomResourceDefinitions, or their reference, with the names and options of installed plug-ins.

    For a cluster: llmkube crds | kubectl apply --server-side -f -
    """
    from llmkube.runtimes.container.plugins import extend_crds, find_installed  # noqa: PLC0415  # looks through all installed packages

    found = find_installed()
    for problem in found.problems:
        click.echo(f"warning: {problem}", err=True)
    if docs:
        from llmkube.cli.commands.tools.crd_reference import reference  # noqa: PLC0415  # the planners are not needed for the YAML

        click.echo(reference(found.runtimes), nl=False)
        return
    click.echo(crds_yaml(extend_crds(all_crds(), found.runtimes)).rstrip("\n"))
