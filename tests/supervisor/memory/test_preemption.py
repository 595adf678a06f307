"""Which engines end for a more important service, as a table: no Trio, no clock."""

import pytest

from llmkube.supervisor.memory.admission import step
from llmkube.supervisor.memory.preemption import cheapest
from supervisor.memory.requests import GIB, busy, holds, waits


@pytest.mark.parametrize(
    ("held", "victims"),
    [
        ((holds("a", 20, "low"), holds("b", 20, "normal")), ["a"]),
        ((holds("a", 20, "high"), holds("b", 20, "high")), []),  # never an equal
        ((holds("a", 20, "critical"), holds("b", 20, "critical")), []),
        ((holds("a", 20, "low", protected=True), holds("b", 20, "normal")), ["b"]),
        ((holds("a", 20, "low", protected=True), holds("b", 20, "low", protected=True)), []),
        ((holds("a", 5, "low"), holds("b", 30, "high")), []),  # it would not be enough: no engine ends for nothing
        ((holds("a", 2, "low"), holds("b", 20, "low"), holds("c", 18, "high")), ["b"]),
        ((holds("a", 20, "low"), holds("b", 20, "low", idle_seconds=900.0)), ["b"]),
        ((holds("a", 20, "low", load_seconds=90), holds("b", 20, "low", load_seconds=9)), ["b"]),
        ((holds("a", 15, "batch"), holds("b", 15, "low"), holds("c", 15, "normal")), ["a", "b"]),
    ],
)
def test_who_makes_room(held, victims):
    """The cheapest set of less important, unprotected services goes, and none if that would not be enough."""
    outcome = step([waits("chief", 25, "high")], busy(*held))
    assert [each.victim.name for each in outcome.displaced] == victims
    assert not outcome.admitted
    if victims:
        assert (
            "Evicted to make room for chief (priority high, needs 25.0 GiB); this service has priority"
            in outcome.displaced[0].why
        )


def test_the_cheapest_set_has_nobody_in_it_for_nothing():
    """A set that is chosen from below loses each engine that is not needed for the sum."""
    small, large = holds("small", 3, "batch"), holds("large", 20, "low")
    held = {each.key: each for each in (small, large)}
    chosen = cheapest(held.values(), lambda keys: sum(held[key].total_bytes for key in keys) >= 20 * GIB, 0.0)
    assert chosen == (large,)
