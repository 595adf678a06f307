"""Deliberate bugs: each must break a timeline, or the timelines prove nothing."""

import attrs
import pytest

from llmkube.supervisor.memory import admission, eviction, ledger, pressure
from llmkube.supervisor.memory.admission import Host
from llmkube.supervisor.memory.eviction import Policy
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.seats import Seat
from pressure.playing import play
from pressure.timelines import TIMELINES

BY_NAME = {each.name: each for each in TIMELINES}


def ledger_alone(monkeypatch):
    """Admission never looks at the host: the yo-yo of a static ledger."""
    monkeypatch.setattr(Host, "headroom_bytes", property(lambda self: 1 << 50))


def no_dwell(monkeypatch):
    """Who was evicted comes back as soon as memory is normal for a moment."""
    monkeypatch.setattr(Policy, "dwell_seconds", lambda self, relapses: 0.001)
    _with_policy(monkeypatch, return_seconds=0.0)


def no_cooldown(monkeypatch):
    """Eviction after eviction, without waiting for what the last one brings."""
    monkeypatch.setattr(eviction, "_not_now", lambda *_: None)


def largest_first(monkeypatch):
    """The size decides, and not the priority."""
    monkeypatch.setattr(eviction, "_order", lambda _policy, _enough, one: (-one.frees_bytes, one.key))


def protection_ignored(monkeypatch):
    """Whoever is protected goes like anybody else."""
    original = Seat._candidate
    monkeypatch.setattr(
        Seat, "_candidate", lambda self, claim, now: attrs.evolve(original(self, claim, now), protected=False)
    )


def unknown_is_critical(monkeypatch):
    """A reading that fails is taken for the worst: the original's bug."""
    original = eviction.step

    def step(policy, state, look, now):
        if look.sample.level == 0:
            look = attrs.evolve(look, sample=attrs.evolve(look.sample, level=eviction.Level.CRITICAL))
        return original(policy, state, look, now)

    monkeypatch.setattr(pressure, "step", step)


def promised_twice(monkeypatch):
    """What somebody who loads has been promised is given to the next one as well."""
    monkeypatch.setattr(Host, "promised_bytes", 0)
    monkeypatch.setattr(Host, "with_promise", lambda self, waiting: self)


def never_back(monkeypatch):
    """Who was evicted stays away: the original's bug."""
    original = Ledger._asks
    monkeypatch.setattr(Ledger, "_asks", lambda self, seat: None if seat.evicted else original(self, seat))


def all_at_once(monkeypatch):
    """Everybody who was evicted returns at the same moment."""
    original = Seat.held
    monkeypatch.setattr(
        Seat, "held", lambda self, now: [attrs.evolve(each, returning=False) for each in original(self, now)]
    )


def helpless_evictions(monkeypatch):
    """Somebody is evicted although that cannot help."""
    original = eviction._lacking
    monkeypatch.setattr(eviction, "_lacking", lambda *args: min(original(*args), 0))


def room_for_anybody(monkeypatch):
    """The room that a victim leaves goes to whoever asks first."""
    monkeypatch.setattr(Host, "in_a_moment", lambda self: self)


def equals_displaced(monkeypatch):
    """A service makes room for an equal one."""
    monkeypatch.setattr(
        admission, "_less_important", lambda waiting, host: tuple(each for each in host.held if not each.leaving)[:1]
    )


def edits_unheard(monkeypatch):
    """An edit of priority or protection counts from the next start on."""
    original = Ledger.follow
    seen = set()

    def follow(self, key, terms):
        if key not in seen:
            seen.add(key)
            original(self, key, terms)

    monkeypatch.setattr(Ledger, "follow", follow)


def nothing_measured(monkeypatch):
    """What was promised counts, whatever an engine really takes."""
    monkeypatch.setattr(ledger.Claim, "total_bytes", property(lambda self: self.need.total_bytes))


def _with_policy(monkeypatch, **changes):
    original = Policy

    def evolved(*args, **facts):
        return original(*args, **(facts | changes))

    monkeypatch.setattr("pressure.playing.Policy", evolved)


MUTANTS = (
    (ledger_alone, "a browser opens and stays"),
    (no_dwell, "a critical second, every twenty seconds"),
    (no_cooldown, "critical, and one victim is not enough"),
    (largest_first, "a browser opens and stays"),
    (protection_ignored, "all are protected"),
    (unknown_is_critical, "readings fail for ten minutes"),
    (promised_twice, "two big models arrive at once"),
    (never_back, "a browser opens and closes"),
    (all_at_once, "several return, the most important one first"),
    (helpless_evictions, "another program eats nearly everything, and ours would not help"),
    (room_for_anybody, "a protected service outlasts a more important one, until it loses its protection"),
    (equals_displaced, "somebody equally important arrives"),
    (edits_unheard, "a priority is edited while memory is short"),
    (nothing_measured, "an engine takes more than the budget allows on a host that has it"),
)


@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_deliberate_bug_is_caught(mutant, name, monkeypatch):
    """With this bug its timeline does not end as it should, or an invariant breaks."""
    timeline = BY_NAME[name]
    mutant(monkeypatch)
    host, books = play(timeline)
    evicted = tuple(mark.name for mark in host.marks if mark.what == "evict")
    displaced = tuple(mark.name for mark in host.marks if mark.what == "displaced")
    seen = (evicted, displaced, tuple(host.running()))
    assert books.violations or seen != (timeline.evicted, timeline.displaced, timeline.ends)
