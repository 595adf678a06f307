"""Installations for tests of doctor, and a check of its findings."""

from pathlib import Path

from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.programs.background.agent_jobs import User
from llmkube.programs.config import UpConfig


def installation(folder, *, program="up", config=None, **changes):
    """Return an installation with this state directory."""
    facts = {"user": User(uid=501, name="ada", home=Path("/Users/ada")), "job_program": "/usr/bin/python3"}
    facts |= {"pid": None, "problem": "", "job": None, "daemon": False, "unit": None, "mac": False}
    return Installation(folder=folder, program=program, config=config or UpConfig(), **{**facts, **changes})


def check_finding(found, verdict, words):
    """Check verdict and text; only a finding that does not pass has a reason and a fix."""
    assert found.verdict.value == verdict
    assert words in f"{found.found} {found.why} {found.fix}"
    assert bool(found.fix) == bool(found.why) == (found.verdict is not Verdict.PASS)
