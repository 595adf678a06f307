"""Which probes are asked on which machine, and what `--from-cluster` wants; runs of the program are in `tests/e2e`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.commands.doctor.places import installation
from llmkube.cli.commands.doctor.command import doctor, probes_of
from llmkube.cli.target_cluster import Where

ANY = ["system", "engine", "Ollama", "memory", "disk"]
OURS = ["ports", "keys", "last end", "API server"]
MACS = ["sleep", "FileVault", "firewall", "Full Disk Access", "local network"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, [*ANY, "power", "background", *OURS]),
        ({"unit": Path("/u")}, [*ANY, "power", "systemd", *OURS]),
        ({"program": "agent"}, [*ANY, "power", "background", *OURS, "address"]),
        ({"mac": True}, ["system", "GPU limit", *ANY[1:3], "oMLX", *ANY[3:], *MACS, "background", *OURS]),
        (
            {"mac": True, "program": "agent", "job": Path("/j")},
            ["system", "GPU limit", *ANY[1:3], "oMLX", *ANY[3:], *MACS, "launchd", *OURS, "address"],
        ),
    ],
)
def test_each_machine_has_its_own_lines(tmp_path, changes, names):
    """In the order of the report; none is asked for what it cannot have."""
    probes = probes_of(installation(tmp_path, **changes), Where())
    assert [probe.name for probe in probes] == names
    assert all(0 < probe.seconds <= 75 for probe in probes)


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A home without anything, and no cluster in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "LLMKUBE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_job_is_made_only_in_a_cluster_that_was_named(alone):
    """The current context of kubectl's file was not, and `llmkube up` has no pods."""
    (alone / ".kube").mkdir()
    (alone / ".kube" / "config").write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: c}}],"
        ' clusters: [{name: c, cluster: {server: "https://c:6443"}}]}'
    )
    done = CliRunner().invoke(doctor, ["--from-cluster"])
    assert done.exit_code == 1
    assert "--from-cluster makes a Job: name the cluster, with --kubeconfig or --context" in done.output


def test_an_image_without_a_pod_is_a_mistake(alone):
    """It would be accepted and ignored."""
    done = CliRunner().invoke(doctor, ["--image", "x"])
    assert done.exit_code == 1
    assert "--image is for --from-cluster" in done.output
