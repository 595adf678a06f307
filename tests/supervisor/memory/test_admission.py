"""Admission as tables: no Trio, no clock."""

import attrs

from llmkube.supervisor.memory.admission import step
from llmkube.supervisor.memory.refusal import Block
from supervisor.memory.requests import EMPTY, GIB, PRESSED, busy, holds, waits


def refusals(outcome):
    return {key.name: refusal for key, refusal in outcome.refused}


def test_the_refusal_names_who_could_be_stopped():
    """Who cannot displace anybody is told whose stop would make room, with what makes it cheap."""
    host = busy(holds("draft", 20, "low", idle_seconds=840.0), holds("chat", 10, "high"))
    outcome = step([waits("big", 25, may_displace=False)], host)
    assert not outcome.displaced
    assert "stopping `draft` (priority low, idle 14m) would make room" in refusals(outcome)["big"].message
    assert refusals(outcome)["big"].room_bytes == 18 * GIB


def test_two_who_arrive_together_are_not_promised_the_same_bytes():
    """Of two that fit one at a time the more important one starts, and the other one waits."""
    outcome = step([waits("a", 30, "low"), waits("b", 30)], EMPTY)
    assert [key.name for key in outcome.admitted] == ["b"]
    assert refusals(outcome)["a"].block is Block.FULL


def test_who_does_not_fit_holds_nobody_up():
    """A small service starts although a larger and more important one has to wait."""
    outcome = step([waits("large", 40, "critical", may_displace=False), waits("small", 5, "low")], busy(holds("x", 20)))
    assert [key.name for key in outcome.admitted] == ["small"]


def test_room_that_is_being_made_goes_to_nobody_else():
    """While a victim leaves, what comes free is not given to a less important service, and nobody else is chosen."""
    leaving = holds("a", 30, "low", leaves_by=1.0)
    outcome = step([waits("chief", 30, "high"), waits("other", 10, "low")], busy(leaving))
    assert not outcome.admitted
    assert not outcome.displaced
    assert refusals(outcome)["other"].block is Block.TURN
    assert "starts when `a` has ended" in refusals(outcome)["chief"].message


def test_room_is_kept_until_the_memory_is_back():
    """Between the end of a victim and the moment when its memory is seen, nobody else takes the room."""
    released = attrs.evolve(EMPTY, available_bytes=20 * GIB, releasing_bytes=30 * GIB)
    outcome = step([waits("chief", 30, "high"), waits("victim", 10, "low")], released)
    assert not outcome.admitted
    assert refusals(outcome)["victim"].block is Block.TURN


def test_a_victim_that_does_not_go_is_not_counted_on():
    """Once a victim's time is over it is like any other engine that holds memory: another one has to go."""
    stuck, other = holds("stuck", 20, "critical"), holds("other", 20, "low")
    outcome = step([waits("chief", 25, "high")], busy(stuck, other))
    assert [each.victim.name for each in outcome.displaced] == ["other"]


def test_nobody_is_displaced_under_pressure():
    """While admission is closed nobody has to go for somebody who could not start anyway."""
    outcome = step([waits("chief", 25, "high")], attrs.evolve(PRESSED, reservations=(holds("a", 30, "low"),)))
    assert not outcome.displaced
