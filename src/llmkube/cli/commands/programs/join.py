"""`llmkube agent join` and `join-token`: create a cluster identity for a host."""

import base64
import binascii
import contextlib
import datetime
import ipaddress
import json
import re
import secrets as random_secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.times import utcnow
from llmkube.cli.commands.programs.host_identity import (
    Identity,
    account_of,
    agent_command,
    apply_identity,
    authority_of,
    check_name_is_free,
    grant_options,
    portable_tls,
    resolve_grant,
)
from llmkube.cli.config_edit import Addition, plan_addition
from llmkube.cli.target_cluster import answer_deadline, run_or_time_out
from llmkube.k8s.auth.config import BearerToken, ClusterConfig, TlsSettings, is_token
from llmkube.k8s.builtins import Node
from llmkube.k8s.client import open_client
from llmkube.k8s.errors import ForbiddenError, TransportError, UnauthorizedError
from llmkube.k8s.wire.names import host_id, is_object_name
from llmkube.programs.failures import CommandError
from llmkube.programs.host_name import persistent_host_name
from llmkube.programs.options import command
from llmkube.programs.state_location import check_state_dir, local_state_dir, lock_holder
from llmkube.supervisor.cluster.node_monitor import networks_of
from llmkube.supervisor.credential_monitor import TOKEN_SECONDS, read_token, request_token
from llmkube.supervisor.network import machine_of
from llmkube.supervisor.values.join_record import JoinRecord, record_of
from llmkube.weights.address_policy import parse_networks

PREFIX: Final = "llmkube-join-v1."

JOIN_SECONDS: Final = 3600
"""Requested lifetime of the token in a join token; the API server may choose another."""

MAX_CHARS: Final = 1 << 18
"""Maximum length of a join token; its certificate authority and its token have a few KiB each."""

_ANY_VERSION: Final = re.compile(r"llmkube-join-v[0-9]+\.")


class JoinTokenError(UserError):
    """A join token cannot be used; the message never quotes the token."""


@attrs.frozen(kw_only=True)
class JoinToken:
    """A join token: an administrator creates it, and a host joins with it.

    Attributes:
        identity: The grants, and a token of the account that is valid for an hour.
        allow_from: Networks (CIDR) from which requests reach the host's engines without a key.
    """

    identity: Identity
    allow_from: tuple[str, ...] = ()


def encode_join_token(token: JoinToken) -> str:
    """Encode a join token as one line."""
    identity = token.identity
    content = {
        "record": attrs.asdict(identity.record),
        "ca": base64.b64encode(authority_of(identity.tls)).decode(),
        "serverName": identity.tls.server_name,
        "insecure": identity.tls.insecure,
        "token": identity.token,
        "allowFrom": list(token.allow_from),
    }
    body = json.dumps(content, separators=(",", ":")).encode()
    return PREFIX + base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode_join_token(text: str, now: datetime.datetime) -> JoinToken:
    """Decode a join token.

    Args:
        text: Content of the file; surrounding white space is ignored.
        now: The wall clock; the API server checks the expiry as well.

    Raises:
        JoinTokenError: The text is not a join token, has another version, or has expired.
    """
    line = text.strip()
    if not line.startswith(PREFIX):
        if _ANY_VERSION.match(line):
            made = line.partition(".")[0]
            raise JoinTokenError(
                f"--token-file: unsupported join token version {made}; this llmkube reads {PREFIX[:-1]}, "
                "so use the same version of llmkube on both sides"
            )
        raise JoinTokenError(
            f"--token-file: the file has no join token, which starts with {PREFIX}; "
            "`llmkube agent join-token` prints one"
        )
    try:
        body = line.removeprefix(PREFIX)
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        found = _token_of(json.loads(data))
    except (binascii.Error, ValueError, TypeError, KeyError, RecursionError):
        # The content is a secret, so the cause is not chained.
        raise JoinTokenError("--token-file: this join token is damaged or incomplete; copy the whole line") from None
    token_claims = read_token(found.identity.token)
    assert token_claims is not None, "_token_of() has read it"
    if now.timestamp() >= token_claims.expires_at:
        raise expired_error(found.identity.record, token_claims.expires_at)
    return found


def expired_error(record: JoinRecord, expires_at: float | None = None) -> JoinTokenError:
    """Return the error for a token that is no longer valid."""
    cause = "has expired, or its account was deleted"
    if expires_at is not None:
        cause = f"expired at {datetime.datetime.fromtimestamp(expires_at, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    return JoinTokenError(
        f"--token-file: this join token {cause}; ask an administrator to create another one with: "
        f"llmkube agent join-token --name {record.host} …"
    )


