"""Credentials are renewed before they end, once for all, and a failing plugin is not the end of the world."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio

from llmkube.k8s.auth.config import Anonymous, BasicAuth, BearerToken, ExecPlugin, TokenFile
from llmkube.k8s.auth.credentials import make_credentials, parse_exec_credential, run_plugin
from llmkube.k8s.errors import CredentialsError

V1 = "client.authentication.k8s.io/v1"
START = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define(eq=False)
class WallClock:
    now: datetime = START

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += timedelta(seconds=seconds)


PLUGIN = """\
#!{python}
import json, os, pathlib, sys
runs = pathlib.Path({runs!r})
runs.write_text(runs.read_text() + "x")
count = len(runs.read_text())
{body}
"""

PRINT_TOKEN = """
json.dump({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
           "status": {"token": f"token-{count}", "expirationTimestamp": "2026-01-01T01:00:00Z"}}, sys.stdout)
"""


@pytest.fixture
def make_plugin(tmp_path):
    """Write a real program; `runs()` tells how often it ran."""

    def make(body=PRINT_TOKEN, **options):
        runs, path = tmp_path / "runs", tmp_path / "plugin"
        runs.write_text("")
        path.write_text(PLUGIN.format(python=sys.executable, runs=str(runs), body=body))
        path.chmod(0o700)
        return ExecPlugin(api_version=V1, argv=(str(path), *options.pop("args", ())), **options), lambda: len(
            runs.read_text()
        )

    return make


@pytest.mark.parametrize(
    ("identity", "authorization"),
    [(Anonymous(), ""), (BearerToken("t"), "Bearer t"), (BasicAuth("u", "pä:"), "Basic dTpww6Q6")],
)
async def test_fixed_identities_have_one_header(identity, authorization):
    """A fixed identity always sends the same header, and has no other after a 401."""
    credentials = make_credentials(identity, WallClock())
    credential = await credentials.current()
    assert credential.authorization == authorization
    assert await credentials.renew(credential) == credential


async def test_a_token_file_is_read_again_when_it_changes(tmp_path):
    """A new token in the file is used for the next request, also when it was moved into place."""
    path = tmp_path / "token"
    path.write_text("one\n")
    credentials = make_credentials(TokenFile(path), WallClock())
    assert (await credentials.current()).authorization == "Bearer one"
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(path)
    assert (await credentials.current()).authorization == "Bearer two"


@pytest.mark.parametrize(
    "vandalise", [lambda p: p.unlink(), lambda p: p.write_text(""), lambda p: p.write_bytes(b"\xff\xfe\xfd")]
)
async def test_a_token_file_that_vanishes_leaves_the_last_token(tmp_path, vandalise):
    """In the middle of a rotation the last good token serves on."""
    path = tmp_path / "token"
    path.write_text("one")
    credentials = make_credentials(TokenFile(path), WallClock())
    before = await credentials.current()
    vandalise(path)
    assert await credentials.current() == before
    assert await credentials.renew(before) == before


async def test_after_a_401_the_token_file_is_read_in_any_case(tmp_path):
    """A token that changed without its file's stamp is found by renew."""
    path = tmp_path / "token"
    path.write_text("one")
    credentials = make_credentials(TokenFile(path), WallClock())
    refused = await credentials.current()
    stamp = path.stat()
    path.write_text("two")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert await credentials.current() == refused
    assert (await credentials.renew(refused)).authorization == "Bearer two"


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_a_token_file_without_a_token_is_an_error(tmp_path, content):
    """A missing or empty token file is a CredentialsError that names the file."""
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError, match=str(path)):
        await make_credentials(TokenFile(path), WallClock()).current()


async def test_a_plugin_runs_once_for_all_who_wait(make_plugin):
    """Ten requests at the same moment run the plugin once, and later ones not at all while its token is young."""
    plugin, runs = make_plugin()
    credentials = make_credentials(plugin, WallClock())
    seen = []

    async def ask():
        seen.append((await credentials.current()).authorization)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert seen == ["Bearer token-1"] * 10
    assert runs() == 1


async def test_a_plugin_runs_again_before_its_token_ends(make_plugin):
    """After four fifths of an hour's life the token is renewed, not before."""
    plugin, runs = make_plugin()
    clock = WallClock()
    credentials = make_credentials(plugin, clock)
    await credentials.current()
    clock.advance(0.79 * 3600)
    assert (await credentials.current()).authorization == "Bearer token-1"
    clock.advance(0.02 * 3600)
    assert (await credentials.current()).authorization == "Bearer token-2"
    assert runs() == 2


async def test_a_401_runs_the_plugin_once_for_all_who_were_refused(make_plugin):
    """Of several requests that were refused with one token the first runs the plugin, the others use its result."""
    plugin, runs = make_plugin()
    credentials = make_credentials(plugin, WallClock())
    refused = await credentials.current()
    assert (await credentials.renew(refused)).authorization == "Bearer token-2"
    assert (await credentials.renew(refused)).authorization == "Bearer token-2"
    assert runs() == 2


