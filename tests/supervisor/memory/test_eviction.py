"""The eviction policy as tables, without Trio and without a clock."""

import attrs
import pytest

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.eviction import Cause, Eviction, Observation, PressureState, Skip, step
from llmkube.supervisor.memory.policy import Mode, Policy
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Reservation

GIB = 1 << 30
NOW = 10_000.0
TOTAL = 64 * GIB
SHORT, DIRE, FINE = 5 * GIB, 2 * GIB, 20 * GIB  # the thresholds are 6.4 and 3.2 GiB
NORMAL, WARNING, CRITICAL, UNKNOWN = Level.NORMAL, Level.WARNING, Level.CRITICAL, Level.UNKNOWN


def engine(name, priority="normal", gib=8.0, *, idle_seconds=0.0, protected=False, **facts):
    """An engine that has loaded, and was measured since."""
    size = int(gib * GIB)
    seen = {"resident_bytes": size, "measured": True, "loaded_at": 0.0, "busy_at": NOW - idle_seconds}
    return Reservation(1, Key("ns", name), Need(size), MemorySpec(priority, protected), **seen, **facts)


CHAT, EMBED, DRAFT = engine("chat", "high", 30), engine("embed", "normal", 6), engine("draft", "low", 10)
THREE = (CHAT, EMBED, DRAFT)


def decide(engines, *, level=CRITICAL, available=DIRE, lasted=0.0, policy=None, releasing=False, over=0, **state):
    """One sample of a host that has been short of memory for this long, in one step."""
    before = PressureState(level, short_since=NOW - lasted if level > NORMAL else None, **state)
    sample = Sample(TOTAL, available, level)
    return step(policy or Policy(), before, Observation(sample, engines, releasing, over), NOW)[1]


@pytest.mark.parametrize(
    ("engines", "facts", "victim"),
    [
        (THREE, {}, "draft"),
        ((CHAT, EMBED), {}, "embed"),
        ((engine("a", gib=5), engine("b", gib=9)), {}, "b"),
        ((engine("a", gib=5, idle_seconds=300.0), engine("b", gib=9)), {}, "a"),
        ((engine("a", gib=5, idle_seconds=299.0), engine("b", gib=9)), {}, "b"),
        ((engine("a", gib=5, idle_seconds=300.0), engine("b", gib=9, idle_seconds=900.0)), {}, "b"),
        ((engine("a", gib=2, idle_seconds=300.0), engine("b", gib=9)), {}, "b"),  # 1.2 GiB missing, 1 GiB to spare
        ((engine("a", idle_seconds=900.0), engine("b", "low")), {}, "b"),
        (
            (engine("a", gib=5, idle_seconds=300.0), engine("b", gib=9)),
            {"level": WARNING, "available": SHORT, "lasted": 60.0},
            "a",
        ),
        ((engine("a", "critical"), engine("b", "batch"), engine("c", "low")), {}, "b"),
        ((engine("draft", "low", 10, protected=True), EMBED, CHAT), {}, "embed"),
        ((engine("tiny", "batch", 0.05), EMBED, CHAT), {}, "embed"),
        (THREE, {"level": WARNING, "available": SHORT, "lasted": 60.0}, "draft"),
        (THREE, {"level": NORMAL, "available": FINE, "over": 2 * GIB, "over_since": NOW - 60}, "draft"),
    ],
)
def test_the_victim(engines, facts, victim):
    """The lowest priority first; of equals an idle one that frees enough, else the largest; never a protected one."""
    decision = decide(engines, **facts)
    assert decision.evict is not None, decision.skip
    assert decision.evict.key.name == victim


IDLE = engine("embed", "normal", 6, idle_seconds=900.0)
HIGH_IDLE = engine("chat", "high", 30, idle_seconds=9000.0)