def _token_of(content: Any) -> JoinToken:
    """Read the decoded content.

    Raises:
        ValueError: A value is invalid; also TypeError and KeyError.
    """
    record, token, ca = record_of(content["record"]), content["token"], base64.b64decode(content["ca"], validate=True)
    server_name, insecure = content["serverName"], content["insecure"]
    allow_from = tuple([str(ipaddress.ip_network(str(each))) for each in content["allowFrom"]])
    if not (server_name == "" or is_token(server_name)) or not (isinstance(insecure, bool) and is_token(token)):
        raise TypeError("value of another type")
    own = read_token(token)
    if own is None or (own.namespace, own.account) != (record.lease_namespace, account_of(record.host)):
        raise ValueError("a token of another account")
    _check_record(record)
    tls = TlsSettings(ca=ca or None, server_name=server_name, insecure=insecure)
    return JoinToken(identity=Identity(record=record, tls=tls, token=token), allow_from=allow_from)


def _check_record(record: JoinRecord) -> None:
    """Check the grants: they appear in a command that the host's owner pastes into a shell.

    Raises:
        ValueError: A host, namespace, Secret, network or URL is invalid.
    """
    secrets = [each for each in record.secrets if each != "*"]
    names = [record.lease_namespace, *([record.namespace] if record.namespace else ()), *secrets]
    if record.host != host_id(record.host) or not all(map(is_object_name, names)):
        raise ValueError("invalid name")
    for network in record.networks:
        ipaddress.ip_network(network)
    if not (record.server.startswith(("https://", "http://")) and is_token(record.server)):
        raise ValueError("invalid URL")


_WITH_TOKEN: Final = frozenset({"token_file", "state_dir", "server", "allow_from", "overwrite"})
"""Options that a join token does not replace."""


@command("join")
@grant_options
@click.option("--name", metavar="NAME", help="Name of the host. Default: the name of this machine.")
@click.option(
    "--token-file",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="File with the line that `llmkube agent join-token` printed, - for standard input: join with it instead of "
    "an administrator's kubeconfig.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="State directory of the host's agent."
)
@click.pass_context
def join(
    context: click.Context, /, *, name: str | None, token_file: str | None, state_dir: Path | None, **grant: Any
) -> None:
    """Create a cluster identity for a host and write its kubeconfig into the agent's state directory.

    Run it as an administrator of the cluster, on that host or elsewhere, and again when the host's token has expired.
    It applies the policies that confine hosts, and the host's account and roles. On a host without an administrator's
    kubeconfig, use the output of `llmkube agent join-token` with --token-file.
    """
    allow_from, token = _checked_networks(grant["allow_from"]), None
    if token_file is not None:
        _refuse_with_token(context)
        token = _read_join_token(token_file)
        allow_from += token.allow_from
    folder = _make_state_dir(state_dir)
    _plan_access(folder, allow_from)  # fails before the token is used if config.toml cannot be edited
    if token is not None:
        identity = trio.run(_exchange_token, token, grant["server"], _machine(folder, grant))
    else:
        cluster, record = resolve_grant(grant, name or host_id(persistent_host_name(folder)), folder)
        tls = portable_tls(cluster.tls, cluster.context)
        own, node_networks = run_or_time_out(_grant, cluster, record, _machine(folder, grant), TOKEN_SECONDS)
        allow_from += node_networks
        identity = Identity(record=record, tls=tls, token=own)
    _store_identity(identity, folder, _plan_access(folder, allow_from), named_folder=state_dir is not None)


@command("join-token")
@grant_options
@click.option("--name", metavar="NAME", help="Name of the host. Default: host- and six random hex digits.")
def join_token(*, name: str | None, **grant: Any) -> None:
    """Print a token, valid for an hour, with which a host can join a cluster.

    Run it as an administrator of the cluster. Like `llmkube agent join`, it applies the policies, the host's account
    and its roles; it prints one line for `llmkube agent join --token-file` on the host. The line is a secret.
    """
    allow_from = _checked_networks(grant["allow_from"])
    cluster, record = resolve_grant(grant, name or f"host-{random_secrets.token_hex(3)}", local_state_dir())
    tls = portable_tls(cluster.tls, cluster.context)
    token, node_networks = run_or_time_out(_grant, cluster, record, None if grant["overwrite"] else "", JOIN_SECONDS)
    allow_from += node_networks
    identity = Identity(record=record, tls=tls, token=token)
    click.echo(encode_join_token(JoinToken(identity=identity, allow_from=allow_from)))
    own = read_token(token)
    assert own is not None, "request_token() has read it"
    until = datetime.datetime.fromtimestamp(own.expires_at, datetime.UTC)
    click.echo(
        f"{record.host} has the account {account_of(record.host)}; before {until:%Y-%m-%d %H:%M} UTC, run this on the "
        "host, with the line above on standard input or in a file:\nllmkube agent join --token-file -",
        err=True,
    )


