"""The configuration of one cluster: server, TLS and identity, as a value; no secret appears in any repr."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from llmkube.base.errors import UserError


class ConfigError(UserError):
    """A kubeconfig, or a file that it refers to, cannot be used."""


def is_token(text: Any) -> bool:
    """Return whether a value is valid as a bearer token in a header; an error would quote an invalid one."""
    return isinstance(text, str) and text != "" and text.isascii() and text.isprintable() and " " not in text


Pem = bytes | Path
"""A certificate or key: inline, or in a file, which may be replaced while we run."""


@attrs.frozen
class ClientCertificate:
    """The client certificate and key for mutual TLS."""

    certificate: bytes = attrs.field(repr=False)
    key: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class TlsSettings:
    """The TLS settings for both sides of a connection.

    Attributes:
        ca: Trusted authorities; None means the system's.
        certificate: Our own certificate (and its chain), or None.
        key: Its private key.
        server_name: The name to expect in the server's certificate instead of the URL's host, or empty.
        insecure: Do not verify the server's certificate.
    """

    ca: Pem | None = attrs.field(default=None, repr=False)
    certificate: Pem | None = attrs.field(default=None, repr=False)
    key: Pem | None = attrs.field(default=None, repr=False)
    server_name: str = ""
    insecure: bool = False


@attrs.frozen
class Anonymous:
    """No credentials beyond a client certificate, if there is one."""


@attrs.frozen
class BearerToken:
    """A token that is inline in the kubeconfig."""

    token: str = attrs.field(repr=False)


@attrs.frozen
class TokenFile:
    """A token in a file that another program updates, as the kubelet does for service accounts."""

    path: Path


@attrs.frozen
class BasicAuth:
    """A user name and a password."""

    username: str
    password: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class ExecPlugin:
    """A program that prints a token or a certificate (client.authentication.k8s.io).

    Attributes:
        api_version: The version of the protocol, from the kubeconfig.
        argv: The program and its arguments; a relative program with a slash is relative to the kubeconfig.
        env: Added to our own environment.
        install_hint: The hint for the user when the program is missing.
        cluster: The cluster information for the program (provideClusterInfo), or None.
        deadline_seconds: The time after which the program is killed.
    """

    api_version: str
    argv: tuple[str, ...] = attrs.field(repr=False)  # may contain secrets
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    deadline_seconds: float = 30.0

    @property
    def program(self) -> str:
        """The program, for messages."""
        return self.argv[0]


Identity = Anonymous | BearerToken | TokenFile | BasicAuth | ExecPlugin


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """The configuration of one cluster.

    Attributes:
        server: The base URL; may have a path.
        namespace: The default namespace of the context.
        context: The kubeconfig's context, or "in-cluster".
        tls: The TLS settings for both sides.
        identity: The credentials, or their source.
        headers: Impersonation headers.
        proxy_url: The http or https proxy from the kubeconfig, or empty; may contain a password.
    """

    server: str
    namespace: str = "default"
    context: str = ""
    tls: TlsSettings = TlsSettings()
    identity: Identity = Anonymous()
    headers: tuple[tuple[str, str], ...] = ()
    proxy_url: str = attrs.field(default="", repr=False)
