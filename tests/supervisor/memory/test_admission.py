"""Admission as tables, without Trio and without a clock.

They select the engines that are evicted for a more important service.
"""

import attrs
import pytest

from llmkube.supervisor.memory.admission import excess_members, step
from llmkube.supervisor.memory.refusal import Block
from llmkube.supervisor.memory.reservation import MemorySpec, PoolShare, Usage
from supervisor.memory.requests import EMPTY, GIB, PRESSED, busy, holds, waits


def refusals(outcome):
    return {key.name: refusal for key, refusal in outcome.refused}


def test_the_refusal_names_services_that_could_be_stopped():
    """The refusal of a service that cannot displace any names those whose stop frees enough, and their cost."""
    host = busy(holds("draft", 20, "low", idle_seconds=840.0), holds("chat", 10, "high"))
    outcome = step([waits("big", 25, may_displace=False)], host)
    assert not outcome.displaced
    assert "stopping `draft` (priority low, idle 14m) would make room" in refusals(outcome)["big"].message
    assert refusals(outcome)["big"].fit_bytes == 18 * GIB


def test_two_that_arrive_together_do_not_reserve_the_same_bytes():
    """Of two that fit one at a time the more important one starts, and the other one waits."""
    outcome = step([waits("a", 30, "low"), waits("b", 30)], EMPTY)
    assert [key.name for key in outcome.admitted] == ["b"]
    assert refusals(outcome)["a"].block is Block.FULL


def test_a_service_that_does_not_fit_delays_no_other():
    """A small service starts although a larger and more important one has to wait."""
    outcome = step([waits("large", 40, "critical", may_displace=False), waits("small", 5, "low")], busy(holds("x", 20)))
    assert [key.name for key in outcome.admitted] == ["small"]


def test_memory_that_is_being_freed_goes_to_no_other():
    """While a victim exits, freed memory is not given to a less important service, and no other victim is chosen."""
    leaving = holds("a", 30, "low", exit_deadline=1.0)
    outcome = step([waits("chief", 30, "high"), waits("other", 10, "low")], busy(leaving))
    assert not outcome.admitted
    assert not outcome.displaced
    assert refusals(outcome)["other"].block is Block.TURN
    assert "starts when `a` has exited" in refusals(outcome)["chief"].message


def test_freed_memory_is_reserved_until_it_is_seen():
    """Between the end of a victim and the moment when its memory is free, no other service gets it."""
    released = attrs.evolve(EMPTY, available_bytes=20 * GIB, releasing_bytes=30 * GIB)
    outcome = step([waits("chief", 30, "high"), waits("victim", 10, "low")], released)
    assert not outcome.admitted
    assert refusals(outcome)["victim"].block is Block.TURN


def test_a_victim_that_does_not_exit_is_replaced():
    """A victim beyond its deadline is like any other engine that holds memory: another victim is chosen."""
    stuck, other = holds("stuck", 20, "critical"), holds("other", 20, "low")
    outcome = step([waits("chief", 25, "high")], busy(stuck, other))
    assert [each.victim.name for each in outcome.displaced] == ["other"]


def test_no_engine_is_displaced_under_pressure():
    """While admission is closed no engine is evicted for a service that could not start anyway."""
    outcome = step([waits("chief", 25, "high")], attrs.evolve(PRESSED, reservations=(holds("a", 30, "low"),)))
    assert not outcome.displaced


