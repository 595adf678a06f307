"""Machines on which something of ours is installed, or nothing; and what a finding has to have."""

from pathlib import Path

from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.programs.background.agent_jobs import User
from llmkube.programs.config import UpConfig


def installation(folder, *, program="up", config=None, **changes):
    """A machine with this state directory."""
    facts = {
        "user": User(uid=501, name="ada", home=Path("/Users/ada")),
        "pid": None,
        "problem": "",
        "job": None,
        "daemon": False,
        "unit": None,
        "job_program": "/usr/bin/python3",
        "mac": False,
    }
    return Installation(folder=folder, program=program, config=config or UpConfig(), **{**facts, **changes})


def check_finding(found, verdict, words):
    """The verdict and the words are these, and one that is well has nothing to mend."""
    assert found.verdict.value == verdict
    assert words in f"{found.found} {found.why} {found.fix}"
    assert bool(found.fix) == bool(found.why) == (found.verdict is not Verdict.PASS)
