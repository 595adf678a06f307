"""Where the cluster is and who we are, read from real files."""

import base64

import pytest
import yaml

from llmkube.k8s.auth.config import Anonymous, BasicAuth, BearerToken, ConfigError, ExecPlugin, TlsSettings, TokenFile
from llmkube.k8s.auth.kubeconfig import load_config

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "get-token", "interactiveMode": "Never"}


def kubeconfig(path, *, cluster=None, user=None, context=None, name="dev", **top):
    """Write a kubeconfig with one of each."""
    entry = {"cluster": name, "user": name, **(context or {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": name, "cluster": {"server": "https://api:6443", **(cluster or {})}}],
                "users": [{"name": name, "user": user or {}}],
                "contexts": [{"name": name, "context": entry}],
                **top,
            }
        )
    )
    return path


def b64(text):
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("user", "identity"),
    [
        ({}, Anonymous()),
        ({"token": "t0p"}, BearerToken("t0p")),
        ({"token": "t0p\n"}, BearerToken("t0p")),  # a block scalar
        ({"username": "u", "password": "p"}, BasicAuth("u", "p")),
        ({"token": "t0p", "username": "u", "password": "p"}, BearerToken("t0p")),
        ({"token": "t0p", "exec": EXEC}, BearerToken("t0p")),
        ({"exec": EXEC}, ExecPlugin(api_version=EXEC["apiVersion"], argv=("get-token",))),
        (
            {"exec": {**EXEC, "args": ["-x"], "env": [{"name": "A", "value": "1"}], "installHint": "brew install it"}},
            ExecPlugin(
                api_version=EXEC["apiVersion"], argv=("get-token", "-x"), env={"A": "1"}, install_hint="brew install it"
            ),
        ),
    ],
)
def test_a_user_has_one_identity(tmp_path, user, identity):
    """Each way to authenticate is read, and where several are given client-go's order decides."""
    assert load_config(kubeconfig(tmp_path / "config", user=user)).identity == identity


@pytest.mark.parametrize(
    ("cluster", "user", "tls"),
    [
        ({}, {}, TlsSettings()),
        ({"certificate-authority-data": b64("CA")}, {}, TlsSettings(ca=b"CA")),
        ({"insecure-skip-tls-verify": True}, {}, TlsSettings(insecure=True)),
        ({"tls-server-name": "kubernetes"}, {}, TlsSettings(server_name="kubernetes")),
        (
            {},
            {"client-certificate-data": b64("C"), "client-key-data": b64("K")},
            TlsSettings(certificate=b"C", key=b"K"),
        ),
        (
            {},
            {"client-certificate-data": b64("C"), "client-certificate": "ignored.crt", "client-key-data": b64("K")},
            TlsSettings(certificate=b"C", key=b"K"),
        ),
    ],
)
def test_tls_settings_are_read(tmp_path, cluster, user, tls):
    """Authorities, certificates, server name and the insecure flag arrive; inline data wins over a file."""
    assert load_config(kubeconfig(tmp_path / "config", cluster=cluster, user=user)).tls == tls


def test_relative_paths_start_at_the_kubeconfig(tmp_path):
    """Paths of certificates, token files and plugins are relative to the file that names them, not to the cwd."""
    home = tmp_path / "elsewhere"
    cluster = {"certificate-authority": "pki/ca.crt"}
    user = {"client-certificate": "me.crt", "client-key": "/etc/me.key", "tokenFile": "token"}
    config = load_config(kubeconfig(home / "config", cluster=cluster, user=user))
    assert config.tls.ca == home / "pki/ca.crt"
    assert config.tls.certificate == home / "me.crt"
    assert str(config.tls.key) == "/etc/me.key"
    assert config.identity == TokenFile(home / "token")
    for command, argv0 in (("./bin/plugin", str(home / "bin/plugin")), ("plugin", "plugin")):
        plugin = load_config(kubeconfig(home / "config", user={"exec": {**EXEC, "command": command}})).identity
        assert plugin.argv == (argv0,)


