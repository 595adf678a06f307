"""The identity of one host: made in a cluster with an administrator's rights, kept in a state directory.

What an administrator grants to it is what `llmkube agent join` and `join-token` are told.
"""

import base64
import contextlib
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.private_files import write_private
from llmkube.cli.commands.tools.rbac import agent_manifests, checked_network
from llmkube.cli.target_cluster import answer_deadline, find_config
from llmkube.k8s.auth.config import ClusterConfig, TlsSettings
from llmkube.k8s.builtins import Lease, Namespace
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.leases.live_hosts import DEFAULT_LEASE_SECONDS
from llmkube.k8s.resource import Key, Resource
from llmkube.k8s.wire.names import HOST_ACCOUNT_PREFIX
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.server_side_apply import Applier, Manifest
from llmkube.supervisor.cluster.host_lease import is_same_machine, machine_in, place_in
from llmkube.supervisor.host_policies import host_policies
from llmkube.supervisor.values.join_record import (
    DEFAULT_LEASE_NAMESPACE,
    JoinRecord,
    encode_record,
    record_path,
    token_path,
)

KUBECONFIG_FILE: Final = "host.kubeconfig"

_RBAC: Final = "rbac.authorization.k8s.io"
_BINDINGS: Final = (
    (Resource(_RBAC, "v1", "RoleBinding", "rolebindings"), Resource(_RBAC, "v1", "Role", "roles")),
    (
        Resource(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
        Resource(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False),
    ),
)
"""The kinds of bindings, each with the kind of role that it binds."""

LOOK_SECONDS: Final = 1.0
"""How often to look whether another machine renews its Lease."""

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


def account_of(host: str) -> str:
    """Return the name of a host's ServiceAccount."""
    return f"{HOST_ACCOUNT_PREFIX}{host}"


def manifests_of(record: JoinRecord) -> list[dict[str, Any]]:
    """Return the account and the roles of the host.

    Raises:
        UserError: What is granted does not fit together, or is none.
    """
    return agent_manifests(
        record.lease_namespace, record.namespace or None, record.host, record.networks, record.secrets
    )


async def check_name_is_free(client: Client, record: JoinRecord, machine: str) -> None:
    """Look for the length of a Lease whether another machine is alive under the name; its account would be taken over.

    Args:
        client: Of one who may read the Leases of hosts.
        record: Which host.
        machine: The one that the name is for (`machine_of`); empty if it is another than this.

    Raises:
        CommandError: There is one.
    """
    key, first, expires_at = Key(record.lease_namespace, record.host), "", 0.0
    while True:
        with answer_deadline():
            try:
                lease = await client.get(Lease, key)
            except (NotFoundError, ForbiddenError):  # who may not read it cannot tell; the agent itself looks as well
                return
        other, version = machine_in(lease), lease.metadata.resource_version
        if not other or is_same_machine(other, machine):
            return
        if not first:
            first = version
            expires_at = trio.current_time() + float(lease.spec.lease_duration_seconds or DEFAULT_LEASE_SECONDS)
        elif version != first:
            raise CommandError(
                f"the host name {record.host} is taken, and nothing was changed: the machine {place_in(lease)} serves "
                "under it; choose another --name, or give that host another identity with --overwrite"
            )
        if trio.current_time() >= expires_at:
            return
        await trio.sleep(LOOK_SECONDS)


async def apply_identity(client: Client, record: JoinRecord) -> None:
    """Apply the policies, and where they are taken the account that they confine; take back what it had elsewhere.

    Raises:
        CommandError: A namespace is missing, and nothing is applied; or the API server refuses an object.
    """
    await _check_namespace(client, record.namespace)
    applier = Applier(client)
    for manifests in (host_policies(record.lease_namespace), manifests_of(record)):
        applied = await applier.apply_all([Manifest("join", one) for one in manifests], lambda _: None)
        for each in applied:
            if each.error:
                raise CommandError(f"{each.manifest.body['kind']} {each.key}: {each.error}")
    await _revoke_elsewhere(client, record)


async def _revoke_elsewhere(client: Client, record: JoinRecord) -> None:
    """Delete the host's roles in namespaces that it serves no more.

    Raises:
        CommandError: Whether there are some cannot be seen.
    """
    granted = {(one["kind"], one["metadata"].get("namespace", "")) for one in manifests_of(record)}
    name = account_of(record.host)
    own = {"kind": "ServiceAccount", "name": name, "namespace": record.lease_namespace}
    try:
        for binding, role in _BINDINGS:
            found = await client.get_json(binding.path(), params={"fieldSelector": f"metadata.name={name}"})
            for each in found["items"]:
                namespace = each["metadata"].get("namespace", "")
                if own not in each.get("subjects", ()) or (binding.kind, namespace) in granted:
                    continue  # of another installation's host of that name, or granted just now
                for resource in (binding, role):
                    with contextlib.suppress(NotFoundError):
                        await client.request_json("DELETE", resource.path(namespace, name))
    except ForbiddenError as error:
        raise CommandError(
            f"{record.host} has what was granted now, and may have more from an earlier join: {error}; an "
            "administrator of the whole cluster runs this again"
        ) from error


async def _check_namespace(client: Client, name: str) -> None:
    """A role can be made in a namespace that is there; its account would stay behind without one."""
    if not name:
        return
    try:
        await client.get(Namespace, Key("", name))
    except NotFoundError as error:
        raise CommandError(
            f"there is no namespace {name}, and nothing was changed; make it first: kubectl create namespace {name}",
            ExitCode.NOT_FOUND,
        ) from error
    except ForbiddenError:
        pass  # one who may write roles there need not be one who may look at namespaces


def portable_tls(tls: TlsSettings, context: str) -> TlsSettings:
    """Return how to know the server, without what proves that we are the administrator, and without paths.

    Raises:
        UserError: The certificate authority cannot be read.
    """
    ca = tls.ca
    if isinstance(ca, Path):
        try:
            ca = ca.read_bytes()
        except OSError as error:
            raise UserError(f"the certificate authority of {context} cannot be read: {error}") from error
    return TlsSettings(ca=ca, server_name=tls.server_name, insecure=tls.insecure)


def authority_of(tls: TlsSettings) -> bytes:
    """Return the certificate authority that `portable_tls` has read; empty for the system's."""
    return tls.ca if isinstance(tls.ca, bytes) else b""


def kubeconfig_of(server: str, tls: TlsSettings, namespace: str, token: Path) -> Mapping[str, Any]:
    """Return a kubeconfig that trusts what `portable_tls` says, and reads the host's token from beside it."""
    named: dict[str, Any] = {"server": server}
    if tls.ca is not None:
        named["certificate-authority-data"] = base64.b64encode(authority_of(tls)).decode()
    if tls.server_name:
        named["tls-server-name"] = tls.server_name
    if tls.insecure:
        named["insecure-skip-tls-verify"] = True
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": named}],
        "users": [{"name": "host", "user": {"tokenFile": token.name}}],
        "contexts": [{"name": "host", "context": {"cluster": "cluster", "user": "host", "namespace": namespace}}],
        "current-context": "host",
    }


