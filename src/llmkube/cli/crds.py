"""`llmkube crds`."""

import click

from llmkube.cli.options import HELP, guarded
from llmkube.k8s.crd.schema import crds_yaml


@click.command("crds", context_settings=HELP)
@guarded
def crds() -> None:
    """Print the CustomResourceDefinitions as YAML.

    For a cluster: llmkube crds | kubectl apply --server-side -f -
    """
    click.echo(crds_yaml().rstrip("\n"))