def _refuse_with_token(context: click.Context) -> None:
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _WITH_TOKEN
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise UserError(
            f"--token-file excludes {', '.join(given)}: the administrator set this with `llmkube agent join-token`"
        )


def _read_join_token(name: str) -> JoinToken:
    try:
        with click.open_file(name, encoding="ascii", errors="replace") as file:
            text = file.read(MAX_CHARS)
    except OSError as error:
        raise UserError(f"--token-file {name}: cannot be read ({error.strerror})") from error
    return decode_join_token(text, utcnow())


def _make_state_dir(state_dir: Path | None) -> Path:
    """Return the state directory, created if necessary, with mode 0700."""
    folder = state_dir.absolute() if state_dir else local_state_dir()
    check_state_dir(folder, to_create=True)
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Report errors of the disk with the name of the state directory.

    Raises:
        UserError: An operation on the directory failed.
    """
    try:
        yield
    except OSError as error:
        problem = f"state directory {folder} cannot be used: {error.strerror}"
        raise UserError(f"{problem}; choose another with --state-dir") from error


def _machine(folder: Path, grant: Mapping[str, Any]) -> str | None:
    """Return this machine; None to take over a name that is in use."""
    with _disk_errors(folder):
        return None if grant["overwrite"] else machine_of(folder)


async def _grant(
    cluster: ClusterConfig, record: JoinRecord, machine: str | None, seconds: int
) -> tuple[str, tuple[str, ...]]:
    """Create the host's account and roles, and return a token of the account and the networks of the nodes.

    The networks are those of the current nodes, and empty for a host that may list nodes itself.

    Args:
        cluster: With an administrator's credentials.
        record: The grants.
        machine: The host's machine; empty if that is not this machine, None to take over a name that is in use.
        seconds: Requested lifetime of the token.
    """
    async with open_client(cluster) as client:
        if machine is not None:
            await check_name_is_free(client, record, machine)
        with answer_deadline():
            await apply_identity(client, record)
            node_networks: tuple[str, ...] = ()
            if record.namespace:
                with contextlib.suppress(LLMKubeError):  # only --allow-from applies then
                    node_networks, _ = networks_of((await client.list(Node)).items)
            return await request_token(client, record.lease_namespace, account_of(record.host), seconds), node_networks


async def _exchange_token(token: JoinToken, server: str | None, machine: str | None) -> Identity:
    """Exchange the short-lived token of a join token for the host's own.

    Args:
        token: The join token.
        server: URL of the API server, if it differs from the one in the join token.
        machine: This machine; None to take over a name that is in use.

    Raises:
        CommandError: The API server cannot be reached, or rejects the request.
    """
    granted = token.identity.record
    record = attrs.evolve(granted, server=server or granted.server, by_token=True)
    short_lived = BearerToken(token.identity.token)
    cluster = ClusterConfig(server=record.server, tls=token.identity.tls, identity=short_lived)
    try:
        async with open_client(cluster) as client:
            if machine is not None:
                await check_name_is_free(client, record, machine)
            with answer_deadline():
                own = await request_token(client, record.lease_namespace, account_of(record.host))
    except (TransportError, trio.TooSlowError) as error:
        raise CommandError(
            f"API server {record.server} of the join token cannot be reached from here: "
            f"{str(error) or 'no answer'}; specify the URL at which this host reaches it with --server URL"
        ) from error
    except UnauthorizedError as error:
        raise expired_error(record) from error
    except ForbiddenError as error:
        raise CommandError(
            f"account {account_of(record.host)} may not request its own token: {error}; ask an "
            "administrator to run `llmkube agent join-token` again"
        ) from error
    return attrs.evolve(token.identity, record=record, token=own)


def _checked_networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, parse_networks(texts, field="--allow-from")))


def _plan_access(folder: Path, networks: tuple[str, ...]) -> Addition:
    return plan_addition(folder, "agent", "allow_from", networks)


def _store_identity(identity: Identity, folder: Path, access: Addition, *, named_folder: bool) -> None:
    """Write the host's files, and print the command that runs the agent."""
    with _disk_errors(folder):
        is_replaced = identity.write(folder)
        access.write()
    host = identity.record.host
    click.echo(f"{host} has the account {account_of(host)}; run this on the host:")
    click.echo(agent_command(identity.record, folder, named_folder=named_folder))
    if access.added:
        click.echo(f"{access.file}: requests from {', '.join(access.added)} reach its engines without a key", err=True)
    pid = lock_holder(folder)
    if pid is not None and access.added:
        click.echo(f"the agent (pid {pid}) reads these settings when it is restarted", err=True)
    if is_replaced and pid is not None:
        click.echo(f"the agent (pid {pid}) keeps its previous identity until it is restarted", err=True)
