"""The identity of a host: an account and roles in the cluster, and a kubeconfig in the state directory.

An administrator creates it with `llmkube agent join` or `join-token`, whose options say what the host is granted.
"""

import base64
import contextlib
import json
import shlex
from collections.abc import Mapping
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
from llmkube.programs.options import with_options
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
"""Each kind of binding, with the kind of role that it binds."""

POLL_SECONDS: Final = 1.0
"""Interval at which the Lease is read to see whether another machine renews it."""

grant_options: Final = with_options(
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig of a cluster administrator."),
    click.option("--context", help="Context in the kubeconfig."),
    click.option("--server", metavar="URL", help="URL of the API server for the host. Default: the context's."),
    click.option(
        "--network",
        "networks",
        multiple=True,
        metavar="CIDR",
        help="Network in which this host may publish engines, such as 192.168.1.20/32; repeatable. Required.",
    ),
    click.option("-n", "--namespace", help="The only namespace to serve. Default: the context's."),
    click.option("-A", "--all-namespaces", is_flag=True, help="Serve all namespaces."),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME",
        help="Secret that the host may read in the namespaces that it serves, for Models and services that refer to "
        "it; repeatable. '*' allows every Secret of the one namespace.",
    ),
    click.option(
        "--lease-namespace",
        default=DEFAULT_LEASE_NAMESPACE,
        show_default=True,
        help="Namespace of the host's account and Lease.",
    ),
    click.option(
        "--allow-from",
        "allow_from",
        multiple=True,
        metavar="CIDR",
        help="Network from which requests reach the host's engines without a key; repeatable. Added to allow_from in "
        "the host's config.toml. For a host of one namespace, which may not list nodes, the networks of the current "
        "nodes are added as well.",
    ),
    click.option("--overwrite", is_flag=True, help="Take over the name even if another live machine has it."),
)
"""Options with which an administrator sets the grants of a host."""


def account_of(host: str) -> str:
    """Return the name of a host's ServiceAccount."""
    return f"{HOST_ACCOUNT_PREFIX}{host}"


def manifests_of(record: JoinRecord) -> list[dict[str, Any]]:
    """Return the account and the roles of the host.

    Raises:
        UserError: The grants contradict each other, or one is invalid.
    """
    namespace = record.namespace or None
    return agent_manifests(record.lease_namespace, namespace, record.host, record.networks, record.secrets)


async def check_name_is_free(client: Client, record: JoinRecord, machine: str) -> None:
    """Check that no other live machine uses the host name: its account would be taken over.

    Takes up to one Lease duration, unless the Lease is free.

    Args:
        client: With the right to read the Leases of hosts.
        record: The host.
        machine: The machine that gets the name (`machine_of`); empty if that is not this machine.

    Raises:
        CommandError: Another machine renews the Lease.
    """
    key, first_version, expires_at = Key(record.lease_namespace, record.host), "", 0.0
    while True:
        with answer_deadline():
            try:
                lease = await client.get(Lease, key)
            except (NotFoundError, ForbiddenError):  # without the right to read Leases: the agent checks as well
                return
        other, version = machine_in(lease), lease.metadata.resource_version
        if not other or is_same_machine(other, machine):
            return
        if not first_version:
            first_version = version
            expires_at = trio.current_time() + float(lease.spec.lease_duration_seconds or DEFAULT_LEASE_SECONDS)
        elif version != first_version:
            raise CommandError(
                f"host name {record.host} is taken, so nothing was changed: the machine {place_in(lease)} serves "
                "under it; choose another --name, or take over the name with --overwrite"
            )
        if trio.current_time() >= expires_at:
            return
        await trio.sleep(POLL_SECONDS)


async def apply_identity(client: Client, record: JoinRecord) -> None:
    """Apply the policies, then the account that they confine, then delete its roles in other namespaces.

    Raises:
        CommandError: A namespace is missing (nothing is applied then), or the API server rejects an object.
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
    """Delete the host's roles in namespaces that it no longer serves.

    Raises:
        CommandError: The roles may not be listed or deleted.
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
                    continue  # another installation's host of that name, or granted just now
                for resource in (binding, role):
                    with contextlib.suppress(NotFoundError):
                        await client.request_json("DELETE", resource.path(namespace, name))
    except ForbiddenError as error:
        raise CommandError(
            f"{record.host} has the new grants, but may still have older ones in other namespaces: {error}; "
            "run this again as an administrator of the whole cluster"
        ) from error


async def _check_namespace(client: Client, name: str) -> None:
    """Check that the namespace of the role exists: without it, the account would be created and the role not."""
    if not name:
        return
    try:
        await client.get(Namespace, Key("", name))
    except NotFoundError as error:
        raise CommandError(
            f"namespace {name} not found, so nothing was changed; create it first: kubectl create namespace {name}",
            ExitCode.NOT_FOUND,
        ) from error
    except ForbiddenError:
        pass  # the right to write roles there does not include the right to read namespaces


def portable_tls(tls: TlsSettings, context: str) -> TlsSettings:
    """Return the settings that verify the server, without the administrator's credentials and without paths.

    Raises:
        UserError: The certificate authority cannot be read.
    """
    ca = tls.ca
    if isinstance(ca, Path):
        try:
            ca = ca.read_bytes()
        except OSError as error:
            raise UserError(f"certificate authority of {context} cannot be read: {error}") from error
    return TlsSettings(ca=ca, server_name=tls.server_name, insecure=tls.insecure)


def authority_of(tls: TlsSettings) -> bytes:
    """Return the certificate authority that `portable_tls` read; empty for the system's."""
    return tls.ca if isinstance(tls.ca, bytes) else b""


def kubeconfig_of(server: str, tls: TlsSettings, namespace: str, token: Path) -> Mapping[str, Any]:
    """Return a kubeconfig with the settings of `portable_tls`; it reads the host's token from the same folder."""
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
    """The identity that a host stores.

    Attributes:
        record: The grants.
        tls: Settings that verify the API server (`portable_tls`).
        token: Token of the host's account.
    """

    record: JoinRecord
    tls: TlsSettings
    token: str = attrs.field(repr=False)

    def write(self, folder: Path) -> bool:
        """Write token, record and kubeconfig (0600); return whether the kubeconfig had another identity.

        Raises:
            OSError: A file cannot be written.
        """
        file, record = folder / KUBECONFIG_FILE, self.record
        token = token_path(folder, record, authority_of(self.tls))
        before = _token_file_in(file)
        write_private(token, self.token)
        write_private(record_path(token), encode_record(record))
        document = kubeconfig_of(record.server, self.tls, record.namespace or "default", token)
        # Written last: an agent that starts before this uses the previous identity in full. JSON is YAML.
        write_private(file, json.dumps(document, indent=1))
        return before not in ("", token.name)


def agent_command(record: JoinRecord, folder: Path, *, named_folder: bool) -> str:
    """Return the command that runs the agent with the files that `Identity.write` wrote into a folder."""
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


def resolve_grant(grant: Mapping[str, Any], host: str, folder: Path) -> tuple[ClusterConfig, JoinRecord]:
    """Return the cluster and the grants of a host, checked before the cluster is contacted.

    Args:
        grant: The values of `grant_options`.
        host: Name of the host.
        folder: The state directory.

    Raises:
        UserError: Options contradict each other, or one is missing or invalid.
    """
    if grant["namespace"] and grant["all_namespaces"]:
        raise UserError("-n and -A exclude each other")
    if not grant["networks"]:
        raise UserError("--network is missing: specify the network of this host's engines, such as 192.168.1.20/32")
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
