"""`llmkube agent` and its commands, as far as they need no cluster."""

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


def test_the_line_of_sudoers_is_for_who_runs_the_agent(monkeypatch):
    """Without --user it is for who asks, and nothing else is printed, so that it can be written to a file."""
    monkeypatch.setattr("os.getuid", lambda: 501)
    assert run("sudoers").output == sudoers_rule(501)


@pytest.mark.parametrize(
    ("uid", "args", "words"),
    [(0, [], "--user"), (501, ["--user", "root"], "root needs no"), (501, ["--user", "no-such"], "--user no-such")],
)
def test_a_line_of_sudoers_for_nobody_is_refused(monkeypatch, uid, args, words):
    """Root needs none, and a user that does not exist gets none; the sentence says what to give."""
    monkeypatch.setattr("os.getuid", lambda: uid)
    result = run("sudoers", *args)
    assert result.exit_code != 0
    assert words in result.output
    assert "NOPASSWD" not in result.output


def test_power_is_refused_where_it_cannot_be_measured(monkeypatch, tmp_path, kubeconfig):
    """A host that is no Mac says so at the start, instead of measuring nothing for ever."""
    monkeypatch.setattr(sys, "platform", "linux")
    args = ("--apple-power-enabled", "--llama-server", sys.executable, "--state-dir", str(tmp_path))
    result = run(*args, "--kubeconfig", str(kubeconfig))
    assert result.exit_code != 0
    assert "--apple-power-enabled: only macOS" in result.output


def test_a_linux_host_without_counters_reports_it_at_the_start(monkeypatch, tmp_path, kubeconfig):
    """What --power-enabled cannot read is named before anything is started."""
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
    """A cluster that is named."""
    return kubeconfig(tmp_path / "kubeconfig", "https://192.0.2.1:6443")


def test_only_the_token_of_the_cluster_that_is_served_stays(tmp_path):
    """Older ones of other joins are removed, not the one of a join that still writes, nor one that no join has made."""
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
