"""`llmkube agent join` on an API server in memory; tests/envtest/test_real_agent.py runs a joined host."""

import base64
import datetime
import json
import stat
import tomllib

import attrs
import pytest
import trio
from click.testing import CliRunner

from cli.commands.programs.join_cluster import ADMIN_TOKEN, JoinCluster, token_of
from llmkube.cli import target_cluster
from llmkube.cli.commands.programs import join as join_module
from llmkube.cli.commands.programs.host_identity import Identity
from llmkube.cli.commands.programs.join import PREFIX, JoinToken, JoinTokenError, decode_join_token, encode_join_token
from llmkube.cli.main import cli
from llmkube.k8s.auth.config import TlsSettings
from llmkube.k8s.builtins import ServiceAccount
from llmkube.programs.state_dir import hold_state_dir
from llmkube.supervisor.values.join_record import JoinRecord, read_record

ADMIN = {
    "clusters": [{"name": "c", "cluster": {"server": "https://inner:6443", "certificate-authority-data": "cGVt"}}],
    "users": [{"name": "u", "user": {"token": ADMIN_TOKEN}}],
    "contexts": [{"name": "admin", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "admin",
}


@pytest.fixture
def cluster(monkeypatch):
    made = JoinCluster()
    monkeypatch.setattr(join_module, "open_client", made.open_client)
    return made


@pytest.fixture
def run(tmp_path, cluster):
    """Run `llmkube agent ARGS` with an administrator's kubeconfig."""
    (tmp_path / "admin").write_text(json.dumps(ADMIN))

    def run(*args, state="state", **kwargs):
        where = ("--state-dir", str(tmp_path / state)) if state else ()
        admin = {"KUBECONFIG": str(tmp_path / "admin"), "HOME": str(tmp_path)}
        return CliRunner(env=admin).invoke(cli, ["agent", *args, *where], **kwargs)

    return run


def granted(cluster, *plurals):
    """Return the namespaces in which the host `box` has these; an empty text is the whole cluster."""

    async def get():
        async with cluster.open_client() as client:
            found = [await client.get_json(f"/apis/rbac.authorization.k8s.io/v1/{plural}") for plural in plurals]
        return [each["metadata"] for one in found for each in one["items"]]

    return {each.get("namespace", "") for each in trio.run(get) if each["name"] == "llmkube-agent-box"}


def listed(cluster, kind, **where):
    """Return the objects of a kind by name."""

    async def get():
        async with cluster.open_client() as client:
            return (await client.list(kind, **where)).items

    return {each.metadata.name: each for each in trio.run(get)}


def kept(folder):
    """Return the host's kubeconfig and token file; check that both are private."""
    document = json.loads((folder / "host.kubeconfig").read_text())
    token = folder / document["users"][0]["user"]["tokenFile"]
    for file in (folder / "host.kubeconfig", token, token.with_suffix(".json")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return document, token


JOIN = ("join", "--name", "box", "--network", "10.0.0.7/32", "-n", "default")


def test_host_gets_its_own_account_and_no_administrator_credentials(run, cluster, tmp_path):
    """Server, authority and namespace are copied; the credential is the account's own."""
    done = run(*JOIN, "--server", "https://outer:6443")
    assert done.exit_code == 0, done.output
    document, token = kept(tmp_path / "state")
    assert document["clusters"][0]["cluster"] == {"server": "https://outer:6443", "certificate-authority-data": "cGVt"}
    assert document["contexts"][0]["context"]["namespace"] == "default"
    assert list(cluster.tokens) == [token.read_text()]
    assert "llmkube-agent-box" in done.output
    for file in (tmp_path / "state").iterdir():
        assert ADMIN_TOKEN not in file.read_text()
    annotations = listed(cluster, ServiceAccount)["llmkube-agent-box"].metadata.annotations
    assert annotations["inference.llmkube.dev/addresses"] == "10.0.0.7/32"


def test_grant_is_recorded_for_the_next_join(run, tmp_path):
    """The recorded command grants the same rights again, including Secrets."""
    done = run(*JOIN, "--network", "fd00::/64", "--secret", "hf", "--secret", "*", "--lease-namespace", "hosts")
    assert done.exit_code == 0, done.output
    _, token = kept(tmp_path / "state")
    command = read_record(token).command(tmp_path / "state")
    assert command.endswith(f"--state-dir {tmp_path / 'state'}")
    for words in ("--network 10.0.0.7/32 --network fd00::/64", "--secret hf --secret '*'", "--lease-namespace hosts"):
        assert words in command
    assert "--namespace default" in command
    assert "--server https://inner:6443" in command


def test_token_is_never_sent_to_another_server(run, tmp_path):
    """Each API server has its own token file: a running agent keeps the one that it started with."""
    assert run(*JOIN).exit_code == 0
    _, first = kept(tmp_path / "state")
    before = first.read_text()
    assert run(*JOIN, "--server", "https://other:6443").exit_code == 0
    _, second = kept(tmp_path / "state")
    assert second != first
    assert first.read_text() == before
    assert run(*JOIN).exit_code == 0
    assert kept(tmp_path / "state")[1] == first
    assert first.read_text() != before


def test_a_missing_namespace_leaves_nothing_behind(run, cluster, tmp_path):
    """The error names it and the command that creates it; no account and no file is left."""
    done = run("join", "--name", "box", "--network", "10.0.0.7/32", "-n", "ml")
    assert done.exit_code == 3
    assert "namespace ml not found, so nothing was changed" in done.output
    assert "kubectl create namespace ml" in done.output
    assert "llmkube-agent-box" not in listed(cluster, ServiceAccount)
    assert list((tmp_path / "state").glob("host*")) == []


NODES = ["10.0.0.1/32", "10.244.0.0/24"]
GRANT = ("--name", "box", "--network", "10.0.0.7/32", "-n", "default", "--secret", "hf")


def test_a_host_joins_with_a_token_of_an_hour(run, cluster, tmp_path):
    """The host requests its own token, keeps what an administrator's join keeps, and nothing of the join token."""
    made = run("join-token", *GRANT, "--server", "https://outer:6443", state="")
    assert made.exit_code == 0, made.output
    (line,) = made.stdout.splitlines()
    ((hour, seconds),) = cluster.tokens.items()
    assert seconds == 3600
    assert "llmkube agent join --token-file -" in made.stderr
    assert not (tmp_path / "state").exists()

    done = run("join", "--token-file", "-", input=line + "\n", env={"KUBECONFIG": "/none"})
    assert done.exit_code == 0, done.output
    document, token = kept(tmp_path / "state")
    assert cluster.tokens[token.read_text()] == 7 * 24 * 3600
    assert document["clusters"][0]["cluster"]["server"] == "https://outer:6443" == cluster.servers[-1]
    assert "--host-name box" in done.output
    for file in (tmp_path / "state").iterdir():
        assert hour not in file.read_text()
    assert hour not in done.output

    assert run("join", *GRANT, "--server", "https://outer:6443", state="other").exit_code == 0
    assert kept(tmp_path / "other")[0] == document
    assert attrs.evolve(read_record(tmp_path / "other" / token.name), by_token=True) == read_record(token)


def test_token_without_a_name_generates_one(run, cluster):
    """Two tokens are for two hosts."""
    for _ in range(2):
        assert run("join-token", "--network", "10.0.0.7/32", state="").exit_code == 0
    names = [name for name in listed(cluster, ServiceAccount) if name.startswith("llmkube-agent-host-")]
    assert len(names) == 2


def test_a_join_token_s_line_comes_from_a_file_and_can_name_another_address(run, cluster, tmp_path):
    """The host may reach the API server at another address than the administrator."""
    (tmp_path / "line").write_text(run("join-token", *GRANT, state="").stdout)
    done = run("join", "--token-file", str(tmp_path / "line"), "--server", "https://10.0.0.1:6443")
    assert done.exit_code == 0, done.output
    assert kept(tmp_path / "state")[0]["clusters"][0]["cluster"]["server"] == "https://10.0.0.1:6443"
    assert cluster.servers[-1] == "https://10.0.0.1:6443"


def test_networks_that_need_no_key_are_added_to_the_host_s_settings(run, cluster, tmp_path):
    """Networks of the join token and of the host's flags are added; other settings are kept."""
    (tmp_path / "state").mkdir(mode=0o700)
    settings = tmp_path / "state" / "config.toml"
    settings.write_text("[agent]\nport = 9091  # mine\n")
    line = run("join-token", *GRANT, "--allow-from", "10.0.0.0/16", state="").stdout
    done = run("join", "--token-file", "-", "--allow-from", "10.1.0.0/16", input=line)
    assert done.exit_code == 0, done.output
    assert tomllib.loads(settings.read_text())["agent"] == {"port": 9091, "allow_from": ["10.1.0.0/16", "10.0.0.0/16"]}
    assert "# mine" in settings.read_text()
    assert "10.1.0.0/16, 10.0.0.0/16 reach its engines without a key" in done.stderr
    assert run(*JOIN, "--allow-from", "fd00::/64").exit_code == 0
    assert tomllib.loads(settings.read_text())["agent"]["allow_from"][2:] == ["fd00::/64"]


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("place", [("-n", "default"), ("-A",)])
def test_a_host_that_may_not_list_nodes_is_given_their_networks(run, cluster, tmp_path, by_token, place):
    """The administrator's join lists them; a host of all namespaces watches the Nodes itself."""
    spec, status = {"podCIDRs": ["10.244.0.0/24"]}, {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}
    cluster.nodes = [{"metadata": {"name": "n", "resourceVersion": "1"}, "spec": spec, "status": status}]
    grant = ("--name", "box", "--network", "10.0.0.7/32", *place)
    if by_token:
        done = run("join", "--token-file", "-", input=run("join-token", *grant, state="").stdout)
    else:
        done = run("join", *grant)
    assert done.exit_code == 0, done.output
    settings = tmp_path / "state" / "config.toml"
    found = tomllib.loads(settings.read_text())["agent"]["allow_from"] if settings.exists() else []
    assert found == (NODES if "-n" in place else [])
    assert ("requests from 10.0.0.1/32, 10.244.0.0/24 reach" in done.stderr) == bool(found)


@pytest.mark.parametrize("command", ["join", "join-token"])
def test_invalid_network_is_refused(run, cluster, command):
    """The error names the flag, before any request."""
    done = run(command, *GRANT, "--allow-from", "everyone", state="state" if command == "join" else "")
    assert done.exit_code != 0
    assert "--allow-from" in done.output
    assert cluster.servers == []


def test_settings_that_cannot_be_edited_stop_a_join_before_it_asks(run, cluster, tmp_path):
    """No account is created for a host with an invalid config.toml."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "config.toml").write_text("[agent")
    done = run(*JOIN, "--allow-from", "10.1.0.0/16")
    assert done.exit_code == 2
    assert "is not TOML" in done.output
    assert cluster.servers == []


def test_the_api_server_s_answer_to_a_join_token_is_reported(run, cluster, tmp_path):
    """An unreachable server is reported with the fix, an invalid token with the command for a new one."""
    line = run("join-token", *GRANT, state="").stdout
    cluster.away = True
    done = run("join", "--token-file", "-", input=line)
    assert done.exit_code != 0
    assert "https://inner:6443 of the join token cannot be reached from here" in done.output
    assert "--server URL" in done.output
    cluster.away = False
    cluster.refused.update(cluster.tokens)
    done = run("join", "--token-file", "-", input=line)
    assert done.exit_code != 0
    assert "llmkube agent join-token --name box" in done.output
    assert not list((tmp_path / "state").glob("host*"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--name", "box", "-n", "ml"), "--token-file excludes -n, --name:"),
        (("--network", "10.0.0.0/8"), "--token-file excludes --network:"),
        ((), "the file has no join token"),
    ],
)
def test_flags_that_contradict_a_join_token_are_refused(run, cluster, args, message):
    """They and an invalid token are refused before any request."""
    done = run("join", "--token-file", "-", *args, input="hello")
    assert done.exit_code != 0
    assert message in done.output
    assert "hello" not in done.output
    assert cluster.servers == []


def test_a_token_file_that_is_not_there_is_named(run, tmp_path):
    done = run("join", "--token-file", str(tmp_path / "none"))
    assert done.exit_code != 0
    assert f"--token-file {tmp_path / 'none'}: cannot be read" in done.output


def test_new_join_revokes_the_previous_grant(run, cluster):
    """The host has roles only where it serves now; hosts of another lease namespace keep theirs."""
    box = ("join", "--name", "box", "--network", "10.0.0.7/32")

    async def make_namespace():
        async with cluster.open_client() as client:
            await client.request_json("POST", "/api/v1/namespaces", body={"metadata": {"name": "ml"}})

    trio.run(make_namespace)
    for where, expected in ((("-n", "default"), {"default"}), (("-A",), {""}), (("-n", "ml"), {"ml"})):
        done = run(*box, *where)
        assert done.exit_code == 0, done.output
        assert granted(cluster, "rolebindings", "clusterrolebindings") == expected
        assert granted(cluster, "roles", "clusterroles") == expected
    assert run(*box, "-n", "default", "--lease-namespace", "hosts").exit_code == 0
    assert granted(cluster, "rolebindings", "clusterrolebindings") == {"ml", "default"}


def test_another_name_is_another_identity(run, cluster, tmp_path):
    """An agent that runs under the first name never uses the token of the second."""
    assert run(*JOIN).exit_code == 0
    _, first = kept(tmp_path / "state")
    before = first.read_text()
    with hold_state_dir(tmp_path / "state"):
        done = run("join", "--name", "mini", *JOIN[3:])
    assert done.exit_code == 0, done.output
    assert "keeps its previous identity" in done.stderr
    assert kept(tmp_path / "state")[1] != first
    assert first.read_text() == before


def test_unusable_state_directory_is_reported(run, cluster, tmp_path):
    (tmp_path / "state").write_text("a file in the way")
    done = run(*JOIN)
    assert done.exit_code == 1
    assert f"state directory {tmp_path / 'state'} cannot be used" in done.output
    assert cluster.servers == []


def test_a_silent_api_server_is_reported(run, cluster, monkeypatch):
    cluster.silent = True
    monkeypatch.setattr(target_cluster, "ANSWER_SECONDS", 0.1)
    done = run(*JOIN)
    assert done.exit_code == 4
    assert "did not answer within" in done.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--network"),
        (("--network", "10.0.0.0/8", "-A", "-n", "ml"), "exclude each other"),
        (("--network", "10.0.0.1/8", "--name", "box"), "--network 10.0.0.1/8"),
        (("--network", "10.0.0.0/8", "--name", "Ann's Mac"), "is not a DNS name"),
        (("--network", "10.0.0.0/8", "--name", "box", "-A", "--secret", "*"), "every Secret of the cluster"),
    ],
)
def test_invalid_flags_are_refused(run, cluster, args, message):
    """No request is sent."""
    done = run("join", *args)
    assert done.exit_code != 0
    assert message in done.output
    assert cluster.servers == []


NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RECORD = JoinRecord(host="box", server="https://api:6443", networks=("10.0.0.0/8",), secrets=("hf",))
HOUR = token_of("llmkube-system", "llmkube-agent-box", issued=NOW.timestamp(), life=3600)
WHOLE = JoinToken(
    identity=Identity(record=RECORD, tls=TlsSettings(ca=b"pem", server_name="api"), token=HOUR),
    allow_from=("10.1.0.0/16",),
)


def line_of(**changed):
    """Return a join token with these fields changed."""
    document = json.loads(base64.urlsafe_b64decode(encode_join_token(WHOLE).removeprefix(PREFIX) + "=="))
    for name, value in changed.items():
        if name in document["record"]:
            document["record"][name] = value
        else:
            document[name] = value
    return PREFIX + base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


@pytest.mark.parametrize(
    "tls", [TlsSettings(), TlsSettings(ca=b"\xff"), TlsSettings(insecure=True), WHOLE.identity.tls]
)
def test_a_token_is_read_back(tls):
    """It is one line, and survives whitespace that a terminal adds."""
    made = attrs.evolve(WHOLE, identity=attrs.evolve(WHOLE.identity, tls=tls))
    line = encode_join_token(made)
    assert line.split() == [line]
    assert decode_join_token(f"\n {line}\r\n", NOW) == made
    assert HOUR not in repr(made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no join token"),
        ("eyJhbGciOi", "has no join token"),
        ("llmkube-join-v2.e30", "unsupported join token version llmkube-join-v2; this llmkube reads llmkube-join-v1"),
        (PREFIX, "damaged or incomplete"),
        (PREFIX + "e30", "damaged or incomplete"),
        (PREFIX + "***", "damaged or incomplete"),
        (encode_join_token(WHOLE)[:-40], "damaged or incomplete"),
        (encode_join_token(WHOLE)[:60] + " " + encode_join_token(WHOLE)[60:], "damaged or incomplete"),
        (line_of(host="Ann's Mac"), "damaged or incomplete"),
        (line_of(host="mini"), "damaged or incomplete"),
        (line_of(server="file:///x"), "damaged or incomplete"),
        (line_of(lease_namespace="../x"), "damaged or incomplete"),
        # its values are printed in a command that users paste into a shell
        (line_of(namespace="x; touch pwned"), "damaged or incomplete"),
        (line_of(networks=["$(touch pwned)"]), "damaged or incomplete"),
        (line_of(secrets=["`touch pwned`"]), "damaged or incomplete"),
        (line_of(server="https://api\x1b]0;title\x07"), "damaged or incomplete"),
        (line_of(serverName="api\r\n"), "damaged or incomplete"),
        (line_of(token=token_of("llmkube-system", "llmkube-agent-box", life=float("inf"))), "damaged or incomplete"),
        (line_of(token=token_of("llmkube-system", "llmkube-agent-box", life=1e300)), "damaged or incomplete"),
        (line_of(token="a b"), "damaged or incomplete"),
        (line_of(allowFrom=[1]), "damaged or incomplete"),
        (line_of(allowFrom=["everyone"]), "damaged or incomplete"),
        (line_of(insecure="no"), "damaged or incomplete"),
        (line_of(ca="*"), "damaged or incomplete"),
    ],
)
def test_invalid_join_token_is_refused(text, message):
    """The error names the problem, and repeats nothing of the token."""
    with pytest.raises(JoinTokenError, match=message) as caught:
        decode_join_token(text, NOW)
    assert caught.value.__cause__ is None
    assert len(text) <= len(PREFIX) + 3 or text[len(PREFIX) :][:20] not in str(caught.value)


def test_expired_join_token_is_reported():
    """It expires by this machine's clock; the error has the command for a new one."""
    with pytest.raises(JoinTokenError, match=r"expired at 2026-01-01 01:00 UTC.*llmkube agent join-token --name box"):
        decode_join_token(encode_join_token(WHOLE), NOW + datetime.timedelta(hours=1))
