"""Read kubeconfigs and service accounts, in kubectl's order of precedence.

The only module that imports the `kubernetes` package, and only for service accounts. The package's kubeconfig loader is
not used: it runs exec plugins without a deadline, prefers the last current-context where kubectl prefers the first, and
leaves keys behind in temporary files. Its import takes longer than the rest of an agent's start, so commands avoid it.
"""

import base64
import binascii
import contextlib
import json
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from llmkube.k8s.auth.config import (
    Anonymous,
    BasicAuth,
    BearerToken,
    ClusterConfig,
    ConfigError,
    ExecPlugin,
    Identity,
    Pem,
    TlsSettings,
    TokenFile,
    is_token,
)

_EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_CONFIG_EXTENSION = "client.authentication.k8s.io/exec"


def _parse(text: str) -> Any:
    """Parse YAML; ValueError if it is invalid. JSON, which `llmkube up` writes, is read without importing a parser."""
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    import yaml  # noqa: PLC0415 - see above

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def read_service_account(directory: Path, environ: Mapping[str, str]) -> ClusterConfig:
    """Return the configuration of the pod that we run in; ConfigError when its files are missing."""
    # The import takes 0.2 s, only in a pod.
    from kubernetes.client import Configuration  # noqa: PLC0415 (see above)
    from kubernetes.config.config_exception import ConfigException  # noqa: PLC0415 (see above)
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415 (see above)

    token, ca, namespace = directory / "token", directory / "ca.crt", directory / "namespace"
    found = Configuration()
    try:
        loader: Any = InClusterConfigLoader  # untyped
        loader(str(token), str(ca), try_refresh_token=False, environ=environ).load_and_set(found)
        default = namespace.read_text().strip() if namespace.is_file() else "default"
    except (ConfigException, OSError) as error:
        raise ConfigError(f"service account in {directory}: {error}") from error
    return ClusterConfig(
        server=found.host, namespace=default, context="in-cluster", tls=TlsSettings(ca=ca), identity=TokenFile(token)
    )


def read_kubeconfig(paths: str, context: str | None) -> ClusterConfig:
    """Return the configuration of one context.

    Args:
        paths: One file, or several separated by colons as in `KUBECONFIG`: the first file with an entry wins, missing
            files are skipped.
        context: None means the current context.

    Raises:
        ConfigError: As documented for `load_config`.
    """
    names = [os.path.expanduser(name) for name in paths.split(os.pathsep) if name]  # noqa: PTH111 - raises for ~nobody
    files = [KubeconfigFile.read(Path(name)) for name in names if Path(name).exists()]
    if not files:
        raise ConfigError(f"kubeconfig {paths} does not exist")
    current = [file.entries["current-context"] for file in files if file.entries.get("current-context")]
    if context is None and not current:
        raise ConfigError(f"kubeconfig {paths} has no current-context; choose a context by name")
    name = context if context is not None else str(current[0])
    chosen = _find(files, "context", name)
    cluster = _find(files, "cluster", chosen.text("cluster"))
    user = _find(files, "user", chosen.text("user")) if chosen.text("user") else None
    return _cluster_config(name, chosen, cluster, user or Section("no user", {}, cluster.directory))


@attrs.frozen
class KubeconfigFile:
    """One kubeconfig as parsed YAML; its entries are not validated."""

    path: Path
    entries: Mapping[str, Any] = attrs.field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "KubeconfigFile":
        """Read a file.

        Raises:
            ConfigError: The file cannot be read, or is not a YAML mapping.
        """
        try:
            entries = _parse(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"kubeconfig {path} cannot be read: {error}") from error
        if not isinstance(entries, Mapping):
            raise ConfigError(f"kubeconfig {path} cannot be read: it is {'not a mapping' if entries else 'empty'}")
        return cls(path, entries)

    def named(self, section: str) -> Mapping[str, Any]:
        """Return the entries of `clusters`, `contexts` or `users` by name; the first entry of a name wins.

        Raises:
            ConfigError: The section is not a list of entries with names.
        """
        try:
            return {entry["name"]: entry for entry in reversed(self.entries.get(f"{section}s") or [])}
        except (TypeError, KeyError) as error:
            raise ConfigError(f"kubeconfig {self.path} cannot be read: {section}s is not a list of names") from error


