"""What facts of the cluster mean: a table, with the words of the fix."""

from datetime import timedelta

import attrs
import pytest

from llmkube.cli.commands.doctor.cluster_facts import Advertised, ApiServer, LanAccess, NoCluster, PodReach
from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.judge import judge

API = ApiServer(
    server="https://c:6443", context="lab", version="Kubernetes v1.34.1", rights="`llmkube rbac agent`", agent=True
)
TRIED = PodReach(job="default/llmkube-doctor-1", address="192.168.1.5:40001")


@pytest.mark.parametrize(
    ("fact", "verdict", "words"),
    [
        (NoCluster(), "pass", "no cluster is named"),
        (NoCluster("lab"), "pass", '--context "lab"'),
        (attrs.evolve(API, own=True), "pass", "v1.34.1"),
        (attrs.evolve(API, problem="connection refused"), "fail", "connection refused"),
        (attrs.evolve(API, problem="Unauthorized", code=401), "fail", "`llmkube agent join`"),
        (LanAccess("refused", job=True, daemon=False), "fail", "errno 65"),
        (LanAccess("refused", job=True, daemon=False), "fail", "Local Network Privacy"),
        (LanAccess("reached", job=True, daemon=False), "pass", "the job reaches"),
        (LanAccess("unknown", job=True, daemon=False), "warn", "`llmkube agent restart`"),
        (LanAccess("", job=True, daemon=False), "warn", "only the job can tell"),
        (LanAccess("", job=True, daemon=True), "pass", "exempt"),
        (LanAccess("", job=False, daemon=False), "pass", "no job"),
        (Advertised("192.168.1.5"), "pass", "192.168.1.5, as it talks"),
        (Advertised("192.168.1.5", given=True), "pass", "by --host-ip"),
        (Advertised(""), "fail", "--host-ip ADDRESS"),
        (TRIED, "pass", "192.168.1.5:40001"),
        (attrs.evolve(TRIED, error="EHOSTUNREACH"), "fail", "EHOSTUNREACH"),
        (attrs.evolve(TRIED, problem="ImagePullBackOff"), "fail", "--image"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """And one that is well has nothing to mend."""
    (found,) = judge([fact])
    assert found.verdict.value == verdict
    assert words in f"{found.found} {found.why} {found.fix}"
    assert bool(found.fix) == bool(found.why) == (found.verdict is not Verdict.PASS)


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, {"API server": "pass", "rights": "pass"}),
        ({"installed": False}, {"API server": "pass", "kinds": "fail", "rights": "pass"}),
        ({"lacking": ("create leases",)}, {"API server": "pass", "rights": "fail"}),
        ({"lacking": ("create leases",), "agent": False}, {"API server": "pass", "rights": "warn"}),
        ({"skew": timedelta(seconds=4)}, {"API server": "pass", "rights": "pass", "clock": "pass"}),
        ({"skew": timedelta(seconds=-5)}, {"API server": "pass", "rights": "pass", "clock": "warn"}),
        ({"skew": timedelta(seconds=60)}, {"API server": "pass", "rights": "pass", "clock": "fail"}),
    ],
)
def test_one_server_is_several_lines(changes, verdicts):
    """That it answers, that it serves our kinds, what the agent may do, and what time it has."""
    assert {each.name: each.verdict.value for each in judge([attrs.evolve(API, **changes)])} == verdicts


def test_a_long_list_of_rights_is_cut_and_counted():
    """One screen: four are named, and how many there are besides."""
    lacking = tuple(f"create kind{number}" for number in range(9))
    found = judge([attrs.evolve(API, lacking=lacking)])[1]
    assert found.found.endswith("create kind3; and 5 more")
    assert found.fix == "`llmkube rbac agent`"


@pytest.mark.parametrize(("skew", "words"), [(300, "300 s behind the"), (-300, "300 s ahead of the")])
def test_a_clock_is_said_from_this_machine_s_side(skew, words):
    """The API server's being ahead is ours being behind."""
    (_, _, clock) = judge([attrs.evolve(API, skew=timedelta(seconds=skew))])
    assert words in clock.found
