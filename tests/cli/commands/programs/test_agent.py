"""`llmkube agent` and its subcommands, without a cluster."""

import os
import sys

import pytest
from click.testing import CliRunner

from cli.cli_objects import kubeconfig
from llmkube.cli.commands.programs.agent import agent, own_token
from llmkube.k8s.auth.config import ClusterConfig, TokenFile
from llmkube.supervisor.power import sources
from llmkube.supervisor.power.powermetrics import sudoers_rule
from llmkube.supervisor.values.join_record import JoinRecord, record_path, token_path


def run(*args):
    return CliRunner().invoke(agent, args)


def test_sudoers_line_is_for_the_calling_user(monkeypatch):
    """Nothing else is printed, so that the output can be written to a file."""
    monkeypatch.setattr("os.getuid", lambda: 501)
    assert run("sudoers").output == sudoers_rule(501)


@pytest.mark.parametrize(
    ("uid", "args", "words"),
    [(0, [], "--user"), (501, ["--user", "root"], "root needs no"), (501, ["--user", "no-such"], "--user no-such")],
)
def test_sudoers_line_for_root_or_an_unknown_user_is_refused(monkeypatch, uid, args, words):
    monkeypatch.setattr("os.getuid", lambda: uid)
    result = run("sudoers", *args)
    assert result.exit_code != 0
    assert words in result.output
    assert "NOPASSWD" not in result.output


def test_power_is_refused_where_it_cannot_be_measured(monkeypatch, tmp_path, kubeconfig):
    """A host other than a Mac refuses the flag at the start."""
    monkeypatch.setattr(sys, "platform", "linux")
    args = ("--apple-power-enabled", "--llama-server", sys.executable, "--state-dir", str(tmp_path))
    result = run(*args, "--kubeconfig", str(kubeconfig))
    assert result.exit_code != 0
    assert "--apple-power-enabled: only macOS" in result.output


def test_a_linux_host_without_counters_reports_it_at_the_start(monkeypatch, tmp_path, kubeconfig):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sources, "read_counters", read_counters)
    args = ("--power-enabled", "--llama-server", sys.executable, "--state-dir", str(tmp_path))
    result = run(*args, "--kubeconfig", str(kubeconfig))
    assert result.exit_code != 0
    assert "--power-enabled: " in result.output


def read_counters(folder, now):
    raise FileNotFoundError(f"no package has a counter in {folder}")


@pytest.fixture(name="kubeconfig")
def there(tmp_path):
    """A kubeconfig of an unreachable cluster."""
    return kubeconfig(tmp_path / "kubeconfig", "https://192.0.2.1:6443")


def test_tokens_of_previous_clusters_are_removed(tmp_path):
    """Newer tokens stay, and so does a file that no join has written."""
    servers = ("https://a", "https://b", "https://c")
    old, mine, newer = (token_path(tmp_path, JoinRecord(host="box", server=server), b"") for server in servers)
    for seconds, file in enumerate((old, record_path(old), mine, record_path(mine), newer)):
        file.write_text("x")
        os.utime(file, (1000 + seconds, 1000 + seconds))
    (tmp_path / "mounted").write_text("x")
    elsewhere = ClusterConfig(server="https://a", identity=TokenFile(tmp_path / "mounted"))
    assert own_token(elsewhere, tmp_path) is None
    assert old.exists()
    assert own_token(ClusterConfig(server="https://a", identity=TokenFile(mine)), tmp_path) == mine
    assert {each.name for each in tmp_path.iterdir()} == {
        mine.name, record_path(mine).name, newer.name, "mounted",
    }  # fmt: skip