@pytest.mark.parametrize(
    ("held", "victims"),
    [
        ((holds("a", 20, "low"), holds("b", 20, "normal")), ["a"]),
        ((holds("a", 20, "high"), holds("b", 20, "high")), []),  # never an equal
        ((holds("a", 20, "critical"), holds("b", 20, "critical")), []),
        ((holds("a", 20, "low", protected=True), holds("b", 20, "normal")), ["b"]),
        ((holds("a", 20, "low", protected=True), holds("b", 20, "low", protected=True)), []),
        ((holds("a", 5, "low"), holds("b", 30, "high")), []),  # not enough: no engine is evicted for nothing
        ((holds("a", 2, "low"), holds("b", 20, "low"), holds("c", 18, "high")), ["b"]),
        ((holds("a", 20, "low"), holds("b", 20, "low", idle_seconds=900.0)), ["b"]),
        ((holds("a", 20, "low", usage=Usage(pinned=True)), holds("b", 20, "low")), ["b"]),
        ((holds("a", 15, "batch"), holds("b", 15, "low"), holds("c", 15, "normal")), ["a", "b"]),
    ],
)
def test_victims(held, victims):
    """The cheapest set of less important, unprotected services is evicted, and none if that would not be enough."""
    outcome = step([waits("chief", 25, "high")], busy(*held))
    assert [each.victim.name for each in outcome.displaced] == victims
    assert not outcome.admitted
    if victims:
        assert (
            "Stopped to make room for chief (priority high, needs 25.0 GiB); this service has priority"
            in outcome.displaced[0].why
        )


USED = Usage(requests=1)


def on_request(each, *, pinned=False):
    """The same service, loaded when a request needs it."""
    return attrs.evolve(each, spec=attrs.evolve(each.spec, on_request=True, pinned=pinned))


@pytest.mark.parametrize(
    ("gpus", "busy_for", "leaves"),
    [
        ((1, 1), (900.0, 60.0), ["a"]),
        ((1, 1, 2), (900.0, 60.0, 30.0), ["a", "b"]),
        ((2, 1), (900.0, None), ["a"]),
        ((1, 1), (None, None), []),
    ],
)
def test_excess_members_of_a_pool_leave(gpus, busy_for, leaves):
    """Those leave that no request uses, the longest unused first, once the pool has fewer GPUs; others stay."""
    engines = [holds("z", 1)]
    for name, count, idle in zip("abc", gpus, busy_for, strict=False):
        usage = Usage(requests=int(idle is None))
        each = on_request(holds(name, 1, idle_seconds=idle or 0.0, usage=usage))
        pool = PoolShare("p", limit=max(gpus), gpus=count)
        engines.append(attrs.evolve(each, spec=attrs.evolve(each.spec, pool=pool)))
    assert sorted(key.name for key in excess_members(engines)) == leaves


@pytest.mark.parametrize(
    ("waiting", "held", "victims"),
    [
        (on_request(waits("b", 25)), on_request(holds("a", 30)), ["a"]),
        (on_request(waits("b", 25)), on_request(holds("a", 30, usage=USED)), []),
        (on_request(waits("b", 25)), on_request(holds("a", 30, loaded_at=None)), []),  # it would never finish loading
        (on_request(waits("b", 25)), on_request(holds("a", 30), pinned=True), []),
        (on_request(waits("b", 25)), on_request(holds("a", 30, protected=True)), []),
        (on_request(waits("b", 25)), on_request(holds("a", 30, "high")), []),
        (on_request(waits("b", 25)), holds("a", 30), []),
        (on_request(waits("b", 25, "high")), holds("a", 30, usage=USED), []),
        (on_request(waits("b", 25, "high")), on_request(holds("a", 30, usage=USED)), []),
        (waits("b", 25), on_request(holds("a", 30)), []),
        (waits("b", 25, "high"), on_request(holds("a", 30)), ["a"]),
        (waits("b", 25, "high"), attrs.evolve(holds("a", 30), spec=MemorySpec(pinned=True)), []),
    ],
)
def test_who_makes_room_for_a_model_that_a_request_needs(waiting, held, victims):
    """Models that no request uses, up to the same priority; those that are always loaded only by priority."""
    outcome = step([waiting], busy(held))
    assert [each.victim.name for each in outcome.displaced] == victims
    refusal = refusals(outcome)["b"].message
    assert ("starts when `a` has exited" in refusal) == bool(victims)
