"""Which probes are asked on which machine, side by side, and what `--from-cluster` wants; runs are in `tests/e2e`."""

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
    probes = probes_of(installation(tmp_path, **changes), ClusterFlags())
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
    kubeconfig(alone / ".kube" / "config", "https://c:6443")
    done = CliRunner().invoke(doctor, ["--from-cluster"])
    assert done.exit_code == 1
    assert "--from-cluster creates a Job: name the cluster with --kubeconfig or --context" in done.output


def test_an_image_without_a_pod_is_a_mistake(alone):
    """It would be accepted and ignored."""
    done = CliRunner().invoke(doctor, ["--image", "x"])
    assert done.exit_code == 1
    assert "--image requires --from-cluster" in done.output


WELL = passed("as it is to be")


def after(seconds, outcome):
    async def look():
        await trio.sleep(seconds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return look


async def test_one_that_hangs_and_one_that_fails_end_no_other(autojump_clock):
    """They take as long as the longest, come in their order, and each that has found nothing says why."""
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


async def test_a_bug_is_no_line(autojump_clock):
    """It shows as what it is, with its place."""
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="a bug")):
        await run_probes([Probe("buggy", after(0, AssertionError("a bug"))), Probe("well", after(1, WELL))])


async def test_a_cancelled_report_is_cancelled(autojump_clock):
    """Ctrl-C is no probe that has failed."""
    with trio.move_on_after(1) as scope:
        await run_probes([Probe("long", after(5, WELL))])
    assert scope.cancelled_caught
