"""`llmkube agent join`: give one host an identity of its own in a cluster."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.private_files import write_private
from llmkube.cli.commands.programs.host_name import lasting_host_name
from llmkube.cli.commands.tools.files import Manifest
from llmkube.cli.commands.tools.rbac import agent_manifests
from llmkube.cli.commands.tools.server_side_apply import Applier
from llmkube.cli.config import check_state_dir, local_state_dir
from llmkube.cli.failures import CommandError
from llmkube.cli.options import HELP, guarded
from llmkube.cli.target_cluster import answering, find_config
from llmkube.k8s.auth.config import ClusterConfig, InlinePem, PemFile
from llmkube.k8s.client import open_client
from llmkube.k8s.wire.names import HOST_ACCOUNT_PREFIX, host_id
from llmkube.supervisor.host_policies import host_policies
from llmkube.supervisor.host_token import TOKEN_FILE, request_token

KUBECONFIG_FILE: Final = "host.kubeconfig"


@click.command("join", context_settings=HELP)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig of an administrator.")
@click.option("--context", help="Its context.")
@click.option(
    "--server", metavar="URL", help="Address of the API server as the host reaches it. Default: the context's."
)
@click.option("--name", metavar="NAME", help="Name of the host. Default: that of this machine.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    required=True,
    metavar="CIDR",
    help="Network in which this host's engines may be, such as 192.168.1.20/32; repeatable.",
)
@click.option("-n", "--namespace", help="The only namespace that it serves. Default: the context's.")
@click.option("-A", "--all-namespaces", is_flag=True, help="It serves all namespaces.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="Secret that it may read there, for Models that name it; repeatable. '*' is any of the one namespace.",
)
@click.option("--lease-namespace", default="llmkube-system", show_default=True, help="Where its account and Lease are.")
@click.option(
    "--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="State directory of the host's agent."
)
@guarded
def join(
    *,
    kubeconfig: Path | None,
    context: str | None,
    server: str | None,
    name: str | None,
    networks: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    secrets: tuple[str, ...],
    lease_namespace: str,
    state_dir: Path | None,
) -> None:
    """Give a host an identity of its own in a cluster, and write its kubeconfig into the agent's state directory.

    An administrator of the cluster runs it, on that host or elsewhere, and again when the host's token has ended. It
    applies the policies that confine hosts, and the host's account and roles.
    """
    if namespace and all_namespaces:
        raise UserError("-n and -A exclude each other")
    folder = state_dir.absolute() if state_dir else local_state_dir()
    check_state_dir(folder, to_create=True)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    cluster, _ = find_config(kubeconfig, context, folder)
    served = None if all_namespaces else namespace or cluster.namespace or "default"
    host = name or host_id(lasting_host_name(folder))
    account = agent_manifests(lease_namespace, served, host, networks, secrets)
    document = kubeconfig_of(cluster, server or cluster.server, served or "default")
    token = trio.run(_establish, cluster, account, lease_namespace, host)
    write_private(folder / TOKEN_FILE, token)
    write_private(folder / KUBECONFIG_FILE, json.dumps(document, indent=1))  # JSON is YAML
    words = ["llmkube agent", f"--kubeconfig {folder / KUBECONFIG_FILE}", f"--host-name {host}"]
    words += [f"--namespace {served}"] if served else []
    words += [f"--lease-namespace {lease_namespace}"] if lease_namespace != "llmkube-system" else []
    words += [f"--state-dir {folder}"] if state_dir else []
    click.echo(f"{host} has the account {HOST_ACCOUNT_PREFIX}{host}; on the host, run:")
    click.echo(" ".join(words))


async def _establish(cluster: ClusterConfig, account: list[dict[str, Any]], lease_namespace: str, host: str) -> str:
    """Apply the policies, and where they are taken the account that they confine; return a token of it."""
    async with open_client(cluster) as client:
        applier = Applier(client)
        with answering():
            for manifests in (host_policies(lease_namespace), account):
                applied = await applier.apply_all([Manifest("join", one) for one in manifests], lambda _: None)
                for each in applied:
                    if each.error:
                        raise CommandError(f"{each.manifest.body['kind']} {each.key}: {each.error}")
            return await request_token(client, lease_namespace, f"{HOST_ACCOUNT_PREFIX}{host}")


def kubeconfig_of(cluster: ClusterConfig, server: str, namespace: str) -> Mapping[str, Any]:
    """Return a kubeconfig that trusts what the administrator's does, and reads the host's token from beside it.

    Raises:
        UserError: The administrator's certificate authority cannot be read.
    """
    named: dict[str, Any] = {"server": server}
    ca = cluster.tls.ca
    if ca is not None:
        try:
            data = ca.data if isinstance(ca, InlinePem) else _read(ca)
        except OSError as error:
            raise UserError(f"the certificate authority of {cluster.context} cannot be read: {error}") from error
        named["certificate-authority-data"] = base64.b64encode(data).decode()
    if cluster.tls.server_name:
        named["tls-server-name"] = cluster.tls.server_name
    if cluster.tls.insecure:
        named["insecure-skip-tls-verify"] = True
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": named}],
        "users": [{"name": "host", "user": {"tokenFile": TOKEN_FILE}}],
        "contexts": [{"name": "host", "context": {"cluster": "cluster", "user": "host", "namespace": namespace}}],
        "current-context": "host",
    }


def _read(ca: PemFile) -> bytes:
    return ca.path.read_bytes()
