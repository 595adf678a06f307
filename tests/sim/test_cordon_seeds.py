"""Random timelines in which owners cordon hosts repeatedly, among all other faults: no invariant is broken."""

import random

import attrs
import pytest

from lengths import CORDON_SEEDS, QUIET_MINUTES
from llmkube.supervisor.host_cordon import HostCordon
from llmkube.supervisor.values.cordon import Cordon
from sim import score
from sim.faults import FAULTS
from sim.faults_owner import cordoned
from sim.mutation import CREATED, assert_recorded, rows, steps

OWNERS = sorted(name for name, row in FAULTS.items() if row.inject.__module__ == cordoned.__module__)


def of_owners(seed):
    """Return a seed's timeline on two hosts, in which every third fault is an owner's action."""
    timeline, rng = score.timeline_of(seed, 2), random.Random(seed)

    def drawn(happening):
        of_user = happening.name not in FAULTS or rng.random() > 1 / 3
        return happening if of_user else attrs.evolve(happening, name=rng.choice(OWNERS))

    return attrs.evolve(timeline, happenings=tuple(map(drawn, timeline.happenings)))


@pytest.mark.parametrize("seed", range(CORDON_SEEDS))
def test_a_seed_with_cordons_violates_nothing(seed):
    """A cordoned host has no engine after its drain and its grace, another one serves, and it returns by itself."""
    result = score.play(of_owners(seed), quiet_minutes=QUIET_MINUTES)
    assert not result.violations


@pytest.mark.ci
def test_a_drain_that_began_in_a_cordon_may_finish_after_it():
    """An agent that is stopped while it drains stops the engine, although the owner has uncordoned the host since."""
    happenings = (
        score.Happening(16.41737305241242, "create", 2210174250),
        score.Happening(1723.5825852778285, "cordoned-while-busy", 1049636039),
        score.Happening(1747.454052171584, "cut-off-while-frozen", 1011874676),
    )
    timeline = score.Timeline(769, 1, 5.0, False, True, happenings)
    result = score.play(timeline, quiet_minutes=1.0)
    assert not result.violations
    assert result.faults["cordoned-while-busy"] == 1


def test_the_faults_of_owners_are_many():
    """There are enough kinds of owners' actions, and timelines are drawn that have them."""
    assert len(OWNERS) >= 9
    drawn = {happening.name for seed in range(20) for happening in of_owners(seed).happenings}
    assert drawn.issuperset(OWNERS)


def holds_for_ever(self, now):
    return True


MUTANTS = {
    (steps(*CREATED, (100.0, "cordoned-for-a-while")), "not given back"): {
        "a cordon ends nothing": (HostCordon, "serves", property(lambda self: self.accelerators))
    },
    (steps(*CREATED, (100.0, "cordoned-for-a-while")), "stuck"): {
        "a host never returns": (Cordon, "is_active", holds_for_ever)
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(MUTANTS))
def test_a_mutant_is_booked(row, monkeypatch):
    """The monitor records this bug, and the same timeline is clean without it."""
    assert_recorded(monkeypatch, row)
