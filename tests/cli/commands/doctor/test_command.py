"""Probes of each machine, run concurrently, and the flags of `--from-cluster`; whole runs are in `tests/e2e`."""

from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from cli.cli_objects import kubeconfig
from cli.commands.doctor.places import installation
from llmkube.base.errors import UserError
from llmkube.cli.commands.doctor.command import Probe, doctor, probes_of, run_probes
from llmkube.cli.commands.doctor.findings import Verdict, passed
from llmkube.cli.target_cluster import ClusterFlags

ANY = ["system", "engine", "Ollama", "memory", "disk", "proxies"]
LINUX = [*ANY[:2], "devices", *ANY[2:]]
OURS = ["ports", "keys", "last end", "API server"]
MACS = ["sleep", "FileVault", "firewall", "Full Disk Access", "local network"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, [*LINUX, "power", "background", *OURS]),
        ({"unit": Path("/u")}, [*LINUX, "power", "systemd", *OURS]),
        ({"program": "agent"}, [*LINUX, "power", "background", *OURS, "address"]),
        ({"mac": True}, ["system", "GPU limit", *ANY[1:3], "oMLX", *ANY[3:], *MACS, "background", *OURS]),
        (
            {"mac": True, "program": "agent", "job": Path("/j")},
            ["system", "GPU limit", *ANY[1:3], "oMLX", *ANY[3:], *MACS, "launchd", *OURS, "address"],
        ),
    ],
)
def test_each_machine_has_its_own_lines(tmp_path, changes, names):
    """Probes come in the order of the report, and only those that apply."""
    probes = probes_of(installation(tmp_path, **changes), ClusterFlags())
    assert [probe.name for probe in probes] == names
    assert all(0 < probe.seconds <= 75 for probe in probes)


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty home, and no cluster in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "LLMKUBE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_job_is_made_only_in_a_cluster_that_was_named(alone):
    """The current context of kubectl's file does not name one, and `llmkube up` has no pods."""
    kubeconfig(alone / ".kube" / "config", "https://c:6443")
    done = CliRunner().invoke(doctor, ["--from-cluster"])
    assert done.exit_code == 1
    assert "--from-cluster creates a Job: name the cluster with --kubeconfig or --context" in done.output


def test_an_image_without_a_pod_is_a_mistake(alone):
    done = CliRunner().invoke(doctor, ["--image", "x"])
    assert done.exit_code == 1
    assert "--image requires --from-cluster" in done.output


WELL = passed("as it is to be")


def after(seconds, outcome):
    async def probe():
        await trio.sleep(seconds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return probe


async def test_hanging_and_failing_probes_do_not_affect_others(autojump_clock):
    """Probes run concurrently and keep their order; one without a result reports the cause."""
    began = trio.current_time()
    found = await run_probes(
        [
            Probe("hangs", after(10**9, None), 5.0),
            Probe("well", after(3, WELL)),
            Probe("two", after(2, (passed("a"), passed("b", name="other")))),
            Probe("fails", after(1, OSError(5, "Input/output error"))),
            Probe("refuses", after(1, UserError("no such thing"))),
            Probe("many", after(1, ExceptionGroup("a nursery", [ValueError("one"), OSError("two")]))),
        ]
    )
    assert trio.current_time() - began == 5.0
    assert [(each.name, each.found) for each in found] == [
        ("hangs", "check failed: no answer within 5 s"),
        ("well", "as it is to be"),
        ("two", "a"),
        ("other", "b"),
        ("fails", "check failed: [Errno 5] Input/output error"),
        ("refuses", "check failed: no such thing"),
        ("many", "check failed: one"),
    ]
    assert {each.verdict for each in found if "check failed" in each.found} == {Verdict.WARN}


async def test_bug_in_a_probe_is_raised(autojump_clock):
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="a bug")):
        await run_probes([Probe("buggy", after(0, AssertionError("a bug"))), Probe("well", after(1, WELL))])


async def test_a_cancelled_report_is_cancelled(autojump_clock):
    """Cancellation is not reported as a failed probe."""
    with trio.move_on_after(1) as scope:
        await run_probes([Probe("long", after(5, WELL))])
    assert scope.cancelled_caught
