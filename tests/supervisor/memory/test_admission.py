"""Admission as tables: no Trio, no clock."""

import attrs
import pytest

from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.admission import step
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.preemption import cheapest
from llmkube.supervisor.memory.refusal import Block, judge
from llmkube.supervisor.memory.reservation import Need, Request, Reservation, Terms

GIB = 1 << 30
SMALL = GIB // 4
EMPTY = Capacity(Budget(64 * GIB, 48 * GIB, "75 % of 64.0 GiB by default", 40 * GIB), 56 * GIB, 7 * GIB, SMALL)
PRESSED = attrs.evolve(EMPTY, level=Level.WARNING, admitting=False)


def waits(name="chat", gib=20.0, priority="normal", *, device=0.0, **facts):
    need = Need(int(gib * GIB), int(device * GIB))
    hardware = facts.pop("hardware", None)
    return Request(Key("ns", name), need, Terms(priority, hardware=hardware), **facts)


def holds(name, gib, priority="normal", *, resident=None, protected=False, idle_seconds=0.0, device=0.0, **facts):
    """An engine that has loaded, and was measured since."""
    need = Need(int(gib * GIB), int(device * GIB))
    there = need.total_bytes if resident is None else int(resident * GIB)
    seen = {"resident_bytes": there, "measured": True, "loaded_at": -1e6, "busy_at": -idle_seconds}
    return Reservation(1, Key("ns", name), need, Terms(priority, protected), **(seen | facts))


def busy(*engines, **facts):
    """A host on which these run; what is resident is not available."""
    gone = sum(each.resident_bytes for each in engines)
    return attrs.evolve(EMPTY, **({"reservations": engines, "available_bytes": EMPTY.available_bytes - gone} | facts))


@pytest.mark.parametrize(
    ("waiting", "host", "block"),
    [
        (waits(), EMPTY, None),
        (waits(gib=48), EMPTY, None),
        (waits(gib=48.1), EMPTY, Block.HOST_BUDGET),
        (waits(hardware=Hardware(memory_budget="19Gi")), EMPTY, Block.OWN_BUDGET),
        (waits(hardware=Hardware(memory_budget="20Gi")), EMPTY, None),
        (waits(hardware=Hardware(memory_fraction=0.3)), EMPTY, Block.OWN_BUDGET),
        (waits(hardware=Hardware(memory_budget="60Gi"), gib=50), EMPTY, Block.HOST_BUDGET),
        (waits(gib=45, device=41), EMPTY, Block.DEVICE),
        (waits(gib=20, device=20), busy(holds("a", 21, device=21)), Block.DEVICE_FULL),
        (waits(gib=29), busy(holds("a", 20)), Block.FULL),
        (waits(gib=20), attrs.evolve(EMPTY, available_bytes=26 * GIB), Block.HEADROOM),
        (waits(gib=20), attrs.evolve(EMPTY, available_bytes=27 * GIB), None),
        # promised to somebody who is still loading: not free twice
        (waits(gib=20), busy(holds("a", 20, resident=0, loaded_at=None), available_bytes=46 * GIB), Block.HEADROOM),
        # ended, and not seen to be back
        (waits(gib=20), attrs.evolve(EMPTY, releasing_bytes=30 * GIB), Block.FULL),
        # grown far beyond what it had been promised
        (waits(gib=20), busy(holds("a", 30)), Block.FULL),
        (waits(gib=20), PRESSED, Block.PRESSURE),
        (waits(gib=20), attrs.evolve(EMPTY, admitting=False), Block.DWELL),
        (waits(gib=20), attrs.evolve(EMPTY, level=Level.UNKNOWN), Block.UNREADABLE),
        (waits(dwell_seconds=30.0), attrs.evolve(EMPTY, calm_seconds=29.0), Block.DWELL),
        (waits(dwell_seconds=30.0), attrs.evolve(EMPTY, calm_seconds=30.0), None),
        (waits(dwell_seconds=30.0), busy(holds("a", 1, returns=True, loaded_at=None), calm_seconds=99.0), Block.TURN),
        (waits(margin_bytes=GIB), attrs.evolve(EMPTY, available_bytes=27 * GIB), Block.HEADROOM),
        # a demo model starts wherever there is that much, except in an emergency
        (waits(gib=0.2), PRESSED, None),
        (waits(gib=0.2), attrs.evolve(EMPTY, available_bytes=GIB), None),
        (waits(gib=0.2), attrs.evolve(EMPTY, available_bytes=GIB // 8), Block.HEADROOM),
        (waits(gib=0.2), attrs.evolve(PRESSED, level=Level.CRITICAL), Block.PRESSURE),
    ],
)
def test_what_stands_in_the_way(waiting, host, block):
    """A start needs room in the ledger and on the host, without pressure; the bound that is hit is named."""
    refusal = judge(waiting, host)
    assert (refusal and refusal.block) == block


def test_what_nobody_can_size_is_refused_unless_guesses_are_allowed():
    """A need that is not known is no need of zero."""
    unknown = attrs.evolve(waits(), need=Need(GIB, sized=False, why="the file's header does not say"))
    assert judge(unknown, EMPTY).block is Block.UNSIZED
    assert judge(unknown, attrs.evolve(EMPTY, guesses=True)) is None
    assert judge(unknown, attrs.evolve(PRESSED, guesses=True)).block is Block.PRESSURE


@pytest.mark.parametrize(
    ("waiting", "host", "words"),
    [
        (waits(gib=50), EMPTY, "needs 50.0 GiB, more than all models on this host may take together: 48.0 GiB"),
        (waits(hardware=Hardware(memory_budget="8Gi")), EMPTY, "its own budget of 8.0 GiB by Model.spec.hardware"),
        (waits(gib=45, device=41), EMPTY, "needs 41.0 GiB on the device, which holds at most 40.0 GiB"),
        (waits(gib=29), busy(holds("a", 20)), "needs 29.0 GiB, 28.0 GiB free of 48.0 GiB"),
    ],
)
def test_each_bound_has_a_sentence_of_its_own(waiting, host, words):
    """What is needed, what there is and which bound it is are in the sentence."""
    assert words in judge(waiting, host).message


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


@pytest.mark.parametrize(
    ("held", "victims"),
    [
        ((holds("a", 20, "low"), holds("b", 20, "normal")), ["a"]),
        ((holds("a", 20, "high"), holds("b", 20, "high")), []),  # never an equal
        ((holds("a", 20, "critical"), holds("b", 20, "critical")), []),
        ((holds("a", 20, "low", protected=True), holds("b", 20, "normal")), ["b"]),
        ((holds("a", 20, "low", protected=True), holds("b", 20, "low", protected=True)), []),
        ((holds("a", 5, "low"), holds("b", 30, "high")), []),  # it would not be enough: nobody goes for nothing
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


def test_the_cheapest_set_has_nobody_in_it_for_nothing():
    """A set that is chosen from below loses whoever is not needed for the sum."""
    small, large = holds("small", 3, "batch"), holds("large", 20, "low")
    held = {each.key: each for each in (small, large)}
    chosen = cheapest(held.values(), lambda keys: sum(held[key].total_bytes for key in keys) >= 20 * GIB, 0.0)
    assert chosen == (large,)
