"""`llmkube rbac`."""

import click
import yaml

from llmkube.cli.options import HELP, guarded
from llmkube.controller import rights as controller_rights
from llmkube.k8s.rbac import rbac_manifests
from llmkube.supervisor import rights as agent_rights

PROGRAMS = {"agent": agent_rights.PROGRAM, "controller": controller_rights.PROGRAM}


@click.command("rbac", context_settings=HELP)
@click.argument("program", type=click.Choice(sorted(PROGRAMS)))
@click.option("-n", "--namespace", help="The only namespace that it looks after. Default: all of them.")
@click.option(
    "--lease-namespace", default="llmkube-system", show_default=True, help="Where its account and Leases are."
)
@guarded
def rbac(program: str, namespace: str | None, lease_namespace: str) -> None:
    """Print the ServiceAccount, the roles and the bindings that a program needs, and nothing more.

    For a cluster: llmkube rbac agent | kubectl apply --server-side -f -
    """
    manifests = rbac_manifests(PROGRAMS[program], system_namespace=lease_namespace, namespace=namespace)
    click.echo(yaml.safe_dump_all(manifests, sort_keys=False).rstrip("\n"))