@attrs.frozen
class Section:
    """One named entry of a kubeconfig, with the folder that its relative paths are resolved against."""

    label: str
    entries: Mapping[str, Any] = attrs.field(repr=False)
    directory: Path

    def text(self, name: str) -> str:
        """Return a string; "" when absent."""
        value = self.entries.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):  # for example, YAML reads an unquoted token of digits as a number
            raise ConfigError(f"{self.label}: {name} must be a string, not {type(value).__name__}", field=name)
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean; False when absent."""
        value = self.entries.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self.label}: must be true or false, not {value!r}", field=name)
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; empty when absent."""
        values = self.entries.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{self.label}: must be a list of strings", field=name)
        return tuple(values)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a mapping; empty when absent."""
        value = self.entries.get(name) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.label}: must be a mapping", field=name)
        return value

    def path(self, name: str) -> Path | None:
        """Return a path, resolved against the kubeconfig's folder; None when absent."""
        text = self.text(name)
        return self.directory / text if text else None

    def pem(self, name: str) -> Pem | None:
        """Return certificates or a key; inline data takes precedence over a file, as in kubectl."""
        data = self.text(f"{name}-data")
        if data:
            try:
                return base64.b64decode(data, validate=False)
            except binascii.Error as error:
                raise ConfigError(f"{self.label}: not base64: {error}", field=f"{name}-data") from error
        return self.path(name)


def _find(files: Sequence[KubeconfigFile], section: str, name: str) -> Section:
    """Return one entry of `clusters`, `contexts` or `users`; the first file that has it wins."""
    read = ", ".join(str(file.path) for file in files)
    if not name:
        raise ConfigError(f"kubeconfig {read}: the context has no {section}")
    for file in files:
        if (found := file.named(section).get(name)) is None:
            continue
        entries = found.get(section) or {}
        if not isinstance(entries, Mapping):
            raise ConfigError(f"kubeconfig {file.path}: {section} {name!r} is not a mapping")
        return Section(f"{section} {name!r} of kubeconfig {file.path}", entries, file.path.absolute().parent)
    raise ConfigError(f"kubeconfig {read} has no {section} {name!r}")


def _is_http(server: str) -> bool:
    try:
        return urllib.parse.urlsplit(server).scheme in {"http", "https"}
    except ValueError:  # brackets around something other than an IPv6 address
        return False


def _cluster_config(name: str, context: Section, cluster: Section, user: Section) -> ClusterConfig:
    server = cluster.text("server")
    if not _is_http(server):
        raise ConfigError(f"{cluster.label}: must be an http or https URL, not {server!r}", field="server")
    tls = TlsSettings(
        ca=cluster.pem("certificate-authority"),
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        server_name=cluster.text("tls-server-name"),
        insecure=cluster.flag("insecure-skip-tls-verify"),
    )
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigError(f"{user.label}: client-certificate and client-key must be given together")
    if tls.insecure and tls.ca is not None:
        raise ConfigError(f"{cluster.label}: insecure-skip-tls-verify cannot be combined with a certificate-authority")
    return ClusterConfig(
        server=server.rstrip("/"),
        namespace=context.text("namespace") or "default",
        context=name,
        tls=tls,
        identity=_identity(user, cluster),
        headers=_impersonation(user),
        proxy_url=_proxy_url(cluster, tls),
    )


def _identity(user: Section, cluster: Section) -> Identity:
    """Return the identity; among several methods, client-go's order of precedence applies."""
    if "auth-provider" in user.entries:
        raise ConfigError(
            f"{user.label}: auth-provider was removed from Kubernetes; use an exec plugin", field="auth-provider"
        )
    token_file = user.path("tokenFile")
    if token_file:
        return TokenFile(token_file)
    token = user.text("token").strip()
    if token:
        if not is_token(token):
            raise ConfigError(f"{user.label}: has characters that are invalid in a token", field="token")
        return BearerToken(token)
    if user.text("username"):
        return BasicAuth(user.text("username"), user.text("password"))
    if "exec" in user.entries:
        return _exec_plugin(Section(f"{user.label}: exec", user.mapping("exec"), user.directory), cluster)
    return Anonymous()


