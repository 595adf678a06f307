"""A join token: one line by which a host joins a cluster without an administrator's kubeconfig.

`llmkube-join-v1.` and, in base64 for URLs, a JSON object: the record of what was granted, how to know the API server,
and a token of the host's account that lives for an hour. With that the host asks for a longer one of its own.
"""

import base64
import binascii
import datetime
import ipaddress
import json
import re
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.host_identity import Identity, account_of, authority_of
from llmkube.k8s.auth.config import InlinePem, TlsSettings, is_token
from llmkube.k8s.wire.names import host_id, is_object_name
from llmkube.supervisor.host_token import read_token
from llmkube.supervisor.nouns.join_record import JoinRecord, record_of

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
    said = {
        "record": attrs.asdict(identity.record),
        "ca": base64.b64encode(authority_of(identity.tls)).decode(),
        "serverName": identity.tls.server_name,
        "insecure": identity.tls.insecure,
        "token": identity.token,
        "allowFrom": list(token.allow_from),
    }
    body = json.dumps(said, separators=(",", ":")).encode()
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
    ended = read_token(found.identity.token)
    assert ended is not None, "_token_of() has read it"
    if now.timestamp() >= ended.expires_at:
        raise ended_error(found.identity.record, ended.expires_at)
    return found


def ended_error(record: JoinRecord, expires_at: float | None = None) -> JoinTokenError:
    """Return what to say of a token that counts no longer."""
    when = (
        "" if expires_at is None else f" {datetime.datetime.fromtimestamp(expires_at, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    )
    how = f"at{when}" if when else "or its account is gone"
    return JoinTokenError(
        f"--token-file: this join token has ended {how}; an administrator makes another one: "
        f"llmkube agent join-token --name {record.host} …"
    )


def _token_of(said: Any) -> JoinToken:
    """Read what was encoded; ValueError, TypeError or KeyError for anything else."""
    record, token, ca = record_of(said["record"]), said["token"], base64.b64decode(said["ca"], validate=True)
    server_name, insecure = said["serverName"], said["insecure"]
    allow_from = tuple([str(ipaddress.ip_network(str(each))) for each in said["allowFrom"]])
    if not (server_name == "" or is_token(server_name)) or not (isinstance(insecure, bool) and is_token(token)):
        raise TypeError("not what was encoded")
    own = read_token(token)
    if own is None or (own.namespace, own.account) != (record.lease_namespace, account_of(record.host)):
        raise ValueError("a token of another account")
    _check_record(record)
    tls = TlsSettings(ca=InlinePem(ca) if ca else None, server_name=server_name, insecure=insecure)
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
