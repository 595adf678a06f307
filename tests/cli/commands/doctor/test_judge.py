"""Every kind of fact has a judge, and what could not be looked at is a line."""

from typing import get_args

from llmkube.cli.commands.doctor.facts import Fact, Unanswered
from llmkube.cli.commands.doctor.findings import Verdict, exit_code, failed, passed, warned
from llmkube.cli.commands.doctor.judge import JUDGES, judge


def test_each_kind_of_fact_has_a_judge():
    """A probe whose fact has none would end the report."""
    assert set(JUDGES) == set(get_args(Fact))


def test_what_cannot_be_told_is_a_warning_with_its_words():
    """It may be well or not."""
    (found,) = judge([Unanswered("disk", "no answer within 8 s")])
    assert (found.name, found.verdict) == ("disk", Verdict.WARN)
    assert "no answer within 8 s" in found.found


def test_only_a_failure_ends_a_script():
    """A warning is for people."""
    well, doubtful, bad = passed("a", "b"), warned("a", "b", why="c", fix="d"), failed("a", "b", why="c", fix="d")
    assert exit_code([well, doubtful]) == 0
    assert exit_code([well, bad, doubtful]) == 1
