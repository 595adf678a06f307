"""Probes side by side, on a virtual clock."""

import pytest
import trio

from llmkube.base.errors import UserError
from llmkube.cli.commands.doctor.facts import Unanswered
from llmkube.cli.commands.doctor.machine_facts import FileVault
from llmkube.cli.commands.doctor.probes.probing import Probe, run_probes


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
            Probe("well", after(3, FileVault(True))),
            Probe("fails", after(1, OSError(5, "Input/output error"))),
            Probe("refuses", after(1, UserError("no such thing"))),
            Probe("many", after(1, ExceptionGroup("a nursery", [ValueError("one"), OSError("two")]))),
        ]
    )
    assert trio.current_time() - began == 5.0
    assert found == (
        Unanswered("hangs", "no answer within 5 s"),
        FileVault(True),
        Unanswered("fails", "[Errno 5] Input/output error"),
        Unanswered("refuses", "no such thing"),
        Unanswered("many", "one"),
    )


async def test_a_bug_is_no_line(autojump_clock):
    """It shows as what it is, with its place."""
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="a bug")):
        await run_probes([Probe("buggy", after(0, AssertionError("a bug"))), Probe("well", after(1, FileVault(True)))])


async def test_a_cancelled_report_is_cancelled(autojump_clock):
    """Ctrl-C is no probe that has failed."""
    with trio.move_on_after(1) as scope:
        await run_probes([Probe("long", after(5, FileVault(True)))])
    assert scope.cancelled_caught