def test_server_context_and_namespace(tmp_path):
    """The context says which cluster, user and namespace; without a namespace it is `default`."""
    path = kubeconfig(tmp_path / "config", cluster={"server": "https://api/k8s/"}, context={"namespace": "team"})
    config = load_config(path)
    assert (config.server, config.namespace, config.context) == ("https://api/k8s", "team", "dev")
    assert load_config(kubeconfig(path)).namespace == "default"


def test_impersonation_becomes_headers(tmp_path):
    """Every `as` field of a user becomes its header, groups and extra values one by one."""
    user = {"token": "t", "as": "bob", "as-uid": "7", "as-groups": ["g1", "g2"], "as-user-extra": {"Scope/s": ["x"]}}
    assert load_config(kubeconfig(tmp_path / "config", user=user)).headers == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "g1"),
        ("Impersonate-Group", "g2"),
        ("Impersonate-Extra-scope%2Fs", "x"),
    )


def test_a_plugin_receives_the_cluster_on_request(tmp_path):
    """ProvideClusterInfo hands the plugin the server, the authority's data and its own extension."""
    (tmp_path / "ca.crt").write_text("CA")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"certificate-authority": "ca.crt", "extensions": [extension]}
    user = {"exec": {**EXEC, "provideClusterInfo": True}}
    plugin = load_config(kubeconfig(tmp_path / "config", cluster=cluster, user=user)).identity
    assert plugin.cluster == {
        "server": "https://api:6443",
        "certificate-authority-data": b64("CA"),
        "config": {"audience": "x"},
    }


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"user": {"auth-provider": {"name": "gcp"}}}, "exec plugin"),
        ({"user": {"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}}, "v1alpha1"),
        ({"user": {"exec": {**EXEC, "command": ""}}}, "command"),
        ({"user": {"exec": {**EXEC, "interactiveMode": "Always"}}}, "terminal"),
        ({"user": {"exec": {**EXEC, "env": ["A=1"]}}}, "env"),
        ({"user": {"exec": "get-token"}}, "exec"),
        ({"user": {"token": 12345}}, "token must be a string"),
        ({"user": {"token": "a\nb"}}, "invalid in a token"),
        ({"user": {"client-certificate-data": b64("C")}}, "must be given together"),
        ({"user": {"client-certificate-data": "%%%a", "client-key-data": b64("K")}}, "base64"),
        ({"user": {"as-groups": ["g"]}}, "require as"),
        ({"cluster": {"server": ""}}, "server"),
        ({"cluster": {"server": "api:6443"}}, "http or https"),
        ({"cluster": {"server": "https://[fd00::5:6443"}}, "http or https"),
        ({"cluster": {"insecure-skip-tls-verify": "yes"}}, "true or false"),
        ({"cluster": {"insecure-skip-tls-verify": True, "certificate-authority-data": b64("C")}}, "cannot be combined"),
        ({"cluster": {"proxy-url": "socks5://p"}}, "proxies"),
        ({"cluster": {"proxy-url": "http://p", "tls-server-name": "k"}}, "proxy-url"),
        ({"context": {"cluster": "prod"}}, "cluster 'prod'"),
        ({"context": {"user": "root"}}, "user 'root'"),
        ({"context": {"cluster": None}}, "the context has no cluster"),
        ({"contexts": None}, "context 'dev'"),
        ({"contexts": "none"}, "cannot be read|context 'dev'"),
        ({"current-context": None}, "current-context"),
        ({"current-context": "prod"}, "context 'prod'"),
        ({"clusters": [{"name": "dev"}]}, "server"),
        ({"clusters": [{"name": "dev", "cluster": [1]}]}, "not a mapping"),
        ({"users": [{"user": {}}]}, "cannot be read|user 'dev'"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, parts, words):
    """Each mistake in a kubeconfig is a ConfigError that names the entry and the file."""
    path = kubeconfig(tmp_path / "config", **parts)
    with pytest.raises(ConfigError, match=words) as failed:
        load_config(path)
    assert str(path) in str(failed.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "just words", "a: [", "\x00", "clusters: 7"])
def test_a_file_that_is_no_kubeconfig_is_a_config_error(tmp_path, text):
    """Whatever a file holds instead of a kubeconfig, the error names the file."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        load_config(path)


def test_a_proxy_of_the_kubeconfig_is_kept_secret(tmp_path):
    """The proxy is read, and its password is not shown."""
    config = load_config(kubeconfig(tmp_path / "config", cluster={"proxy-url": "http://u:hunter2@proxy:3128"}))
    assert config.proxy_url == "http://u:hunter2@proxy:3128"
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    "user",
    [
        {"token": "hunter2"},
        {"username": "u", "password": "hunter2"},
        {"client-certificate-data": b64("hunter2"), "client-key-data": b64("hunter2")},
        {"exec": {**EXEC, "args": ["hunter2"], "env": [{"name": "A", "value": "hunter2"}]}},
    ],
)
def test_no_secret_shows_in_a_repr(tmp_path, user):
    """Tokens, passwords, keys and the arguments of plugins are not in the configuration's repr."""
    shown = repr(load_config(kubeconfig(tmp_path / "config", user=user)))
    assert "hunter2" not in shown
    assert b64("hunter2") not in shown


def test_kubeconfigs_are_merged_as_kubectl_does(tmp_path):
    """Of several files in KUBECONFIG the first to name something wins, and missing ones are passed over."""
    one = kubeconfig(tmp_path / "one", name="dev", user={"token": "first"})
    two = kubeconfig(tmp_path / "two", name="prod", cluster={"server": "https://prod"})
    three = kubeconfig(tmp_path / "three", name="dev", user={"token": "second"})
    environ = {"KUBECONFIG": f"{tmp_path / 'missing'}:{one}:{two}:{three}"}
    config = load_config(environ=environ)
    assert (config.context, config.identity) == ("dev", BearerToken("first"))
    assert load_config(context="prod", environ=environ).server == "https://prod"


def service_account(folder):
    folder.mkdir()
    for name, text in (("token", "tok"), ("ca.crt", "CA"), ("namespace", "team\n")):
        (folder / name).write_text(text)
    return folder


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_the_search_follows_kubectl(tmp_path):
    """An explicit file comes before KUBECONFIG, that before the home folder, that before the service account."""
    account = service_account(tmp_path / "sa")
    explicit = kubeconfig(tmp_path / "explicit", name="explicit")
    environ = {**POD, "KUBECONFIG": str(kubeconfig(tmp_path / "env", name="env")), "HOME": str(tmp_path / "home")}
    kubeconfig(tmp_path / "home/.kube/config", name="home")
    assert load_config(explicit, environ=environ, service_account=account).context == "explicit"
    assert load_config(environ=environ, service_account=account).context == "env"
    del environ["KUBECONFIG"]
    assert load_config(environ=environ, service_account=account).context == "home"
    environ["HOME"] = str(tmp_path / "nobody")
    assert load_config(environ=environ, service_account=account).context == "in-cluster"
    with pytest.raises(ConfigError, match=r"no cluster.*nobody"):
        load_config(environ={"HOME": environ["HOME"]})
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "missing", environ=environ)


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_finds_itself(tmp_path, host, server):
    """In a pod the server, the authority, the token file and the namespace come from the service account."""
    account = service_account(tmp_path / "sa")
    environ = {**POD, "KUBERNETES_SERVICE_HOST": host, "HOME": str(tmp_path)}
    config = load_config(environ=environ, service_account=account)
    assert (config.server, config.namespace) == (server, "team")
    assert config.tls == TlsSettings(ca=account / "ca.crt")
    assert config.identity == TokenFile(account / "token")


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_its_files_is_an_error(tmp_path, missing):
    """A service account that is not mounted is a ConfigError that names the folder."""
    account = service_account(tmp_path / "sa")
    (account / missing).unlink()
    with pytest.raises(ConfigError, match=str(account)):
        load_config(environ={**POD, "HOME": str(tmp_path)}, service_account=account)