@pytest.mark.parametrize(
    ("engines", "facts", "skip"),
    [
        (THREE, {"level": UNKNOWN}, Skip.UNKNOWN),
        (THREE, {"policy": Policy(mode=Mode.OFF)}, Skip.DISABLED),
        (THREE, {"policy": Policy(mode=Mode.DRY_RUN)}, Skip.DRY_RUN),
        ((), {}, Skip.EMPTY),
        ((engine("chat", protected=True), engine("embed", protected=True)), {}, Skip.ALL_PROTECTED),
        ((CHAT,), {}, Skip.LAST_SERVICE),
        ((CHAT, engine("demo", gib=0.1)), {}, Skip.LAST_SERVICE),
        ((engine("a", gib=0.1), engine("b", gib=0.1)), {}, Skip.TOO_SMALL),
        ((engine("a", gib=1), engine("b", gib=1)), {"available": 0}, Skip.CANNOT_HELP),
        (THREE, {"acted_at": NOW - 14}, Skip.COOL_DOWN),
        (THREE, {"acted_at": NOW - 59, "available": FINE}, Skip.COOL_DOWN),
        (THREE, {"releasing": True}, Skip.RELEASE_PENDING),
        ((*THREE, engine("gone", exit_deadline=NOW + 1)), {}, Skip.RELEASE_PENDING),
        (THREE, {"level": WARNING, "available": SHORT, "lasted": 59.0}, Skip.NOT_LONG_ENOUGH),
        ((IDLE, DRAFT), {"level": WARNING, "available": SHORT, "lasted": 19.0}, Skip.NOT_LONG_ENOUGH),
        (THREE, {"level": WARNING, "available": FINE, "lasted": 600.0}, Skip.FIGURES_FINE),
        ((HIGH_IDLE, DRAFT), {"level": WARNING, "available": SHORT, "lasted": 30.0}, Skip.NOT_LONG_ENOUGH),
    ],
)
def test_the_reason_without_a_victim(engines, facts, skip):
    """No engine is evicted without need, without use, or against the user's setting, and the reason is reported."""
    decision = decide(engines, **facts)
    assert decision.evict is None
    assert decision.skip is skip
    assert decision.skip is Skip.UNKNOWN or decision.note


def test_idle_services_are_unloaded_before_working_ones_are_ended():
    """After 20 s of WARNING an idle service is evicted, although a less important one has work."""
    decision = decide((IDLE, DRAFT, CHAT), level=WARNING, available=SHORT, lasted=20.0)
    assert decision.evict == Eviction(IDLE.key, Cause.IDLE, decision.evict.why)
    assert "it was idle for 15m" in decision.evict.why


def test_only_critical_interrupts_requests():
    """At CRITICAL the victim's requests are not waited for, at WARNING they are."""
    assert decide(THREE).evict.urgent
    assert not decide(THREE, level=WARNING, available=SHORT, lasted=60.0).evict.urgent


def test_a_victim_that_does_not_die_lets_another_one_be_chosen():
    """A victim beyond its deadline is no reason to wait, and is not chosen again."""
    stuck = attrs.evolve(DRAFT, exit_deadline=NOW)
    assert decide((stuck, EMBED, CHAT)).evict.key == EMBED.key


def test_the_last_engine_is_evicted_without_keep_last():
    """Without `keep_last` a host's only service is evicted at CRITICAL."""
    assert decide((CHAT,), policy=Policy(keep_last=False)).evict.key == CHAT.key


def play(levels, policy=None, engines=THREE, available=None):
    """Decisions on a series of samples, one per second."""
    state, decisions = PressureState(), []
    for second, level in enumerate(levels):
        free = {NORMAL: FINE, WARNING: SHORT, CRITICAL: DIRE, UNKNOWN: 0}[level] if available is None else available
        state, decision = step(
            policy or Policy(), state, Observation(Sample(TOTAL, free, level), engines), float(second)
        )
        decisions.append(decision)
    return decisions


def test_flapping_each_second_shows_one_level_and_evicts_no_engine_for_a_minute():
    """A level that flaps with every sample reads WARNING, never opens admission, and makes one victim per cool-down."""
    decisions = play([WARNING, NORMAL] * 40)
    assert {each.level for each in decisions} == {WARNING}
    assert not any(each.admitting for each in decisions)
    assert sum(each.evict is not None for each in decisions) == 2  # after 60 s, and a cool-down later
    assert all(each.evict is None for each in decisions[:60])


def test_admission_opens_after_the_dwell():
    """After an episode, admission is closed until NORMAL has lasted for the dwell time, and not a second longer."""
    decisions = play([NORMAL, WARNING, *[NORMAL] * 40])
    assert decisions[0].admitting
    opened = next(second for second, each in enumerate(decisions) if second > 1 and each.admitting)
    assert opened == 2 + Policy().return_seconds


def test_an_unknown_level_changes_nothing_for_good():
    """UNKNOWN closes admission only as long as it lasts, when there was no pressure before."""
    decisions = play([NORMAL, UNKNOWN, NORMAL])
    assert [each.admitting for each in decisions] == [True, False, True]


def test_critical_is_shown_for_its_dwell_time():
    """A level that flaps between CRITICAL and WARNING reads CRITICAL."""
    levels = {each.level for each in play([CRITICAL, WARNING] * 10)}
    assert levels == {CRITICAL}