FAIL_AFTER_FIRST = PRINT_TOKEN + "if count > 1: sys.exit('the identity provider is away')\n"


async def test_a_failed_renewal_matters_only_when_the_token_has_ended(make_plugin):
    """While the old token lives it is used, and the plugin is retried every ten seconds; its end is an error."""
    plugin, runs = make_plugin(FAIL_AFTER_FIRST)
    clock = WallClock()
    credentials = make_credentials(plugin, clock)
    await credentials.current()
    clock.advance(0.9 * 3600)
    for _ in range(5):
        assert (await credentials.current()).authorization == "Bearer token-1"
    assert runs() == 2
    clock.advance(10)
    await credentials.current()
    assert runs() == 3
    clock.advance(3600)
    with pytest.raises(CredentialsError, match="identity provider is away"):
        await credentials.current()


async def test_a_plugin_receives_its_environment_and_the_cluster(make_plugin, monkeypatch):
    """The environment is ours with the plugin's additions, and the cluster says that there is no terminal."""
    monkeypatch.setenv("FROM_US", "1")
    body = "print(json.dumps([sys.argv[1:], dict(os.environ), sys.stdin.read()]))"
    plugin, _ = make_plugin(body, args=("a", "b"), env={"ADDED": "2"}, cluster={"server": "https://api"})
    args, env, stdin = json.loads(await run_plugin(plugin))
    assert (args, env["FROM_US"], env["ADDED"], stdin) == (["a", "b"], "1", "2", "")
    assert json.loads(env["KUBERNETES_EXEC_INFO"]) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://api"}},
    }


async def test_a_plugin_that_hangs_is_killed(make_plugin):
    """A plugin that waits for ever is an error at its deadline, and its process is gone."""
    body = "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); import time; time.sleep(600)"
    plugin, _ = make_plugin(body, deadline_seconds=1.0)
    pid_file = trio.Path(plugin.argv[0]).parent / "pid"
    with pytest.raises(CredentialsError, match="longer than 1 s"):
        await run_plugin(attrs.evolve(plugin, argv=(*plugin.argv, str(pid_file))))
    with pytest.raises(ProcessLookupError):
        os.kill(int(await pid_file.read_text()), 0)


async def test_a_missing_plugin_comes_with_its_hint():
    """A program that is not there is named, with what the kubeconfig says about installing it."""
    plugin = ExecPlugin(api_version=V1, argv=("llmkube-no-such-plugin",), install_hint="brew install it")
    with pytest.raises(CredentialsError, match=r"llmkube-no-such-plugin cannot be run.*brew install it"):
        await run_plugin(plugin)


async def test_a_failing_plugin_is_quoted_and_its_arguments_are_not(make_plugin):
    """The exit code and the end of stderr are in the error; arguments, which may be secrets, are not."""
    plugin, _ = make_plugin("sys.exit('x' * 10_000 + ' please log in')", args=("hunter2",))
    with pytest.raises(CredentialsError, match=r"exited with 1: x+ please log in") as caught:
        await run_plugin(plugin)
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def printed(status, **more):
    return json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": status, **more}).encode()


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"hunter2",
        b"\xff",
        b"[]",
        b'"hunter2"',
        printed(None),
        printed("hunter2"),
        printed({}),
        printed({"token": ""}),
        printed({"token": "hunter2"}, kind="Token"),
        printed({"token": "hunter2"}, apiVersion="client.authentication.k8s.io/v1beta1"),
        printed({"token": "hunter2", "expirationTimestamp": "tomorrow"}),
        printed({"token": "hunter2", "expirationTimestamp": 7}),
        printed({"clientCertificateData": "hunter2"}),
        printed({"token": 7}),
        printed({"token": "hunter2\nX-Injected: 1"}),
    ],
)
def test_garbage_is_refused_and_not_repeated(output):
    """Output that is no ExecCredential is an error that does not quote the output, not even in its cause."""
    with pytest.raises(CredentialsError) as caught:
        parse_exec_credential(ExecPlugin(api_version=V1, argv=("plugin",)), output)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_certificate_is_a_credential():
    """A plugin may issue a certificate and key instead of a token, or with one; neither shows in a repr."""
    status = {
        "clientCertificateData": "CERT",
        "clientKeyData": "hunter2",
        "expirationTimestamp": "2026-01-01T01:00:00Z",
    }
    issued = parse_exec_credential(ExecPlugin(api_version=V1, argv=("plugin",)), printed(status))
    assert issued.credential.authorization == ""
    assert issued.credential.certificate.key == b"hunter2"
    assert issued.expires_at == START + timedelta(hours=1)
    assert "hunter2" not in repr(issued)
