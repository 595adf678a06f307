"""The record of what `llmkube agent join` granted to a host, and the command that grants it again.

`llmkube agent join` writes three files to the state directory: a kubeconfig, a token and this record. Token and record
are named after the API server and the host, so that a host that joins again never mixes two identities.
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
        server: URL of the API server that the host uses.
        namespace: The only namespace that it serves; "" for all.
        lease_namespace: Namespace of its account and its Lease.
        networks: Networks (CIDR) in which its engines may be.
        secrets: Names of Secrets that it may read.
        by_token: Whether it joined with a token, so that the administrator works on another machine.
    """

    host: str
    server: str
    namespace: str = ""
    lease_namespace: str = DEFAULT_LEASE_NAMESPACE
    networks: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    by_token: bool = False

    def command(self, state_dir: Path) -> str:
        """Return the command by which an administrator gives the host a new token and the same rights.

        It runs on the host. A host that joined with a token needs two: one of the administrator, and one on the host.
        """
        words = ["llmkube", "agent", "join-token" if self.by_token else "join", "--name", self.host]
        for network in self.networks:
            words += ["--network", network]
        words += ["--namespace", self.namespace] if self.namespace else ["--all-namespaces"]
        for secret in self.secrets:
            words += ["--secret", secret]
        if self.lease_namespace != DEFAULT_LEASE_NAMESPACE:
            words += ["--lease-namespace", self.lease_namespace]
        grant, folder = shlex.join([*words, "--server", self.server]), shlex.join(["--state-dir", str(state_dir)])
        if self.by_token:
            return f"{grant}, and on this host, with the printed line as input: {_ON_THE_HOST} {folder}"
        return f"{grant} {folder}"


def token_path(state_dir: Path, record: JoinRecord, authority: bytes) -> Path:
    """Return the path of the token of an identity; another server, authority or host is another identity."""
    parts = (record.server.encode(), authority, record.lease_namespace.encode(), record.host.encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:_DIGEST_CHARS]
    return state_dir / f"host-{digest}{_TOKEN_SUFFIX}"


def token_paths(state_dir: Path) -> frozenset[Path]:
    """Return the paths of the tokens of all identities that have joined."""
    return frozenset(state_dir.glob(f"host-{'?' * _DIGEST_CHARS}{_TOKEN_SUFFIX}"))


def record_path(token: Path) -> Path:
    """Return the path of the record that belongs to a token."""
    return token.with_suffix(".json")


def encode_record(record: JoinRecord) -> str:
    """Return the text of the file."""
    return json.dumps(attrs.asdict(record), indent=1)


def read_record(token: Path) -> JoinRecord | None:
    """Return the record that belongs to a token, or None if it is missing or cannot be read."""
    try:
        return record_of(json.loads(record_path(token).read_text("utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def record_of(data: Any) -> JoinRecord:
    """Parse a record that `attrs.asdict` returned; raise ValueError, TypeError or KeyError for anything else."""
    values = {name: data[name] for name in attrs.fields_dict(JoinRecord)}
    record = JoinRecord(**values | {name: tuple(values[name]) for name in ("networks", "secrets")})
    texts = (record.host, record.server, record.namespace, record.lease_namespace, *record.networks, *record.secrets)
    if not (all(isinstance(each, str) for each in texts) and isinstance(record.by_token, bool)):
        raise TypeError("not a record: expected strings and one boolean")
    return record