def _exec_plugin(section: Section, cluster: Section) -> ExecPlugin:
    api_version, command = section.text("apiVersion"), section.text("command")
    if api_version not in _EXEC_API_VERSIONS:
        raise ConfigError(
            f"{section.label}: {api_version!r} is not one of {', '.join(_EXEC_API_VERSIONS)}", field="apiVersion"
        )
    if not command:
        raise ConfigError(f"{section.label}: must name a program", field="command")
    if section.text("interactiveMode") == "Always":
        raise ConfigError(f"{section.label}: Always requires a terminal; a daemon has none", field="interactiveMode")
    if "/" in command:
        command = str(section.directory / command)
    env = section.entries.get("env") or []
    try:
        env = {str(item["name"]): str(item["value"]) for item in env}
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{section.label}: must be a list of names and values", field="env") from error
    return ExecPlugin(
        api_version=api_version,
        argv=(command, *section.texts("args")),
        env=env,
        install_hint=section.text("installHint"),
        cluster=_exec_cluster(cluster) if section.flag("provideClusterInfo") else None,
    )


def _exec_cluster(cluster: Section) -> Mapping[str, Any]:
    """Return the cluster information for a plugin (provideClusterInfo): a client.authentication.k8s.io/v1 Cluster."""
    ca = cluster.pem("certificate-authority")
    try:
        ca_data = ca.read_bytes() if isinstance(ca, Path) else ca or b""
    except OSError as error:
        raise ConfigError(f"{cluster.label}: {error}", field="certificate-authority") from error
    extensions = cluster.entries.get("extensions") or []
    config = [
        e.get("extension") for e in extensions if isinstance(e, Mapping) and e.get("name") == _EXEC_CONFIG_EXTENSION
    ]
    cluster_info = {
        "server": cluster.text("server"),
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(ca_data).decode(),
        "proxy-url": cluster.text("proxy-url"),
        "config": config[0] if config else None,
    }
    return {name: value for name, value in cluster_info.items() if value}


def _impersonation(user: Section) -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", user.text("as")), ("Impersonate-Uid", user.text("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.texts("as-groups")]
    for name, values in user.mapping("as-user-extra").items():
        extra = f"Impersonate-Extra-{urllib.parse.quote(str(name).lower(), safe='')}"
        headers += [(extra, str(value)) for value in values]
    headers = [(name, value) for name, value in headers if value]
    if headers and not user.text("as"):
        raise ConfigError(f"{user.label}: as-uid, as-groups and as-user-extra require as", field="as")
    return tuple(headers)


def _proxy_url(cluster: Section, tls: TlsSettings) -> str:
    url = cluster.text("proxy-url")
    if url and urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"{cluster.label}: only http and https proxies are supported", field="proxy-url")
    if url and tls.server_name:  # httpcore verifies a tunnelled server only against the URL's host
        raise ConfigError(f"{cluster.label}: cannot be combined with proxy-url", field="tls-server-name")
    return url


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_config(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Return the configuration of the selected cluster.

    Args:
        kubeconfig: A file that must exist; None uses the first of `KUBECONFIG` (a list of files, merged as in kubectl),
            `~/.kube/config`, and the service account of the pod that we run in.
        context: A context of the kubeconfig; None means its current one.
        environ: The environment variables.
        service_account: The folder with a pod's token.

    Raises:
        ConfigError: No configuration was found, or it is invalid; the message names the file and the entry.
    """
    home = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    if kubeconfig is not None:
        return read_kubeconfig(str(kubeconfig), context)
    if environ.get("KUBECONFIG"):
        return read_kubeconfig(environ["KUBECONFIG"], context)
    if home.is_file():
        return read_kubeconfig(str(home), context)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return read_service_account(service_account, environ)
    raise ConfigError(f"no cluster: --kubeconfig and KUBECONFIG are not set, {home} does not exist, not in a pod")
