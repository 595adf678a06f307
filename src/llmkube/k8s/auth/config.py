"""A cluster and our identity in it, as a value; no secret shows in any repr."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from llmkube.base.errors import UserError


class ConfigError(UserError):
    """A kubeconfig, or something that it points to, cannot be used as it is."""


def is_token(text: Any) -> bool:
    """Say whether something can stand in a header as a bearer token; what cannot would be quoted in an error."""
    return isinstance(text, str) and text != "" and text.isascii() and text.isprintable() and " " not in text


Pem = bytes | Path
"""A certificate or key: as it stands in the configuration, or in a file, which may be replaced while we run."""


@attrs.frozen
class ClientCertificate:
    """Our side of mutual TLS."""

    certificate: bytes = attrs.field(repr=False)
    key: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class TlsSettings:
    """How the server proves itself to us, and we to it.

    Attributes:
        ca: Whom to trust; None means the system's authorities.
        certificate: Our own certificate (and its chain), or None.
        key: Its private key.
        server_name: The name to expect in the server's certificate instead of the URL's host, or empty.
        insecure: Believe any server.
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
    """A token that stands in the kubeconfig."""

    token: str = attrs.field(repr=False)


@attrs.frozen
class TokenFile:
    """A token that another program keeps fresh in a file, as the kubelet does for service accounts."""

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
        api_version: The version of the protocol that the kubeconfig asks for.
        argv: The program and its arguments; a relative program with a slash is relative to the kubeconfig.
        env: Added to our own environment.
        install_hint: What to tell the user when the program is missing.
        cluster: What the program gets about the cluster, or None when it did not ask.
        deadline_seconds: How long it may take.
    """

    api_version: str
    argv: tuple[str, ...] = attrs.field(repr=False)  # some people pass secrets as arguments
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
    """Everything that is needed to talk to one cluster.

    Attributes:
        server: The base URL; may have a path.
        namespace: The default namespace of the context.
        context: The kubeconfig's context, or "in-cluster".
        tls: How both sides prove themselves.
        identity: Who we are.
        headers: Impersonation headers.
        proxy_url: The http or https proxy that the kubeconfig names, or empty; may contain a password.
    """

    server: str
    namespace: str = "default"
    context: str = ""
    tls: TlsSettings = TlsSettings()
    identity: Identity = Anonymous()
    headers: tuple[tuple[str, str], ...] = ()
    proxy_url: str = attrs.field(default="", repr=False)