@attrs.frozen(kw_only=True)
class Identity:
    """All that a host keeps.

    Attributes:
        record: What it was granted.
        tls: How to know the API server (`portable_tls`).
        token: Of its account.
    """

    record: JoinRecord
    tls: TlsSettings
    token: str = attrs.field(repr=False)

    def write(self, folder: Path) -> bool:
        """Write token, record and kubeconfig (0600); return whether the kubeconfig had another identity.

        The kubeconfig comes last: until then an agent that starts belongs to the cluster of before, whole.

        Raises:
            OSError: The disk does not take it.
        """
        file, record = folder / KUBECONFIG_FILE, self.record
        token = token_path(folder, record, authority_of(self.tls))
        before = _token_file_in(file)
        write_private(token, self.token)
        write_private(record_path(token), encode_record(record))
        document = kubeconfig_of(record.server, self.tls, record.namespace or "default", token)
        write_private(file, json.dumps(document, indent=1))  # JSON is YAML
        return before not in ("", token.name)


def agent_command(record: JoinRecord, folder: Path, *, named_folder: bool) -> str:
    """Return the command that runs the agent with what `Identity.write` has left in a folder."""
    words = ["llmkube", "agent", "--kubeconfig", str(folder / KUBECONFIG_FILE), "--host-name", record.host]
    words += ["--namespace", record.namespace] if record.namespace else []
    if record.lease_namespace != DEFAULT_LEASE_NAMESPACE:
        words += ["--lease-namespace", record.lease_namespace]
    words += ["--state-dir", str(folder)] if named_folder else []
    return shlex.join(words)


def _token_file_in(file: Path) -> str:
    try:
        return str(json.loads(file.read_text("utf-8"))["users"][0]["user"]["tokenFile"])
    except (OSError, ValueError, TypeError, LookupError):
        return ""


def grant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which an administrator says what a host is granted."""
    for option in reversed(_GRANTS):
        command = option(command)
    return command


def resolve_grant(grant: Mapping[str, Any], host: str, folder: Path) -> tuple[ClusterConfig, JoinRecord]:
    """Return the cluster and what a host shall have there; what does not fit together is said before it is asked.

    Args:
        grant: What an administrator says by `grant_options`.
        host: The name of the host.
        folder: The state directory.

    Raises:
        UserError: Something does not.
    """
    if grant["namespace"] and grant["all_namespaces"]:
        raise UserError("-n and -A exclude each other")
    if not grant["networks"]:
        raise UserError("--network: name the network in which this host's engines may be, such as 192.168.1.20/32")
    cluster, _ = find_config(grant["kubeconfig"], grant["context"], folder)
    record = JoinRecord(
        host=host,
        server=grant["server"] or cluster.server,
        namespace="" if grant["all_namespaces"] else grant["namespace"] or cluster.namespace or "default",
        lease_namespace=grant["lease_namespace"],
        networks=tuple(map(checked_network, grant["networks"])),
        secrets=grant["secrets"],
    )
    manifests_of(record)
    return cluster, record
