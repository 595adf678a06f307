"""`llmkube crds`."""

import click

from llmkube.cli.options import HELP, guarded
from llmkube.k8s.crd.schema import crds_yaml


@click.command("crds", context_settings=HELP)
@click.option("--docs", is_flag=True, help="Print the reference of all fields instead, as Markdown.")
@guarded
def crds(docs: bool) -> None:
    """Print the CustomResourceDefinitions as YAML.

    For a cluster: llmkube crds | kubectl apply --server-side -f -
    """
    if docs:
        from llmkube.cli.crdreference import reference  # noqa: PLC0415  # the planners are not needed for the YAML

        click.echo(reference(), nl=False)
    else:
        click.echo(crds_yaml().rstrip("\n"))
