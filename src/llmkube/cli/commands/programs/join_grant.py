"""What an administrator grants to a host, as `llmkube agent join` and `join-token` are told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import click

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.host_identity import manifests_of
from llmkube.cli.commands.tools.rbac import checked_network
from llmkube.cli.target_cluster import find_config
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.supervisor.nouns.join_record import DEFAULT_LEASE_NAMESPACE, JoinRecord

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_GRANTS: Final[tuple[Decorator, ...]] = (
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig of an administrator."),
    click.option("--context", help="Its context."),
    click.option(
        "--server", metavar="URL", help="Address of the API server as the host reaches it. Default: the context's."
    ),
    click.option(
        "--network",
        "networks",
        multiple=True,
        metavar="CIDR",
        help="Network in which this host's engines may be, such as 192.168.1.20/32; repeatable. Required.",
    ),
    click.option("-n", "--namespace", help="The only namespace that it serves. Default: the context's."),
    click.option("-A", "--all-namespaces", is_flag=True, help="It serves all namespaces."),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME",
        help="Secret that it may read there, for Models and services that name it; repeatable. "
        "'*' is any of the one namespace.",
    ),
    click.option(
        "--lease-namespace",
        default=DEFAULT_LEASE_NAMESPACE,
        show_default=True,
        help="Where its account and Lease are.",
    ),
    click.option(
        "--allow-from",
        "allow_from",
        multiple=True,
        metavar="CIDR",
        help="Network whose requests reach the host's engines without a key; repeatable. Added to allow_from in the "
        "host's config.toml, with those of the cluster's nodes as they are now for a host of one namespace: it may not "
        "list nodes.",
    ),
    click.option("--overwrite", is_flag=True, help="Take the name although a living host of another machine has it."),
)


def grant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which an administrator says what a host is granted."""
    for option in reversed(_GRANTS):
        command = option(command)
    return command


@attrs.frozen(kw_only=True)
class Grant:
    """What an administrator says on the command line."""

    kubeconfig: Path | None
    context: str | None
    server: str | None
    networks: tuple[str, ...]
    namespace: str | None
    all_namespaces: bool
    secrets: tuple[str, ...]
    lease_namespace: str
    allow_from: tuple[str, ...]
    overwrite: bool

    def decided(self, host: str, folder: Path) -> tuple[ClusterConfig, JoinRecord]:
        """Return the cluster and what a host shall have there; what does not fit together is said before it is asked.

        Raises:
            UserError: Something does not.
        """
        if self.namespace and self.all_namespaces:
            raise UserError("-n and -A exclude each other")
        if not self.networks:
            raise UserError("--network: name the network in which this host's engines may be, such as 192.168.1.20/32")
        cluster, _ = find_config(self.kubeconfig, self.context, folder)
        record = JoinRecord(
            host=host,
            server=self.server or cluster.server,
            namespace="" if self.all_namespaces else self.namespace or cluster.namespace or "default",
            lease_namespace=self.lease_namespace,
            networks=tuple(map(checked_network, self.networks)),
            secrets=self.secrets,
        )
        manifests_of(record)
        return cluster, record
