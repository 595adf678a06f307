"""What facts of our programs mean: a table, with the words of the fix."""

from pathlib import Path

import attrs
import pytest

from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.judge import judge
from llmkube.cli.commands.doctor.program_facts import (
    Engine,
    LastEnds,
    LaunchdJob,
    Listener,
    Listeners,
    NoJob,
    Port,
    Ports,
    Settings,
    SystemdUnit,
)
from llmkube.cli.commands.programs.background.launchctl import JobState
from llmkube.cli.commands.programs.background.start_limit import FailedStarts

FOLDER = Path("/state")
JOB = LaunchdJob(
    what="agent",
    file=Path("/Users/ada/Library/LaunchAgents/com.llmkube.metal-agent.plist"),
    daemon=False,
    state=JobState(4711, 1, ""),
    holds=True,
    healthy=True,
    failed=FailedStarts("boot"),
)
DOWN = attrs.evolve(JOB, holds=False, healthy=False)
OPEN = Listener("llama-server (pid 7)", "0.0.0.0:8080", ours=False)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("fact", "verdict", "words"),
    [
        (Settings(FOLDER, "up", None), "pass", "nothing of ours on /state"),
        (Settings(FOLDER, "agent", 7), "pass", "llmkube agent (pid 7)"),
        (Settings(FOLDER, "agent", 7, "port = x"), "fail", "docs/config.md"),
        (Engine(program="/e", version="6900"), "pass", "/e, 6900"),
        (Engine(program="/e", version="6900", devices=("Apple M3",)), "pass", "Apple M3"),
        (Engine(program="/e", version="6900", devices=()), "warn", "`/e --list-devices`"),
        (Engine(problem="no llama-server"), "fail", "`brew install llama.cpp`"),
        (Engine(problem="--ollama: /o does not exist", starts=False), "fail", "--ollama: /o"),
        (JOB, "pass", "a job of the login"),
        (attrs.evolve(JOB, daemon=True), "pass", "a daemon"),
        (attrs.evolve(JOB, state=JobState(4711, 9, "1")), "pass", "9 starts, ended last with 1"),  # and runs now
        (attrs.evolve(JOB, healthy=False), "warn", "does not answer at /healthz"),
        (attrs.evolve(DOWN, state=None), "warn", "is not loaded"),
        (attrs.evolve(DOWN, state=JobState(None, 1, "1")), "warn", "does not run"),
        (attrs.evolve(DOWN, state=JobState(None, 3, "1")), "fail", "a crash loop"),
        (attrs.evolve(DOWN, state=JobState(4712, 30, "78")), "fail", "started 30 times, ended last with 78"),
        (
            attrs.evolve(DOWN, state=JobState(None, 3, "0")),
            "warn",
            "`llmkube agent start`",
        ),
        (attrs.evolve(DOWN, failed=FailedStarts("boot", 5, "no engine")), "fail", "no engine"),
        (attrs.evolve(JOB, failed=FailedStarts("boot", 5, "no engine")), "pass", ""),
        (attrs.evolve(DOWN, what="up", state=None), "warn", "`llmkube up install`"),
        (SystemdUnit(Path("/llmkube-up.service"), "active"), "pass", "active"),
        (SystemdUnit(Path("/llmkube-up.service"), "inactive"), "warn", "`systemctl --user restart llmkube-up.service`"),
        (SystemdUnit(Path("/llmkube-up.service"), "failed"), "fail", "`llmkube up logs --tail 20`"),
        (NoJob(), "pass", "nothing of ours starts by itself"),
        (Ports("up", (Port("--api-port", 7443),)), "pass", "7443"),
        (Ports("up", (Port("--api-port", 7443, taken=True, holder="nginx (pid 7)"),)), "fail", "by nginx (pid 7)"),
        (Ports("up", (Port("--api-port", 7443, taken=True),)), "fail", "-iTCP:7443"),
        (Ports("agent", (Port("--port", 9090, silent=True),)), "fail", "nothing answers at 9090"),
        (Listeners(()), "pass", "no engine listens without a key"),
        (Listeners((OPEN,)), "fail", "--api-key-file FILE"),
        (Listeners((attrs.evolve(OPEN, ours=True),)), "fail", "`llmkube restart NAME`"),
        (Listeners((), insecure_lan=True), "fail", "--allow-from"),
        (LastEnds(), "pass", "no engine has ended"),
        (LastEnds(lost=("a/b", "a/c"), largest="a/c", largest_bytes=GIB), "warn", "2 engines ended without a word"),
        (LastEnds(lost=("a/b",), rebooted=True, largest="a/b"), "warn", "1 engine ended with this machine"),
        (LastEnds(jetsam="JetsamEvent-1.ips", jetsam_largest="llama-server"), "warn", "was llama-server"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """And one that is well has nothing to mend."""
    (found,) = judge([fact])
    assert found.verdict.value == verdict
    assert words in f"{found.found} {found.why} {found.fix}"
    assert bool(found.fix) == bool(found.why) == (found.verdict is not Verdict.PASS)


def test_each_port_and_each_listener_is_a_line_of_its_own():
    """One that is mended must not hide the next."""
    taken = Ports("up", (Port("--api-port", 1, taken=True), Port("--gateway-port", 2, taken=True)))
    assert [each.fix.rpartition(" ")[2] for each in judge([taken])] == ["--api-port", "--gateway-port"]
    assert len(judge([Listeners((OPEN, OPEN), insecure_lan=True)])) == 3
