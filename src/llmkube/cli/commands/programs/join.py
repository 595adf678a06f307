"""`llmkube agent join` and `join-token`: give one host an identity of its own in a cluster."""

import base64
import binascii
import contextlib
import datetime
import ipaddress
import json
import re
import secrets as random_secrets
from collections.abc import Iterator
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
from llmkube.cli.target_cluster import answer_deadline, run_with_deadline
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
from llmkube.supervisor.host_token import TOKEN_SECONDS, read_token, request_token
from llmkube.supervisor.network import machine_of
from llmkube.supervisor.values.join_record import JoinRecord, record_of
from llmkube.weights.address_policy import parse_networks

PREFIX: Final = "llmkube-join-v1."

JOIN_SECONDS: Final = 3600
"""How long the token in it is to live; the API server may give it another life."""

MAX_CHARS: Final = 1 << 18
"""A certificate authority has a few KiB, a token too."""

_ANY_VERSION: Final = re.compile(r"llmkube-join-v[0-9]+\.")


class JoinTokenError(UserError):
    """A join token cannot be used; the sentence never quotes it."""


@attrs.frozen(kw_only=True)
class JoinToken:
    """What an administrator hands to a host.

    Attributes:
        identity: What was granted, and a token that lives for an hour.
        allow_from: Networks (CIDR) that shall reach its engines without a key.
    """

    identity: Identity
    allow_from: tuple[str, ...] = ()


def encode_join_token(token: JoinToken) -> str:
    """Return the line."""
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
    """Read the line.

    Args:
        text: What the file held; white space around it does not count.
        now: The wall clock; the API server has the last word on a token's end.

    Raises:
        JoinTokenError: It is none, one of another version, or one that has ended.
    """
    line = text.strip()
    if not line.startswith(PREFIX):
        if _ANY_VERSION.match(line):
            made = line.partition(".")[0]
            raise JoinTokenError(
                f"--token-file: this join token is of another version ({made}), and this llmkube reads {PREFIX[:-1]}; "
                "use the same version of llmkube on both sides"
            )
        raise JoinTokenError(
            f"--token-file: there is no join token in it; one begins with {PREFIX}, and `llmkube agent join-token` "
            "prints it"
        )
    try:
        body = line.removeprefix(PREFIX)
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        found = _token_of(json.loads(data))
    except (binascii.Error, ValueError, TypeError, KeyError, RecursionError):
        # what stands in it is a secret, so the cause is not chained
        raise JoinTokenError(
            "--token-file: this join token is damaged or not complete; copy the whole line again"
        ) from None
    token_claims = read_token(found.identity.token)
    assert token_claims is not None, "_token_of() has read it"
    if now.timestamp() >= token_claims.expires_at:
        raise expired_error(found.identity.record, token_claims.expires_at)
    return found


