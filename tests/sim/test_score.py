"""Random timelines: no invariant is broken, whatever happens in whatever order; and the monitor records violations.

`python -m tests.sim` runs any number of seeds, and replays one by its number.
"""

import math

import pytest

from lengths import QUIET_MINUTES, SIM_SEEDS
from llmkube.supervisor.service import status_manager
from sim import score
from sim.faults import FAULTS


@pytest.mark.parametrize("seed", range(SIM_SEEDS))
def test_a_seed_violates_nothing(seed):
    """Half an hour of faults ends in the desired state, without writes afterwards and without violations."""
    result = score.run_seed(seed, quiet_minutes=QUIET_MINUTES)
    assert not result.violations, f"replay it with: python -m tests.sim --seed {seed}"
    assert result.faults


@pytest.mark.ci
def test_the_same_seed_gives_the_same_run():
    """Two runs of one seed start the same engines at the same moments and write as often."""
    first, second = (score.run_seed(3, quiet_minutes=0) for _ in range(2))
    assert first.trace == second.trace
    assert first.converged_seconds == second.converged_seconds


def test_the_table_of_faults_is_long():
    """There are at least sixty kinds of faults, and every one names its row in the catalogue."""
    assert len(FAULTS) >= 60
    assert all(row.codes and row.phrase for row in FAULTS.values())


@pytest.mark.ci
def test_a_failing_timeline_is_shrunk(monkeypatch):
    """The shrunk timeline has the events that the bug needs: here, an endpoint that outlives its engine."""

    def always_ready(*args, original=status_manager.slice_manifest, **kwargs):
        return original(*args, **{**kwargs, "ready": True})

    monkeypatch.setattr(status_manager, "slice_manifest", always_ready)
    names = ("create", "clock-set", "bad-flag", "reset", "label")
    happenings = tuple(score.Happening(1.0 + 40 * number, name, 0) for number, name in enumerate(names))
    timeline = score.Timeline(1, 1, 30.0, False, False, happenings, busy_seconds=240.0)
    short = score.shrink(timeline, quiet_minutes=0, budget_seconds=math.inf)  # not less on a busy machine
    assert [happening.name for happening in short.happenings] == ["create", "bad-flag"]
    assert score.play(short, quiet_minutes=0).violations
