"""What an administrator has granted to a host, as the host keeps it, and the command that grants it again.

`llmkube agent join` leaves three files in the state directory: a kubeconfig, a token and this record. Token and record
are named after the API server and the host's name, so that a host which joins anew takes all or nothing of an identity.
"""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any, Final

import attrs

DEFAULT_LEASE_NAMESPACE: Final = "llmkube-system"

_TOKEN_SUFFIX: Final = ".token"  # noqa: S105 - the ending of a name
_DIGEST_CHARS: Final = 12
_ON_THE_HOST: Final = "llmkube agent join --token-file -"


@attrs.frozen(kw_only=True)
class JoinRecord:
    """One host in one cluster.

    Attributes:
        host: Its name.
        server: URL of the API server as the host reaches it.
        namespace: The only one that it serves; empty for all.
        lease_namespace: Where its account and its Lease are.
        networks: Where its engines may be (CIDR).
        secrets: Which it may read.
        by_token: Whether it has joined with a token, and so may be far from an administrator.
    """

    host: str
    server: str
    namespace: str = ""
    lease_namespace: str = DEFAULT_LEASE_NAMESPACE
    networks: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    by_token: bool = False

    def command(self, state_dir: Path) -> str:
        """Return the command by which an administrator gives the host another token, and the same rights.

        An administrator runs `agent join` on the host; where the host has joined with a token, it is two commands.
        """
        words = ["llmkube", "agent", "join-token" if self.by_token else "join", "--name", self.host]
        for network in self.networks:
            words += ["--network", network]
        words += ["--namespace", self.namespace] if self.namespace else ["--all-namespaces"]
        for secret in self.secrets:
            words += ["--secret", secret]
        if self.lease_namespace != DEFAULT_LEASE_NAMESPACE:
            words += ["--lease-namespace", self.lease_namespace]
        granting, where = shlex.join([*words, "--server", self.server]), shlex.join(["--state-dir", str(state_dir)])
        if self.by_token:
            return f"{granting}, and on this host, with the line that it prints: {_ON_THE_HOST} {where}"
        return f"{granting} {where}"


def token_path(state_dir: Path, record: JoinRecord, authority: bytes) -> Path:
    """Return where the token of an identity is kept: another server, authority or host is another identity."""
    parts = (record.server.encode(), authority, record.lease_namespace.encode(), record.host.encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:_DIGEST_CHARS]
    return state_dir / f"host-{digest}{_TOKEN_SUFFIX}"


def token_paths(state_dir: Path) -> frozenset[Path]:
    """Return the tokens of all identities that joins have left."""
    return frozenset(state_dir.glob(f"host-{'?' * _DIGEST_CHARS}{_TOKEN_SUFFIX}"))


def record_path(token: Path) -> Path:
    """Return where the record beside a token is."""
    return token.with_suffix(".json")


def encode_record(record: JoinRecord) -> str:
    """Return what stands in the file."""
    return json.dumps(attrs.asdict(record), indent=1)


def read_record(token: Path) -> JoinRecord | None:
    """Return the record beside a token, or None if there is none that can be read."""
    try:
        return record_of(json.loads(record_path(token).read_text("utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def record_of(data: Any) -> JoinRecord:
    """Return the record that `attrs.asdict` has made this of; ValueError, TypeError or KeyError for anything else."""
    record = JoinRecord(
        host=data["host"],
        server=data["server"],
        namespace=data["namespace"],
        lease_namespace=data["lease_namespace"],
        networks=tuple(data["networks"]),
        secrets=tuple(data["secrets"]),
        by_token=data["by_token"],
    )
    texts = (record.host, record.server, record.namespace, record.lease_namespace, *record.networks, *record.secrets)
    if not (all(isinstance(each, str) for each in texts) and isinstance(record.by_token, bool)):
        raise TypeError("a record is of texts, and one flag")
    return record