def expired_error(record: JoinRecord, expires_at: float | None = None) -> JoinTokenError:
    """Return what to say of a token that counts no longer."""
    when = (
        "" if expires_at is None else f" {datetime.datetime.fromtimestamp(expires_at, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    )
    how = f"at{when}" if when else "or its account is gone"
    return JoinTokenError(
        f"--token-file: this join token has ended {how}; an administrator makes another one: "
        f"llmkube agent join-token --name {record.host} …"
    )


def _token_of(content: Any) -> JoinToken:
    """Read what was encoded; ValueError, TypeError or KeyError for anything else."""
    record, token, ca = record_of(content["record"]), content["token"], base64.b64decode(content["ca"], validate=True)
    server_name, insecure = content["serverName"], content["insecure"]
    allow_from = tuple([str(ipaddress.ip_network(str(each))) for each in content["allowFrom"]])
    if not (server_name == "" or is_token(server_name)) or not (isinstance(insecure, bool) and is_token(token)):
        raise TypeError("not what was encoded")
    own = read_token(token)
    if own is None or (own.namespace, own.account) != (record.lease_namespace, account_of(record.host)):
        raise ValueError("a token of another account")
    _check_record(record)
    tls = TlsSettings(ca=ca or None, server_name=server_name, insecure=insecure)
    return JoinToken(identity=Identity(record=record, tls=tls, token=token), allow_from=allow_from)


def _check_record(record: JoinRecord) -> None:
    """Refuse what no administrator grants: it would stand in a command that the host's owner pastes into a shell.

    Raises:
        ValueError: It is no host, namespace, Secret, network or URL.
    """
    secrets = [each for each in record.secrets if each != "*"]
    names = [record.lease_namespace, *([record.namespace] if record.namespace else ()), *secrets]
    if record.host != host_id(record.host) or not all(map(is_object_name, names)):
        raise ValueError("names that nothing has")
    for network in record.networks:
        ipaddress.ip_network(network)
    if not (record.server.startswith(("https://", "http://")) and is_token(record.server)):
        raise ValueError("no URL")


_NOT_WITH_TOKEN: Final = (
    "kubeconfig",
    "context",
    "name",
    "networks",
    "namespace",
    "all_namespaces",
    "secrets",
    "lease_namespace",
)


@command("join")
@grant_options
@click.option("--name", metavar="NAME", help="Name of the host. Default: that of this machine.")
@click.option(
    "--token-file",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="File with the line that `llmkube agent join-token` has printed, - for standard input: join with it instead "
    "of an administrator's kubeconfig.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="State directory of the host's agent."
)
@click.pass_context
def join(
    context: click.Context, /, *, name: str | None, token_file: str | None, state_dir: Path | None, **grant: Any
) -> None:
    """Give a host an identity of its own in a cluster, and write its kubeconfig into the agent's state directory.

    An administrator of the cluster runs it, on that host or elsewhere, and again when the host's token has ended. It
    applies the policies that confine hosts, and the host's account and roles. On a host without an administrator's
    kubeconfig it takes what `llmkube agent join-token` has printed: --token-file.
    """
    allow_from = _checked_networks(grant["allow_from"])
    if token_file is not None:
        _refuse_with_token(context)
        token = _read_join_token(token_file)
        allow_from += token.allow_from
        folder = _make_state_dir(state_dir)
        _plan_access(folder, allow_from)  # a file that cannot be edited is said before anything is asked
        machine = None if grant["overwrite"] else _machine(folder)
        identity = trio.run(_exchange_token, token, grant["server"], machine)
    else:
        folder = _make_state_dir(state_dir)
        _plan_access(folder, allow_from)
        cluster, record = resolve_grant(grant, name or host_id(persistent_host_name(folder)), folder)
        tls = portable_tls(cluster.tls, cluster.context)
        machine = None if grant["overwrite"] else _machine(folder)
        own, node_networks = run_with_deadline(_grant, cluster, record, machine, TOKEN_SECONDS)
        allow_from += node_networks
        identity = Identity(record=record, tls=tls, token=own)
    _store_identity(identity, folder, _plan_access(folder, allow_from), named_folder=state_dir is not None)


@command("join-token")
@grant_options
@click.option("--name", metavar="NAME", help="Name of the host. Default: host- and six random hex digits.")
def join_token(*, name: str | None, **grant: Any) -> None:
    """Print a token, good for an hour, with which a host joins a cluster by itself.

    An administrator of the cluster runs it: it makes what `llmkube agent join` makes, the policies, the host's account
    and its roles, and prints one line for `llmkube agent join --token-file` on the host. The line is a secret.
    """
    allow_from = _checked_networks(grant["allow_from"])
    cluster, record = resolve_grant(grant, name or f"host-{random_secrets.token_hex(3)}", local_state_dir())
    tls = portable_tls(cluster.tls, cluster.context)
    token, node_networks = run_with_deadline(_grant, cluster, record, None if grant["overwrite"] else "", JOIN_SECONDS)
    allow_from += node_networks
    identity = Identity(record=record, tls=tls, token=token)
    click.echo(encode_join_token(JoinToken(identity=identity, allow_from=allow_from)))
    own = read_token(token)
    assert own is not None, "request_token() has read it"
    until = datetime.datetime.fromtimestamp(own.expires_at, datetime.UTC)
    click.echo(
        f"{record.host} has the account {account_of(record.host)}; until {until:%Y-%m-%d %H:%M} UTC, run on the host "
        "with the line above in a file or on standard input:\nllmkube agent join --token-file -",
        err=True,
    )


def _refuse_with_token(context: click.Context) -> None:
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in _NOT_WITH_TOKEN
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise UserError(
            f"--token-file: the administrator has decided {', '.join(given)} with `llmkube agent join-token`"
        )


def _read_join_token(name: str) -> JoinToken:
    try:
        with click.open_file(name, encoding="ascii", errors="replace") as file:
            text = file.read(MAX_CHARS)
    except OSError as error:
        raise UserError(f"--token-file {name}: cannot be read ({error.strerror})") from error
    return decode_join_token(text, utcnow())


def _make_state_dir(state_dir: Path | None) -> Path:
    """Return the state directory, private, and made if it was not there."""
    folder = state_dir.absolute() if state_dir else local_state_dir()
    check_state_dir(folder, to_create=True)
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Say which folder a disk does not take.

    Raises:
        UserError: It does not.
    """
    try:
        yield
    except OSError as error:
        problem = f"the state directory {folder} cannot be used ({error.strerror})"
        raise UserError(f"{problem}; choose another with --state-dir") from error


def _machine(folder: Path) -> str:
    with _disk_errors(folder):
        return machine_of(folder)


async def _grant(
    cluster: ClusterConfig, record: JoinRecord, machine: str | None, seconds: int
) -> tuple[str, tuple[str, ...]]:
    """Make the host's account and roles with an administrator's rights, and return a token of it.

    Also the networks of the cluster's nodes as they are now, where the host may not list nodes itself.

    Args:
        cluster: The administrator's.
        record: What the host is granted.
        machine: The host's, empty for another than this one, None to take a name that is in use.
        seconds: How long the token is to live.
    """
    async with open_client(cluster) as client:
        if machine is not None:
            await check_name_is_free(client, record, machine)
        with answer_deadline():
            await apply_identity(client, record)
            node_networks: tuple[str, ...] = ()
            if record.namespace:
                with contextlib.suppress(LLMKubeError):  # then --allow-from names all
                    node_networks, _ = networks_of((await client.list(Node)).items)
            return await request_token(client, record.lease_namespace, account_of(record.host), seconds), node_networks


async def _exchange_token(token: JoinToken, server: str | None, machine: str | None) -> Identity:
    """Ask with the token of an hour for the host's own.

    Args:
        token: What `llmkube agent join-token` has printed.
        server: Another address of the API server than the one in it.
        machine: This one, None to take a name that is in use.

    Raises:
        CommandError: The API server is not to be reached, or gives none.
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
            f"the API server {record.server} of the join token cannot be reached from here "
            f"({str(error) or 'no answer'}); name the address at which this host reaches it with --server URL"
        ) from error
    except UnauthorizedError as error:
        raise expired_error(record) from error
    except ForbiddenError as error:
        raise CommandError(
            f"the account {account_of(record.host)} may not ask for a token of its own ({error}); an administrator "
            "runs `llmkube agent join-token` again"
        ) from error
    return attrs.evolve(token.identity, record=record, token=own)


def _checked_networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, parse_networks(texts, field="--allow-from")))


def _plan_access(folder: Path, networks: tuple[str, ...]) -> Addition:
    return plan_addition(folder, "agent", "allow_from", networks)


def _store_identity(identity: Identity, folder: Path, access: Addition, *, named_folder: bool) -> None:
    """Write what the host keeps, and say how to use it."""
    with _disk_errors(folder):
        is_replaced = identity.write(folder)
        access.write()
    host = identity.record.host
    click.echo(f"{host} has the account {account_of(host)}; on the host, run:")
    click.echo(agent_command(identity.record, folder, named_folder=named_folder))
    if access.added:
        click.echo(f"{access.file}: requests from {', '.join(access.added)} reach its engines without a key", err=True)
    pid = lock_holder(folder)
    if pid is not None and access.added:
        click.echo(f"the agent with pid {pid} reads these settings when it is started again", err=True)
    if is_replaced and pid is not None:
        click.echo(
            f"the agent with pid {pid} goes on with the identity that it was started with, until it is started again",
            err=True,
        )
