"""Deliberate bugs: each must break a timeline, or the timelines prove nothing."""

from functools import partial

import attrs
import pytest

from llmkube.runtimes import swap
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory import admission, eviction, eviction_manager, reservation
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.eviction import Skip
from llmkube.supervisor.memory.policy import Policy
from llmkube.supervisor.memory.reservation import Reservation
from pressure.playing import came_of, play
from pressure.timelines import TIMELINES
from sim.mutation import reject_broken_mutants

BY_NAME = {each.name: each for each in TIMELINES}


def budget_alone(monkeypatch):
    """Admit by a static budget alone, without a sample of the host: the yo-yo."""
    monkeypatch.setattr(Capacity, "headroom_bytes", property(lambda self: 1 << 50))


def no_dwell(monkeypatch):
    """Return an evicted service as soon as memory is normal for a moment."""
    monkeypatch.setattr(Policy, "dwell_seconds", lambda self, relapses: 0.001)
    _with_policy(monkeypatch, return_seconds=0.0)


def no_cooldown(monkeypatch):
    """Evict repeatedly, without waiting for the effect of the last eviction."""

    def hasty(decide, policy, state, look, now):
        settled = attrs.evolve(look, releasing=False, engines=_staying(look.engines))
        return decide(attrs.evolve(policy, cooldown_seconds=0.0, doubt_seconds=0.0), state, settled, now)

    _decide_with(monkeypatch, hasty)


def largest_first(monkeypatch):
    """Evict by size, and not by priority."""
    _see_engines(monkeypatch, lambda each: _with_terms(each, priority="normal"))


def protection_ignored(monkeypatch):
    """Evict protected engines like all others."""
    _see_engines(monkeypatch, lambda each: _with_terms(each, protected=False))


def unknown_is_critical(monkeypatch):
    """Take a failed reading for critical: the original's bug."""

    def afraid(decide, policy, state, look, now):
        if look.sample.level is Level.UNKNOWN:
            look = attrs.evolve(look, sample=attrs.evolve(look.sample, level=Level.CRITICAL))
        return decide(policy, state, look, now)

    _decide_with(monkeypatch, afraid)


def promised_twice(monkeypatch):
    """Reserve the memory of an engine that loads for the next one as well."""
    monkeypatch.setattr(Capacity, "unused_bytes", 0)
    monkeypatch.setattr(Capacity, "with_reservation", lambda self, request: self)


def loaded_is_full(monkeypatch):
    """Take an engine that has just loaded for one that holds its whole reservation."""
    monkeypatch.setattr(reservation, "UNMEASURED_SECONDS", 0.0)


def never_back(monkeypatch):
    """Never return an evicted service: the original's bug."""
    _admit_with(monkeypatch, lambda queue, host: (tuple(each for each in queue if not each.returns), host))


def all_at_once(monkeypatch):
    """Return all evicted services at the same moment."""
    monkeypatch.setattr(Reservation, "is_reloading", False)


def helpless_evictions(monkeypatch):
    """Evict an engine although that cannot help."""

    def hopeful(decide, policy, state, look, now):
        after, decision = decide(policy, state, look, now)
        if decision.skip is Skip.CANNOT_HELP:
            enough = attrs.evolve(look.sample, available_bytes=look.sample.total_bytes)
            return decide(policy, state, attrs.evolve(look, sample=enough), now)
        return after, decision

    _decide_with(monkeypatch, hopeful)


def room_for_anybody(monkeypatch):
    """Give the memory of a victim to the first service that requests it."""
    monkeypatch.setattr(Capacity, "after_exits", lambda self: self)


def equals_displaced(monkeypatch):
    """Displace a service for one of equal priority."""
    monkeypatch.setattr(swap, "_may_displace", lambda one, each: True)


def edits_unheard(monkeypatch):
    """Apply an edit of priority or protection only at the next start."""
    original, seen = Book.set_spec, set()

    def set_spec(self, key, spec, now):
        if key in seen:
            return ()
        seen.add(key)
        return original(self, key, spec, now)

    monkeypatch.setattr(Book, "set_spec", set_spec)


def nothing_measured(monkeypatch):
    """Account for reservations only, whatever an engine really takes."""
    monkeypatch.setattr(Reservation, "total_bytes", property(lambda self: self.need.total_bytes))


def _with_terms(engine, **changes):
    return attrs.evolve(engine, spec=attrs.evolve(engine.spec, **changes))


def _staying(engines):
    return tuple(each for each in engines if not each.is_exiting)


def _decide_with(monkeypatch, changed):
    """Replace the policy's decision about pressure."""
    monkeypatch.setattr(eviction_manager, "step", partial(changed, eviction.step))


def _see_engines(monkeypatch, changed):
    """Replace the engines that the policy sees."""

    def mistaken(decide, policy, state, look, now):
        return decide(policy, state, attrs.evolve(look, engines=tuple(changed(each) for each in look.engines)), now)

    _decide_with(monkeypatch, mistaken)


def _admit_with(monkeypatch, changed):
    """Replace the queue or the host of admission."""
    original = admission.step
    monkeypatch.setattr(admission, "step", lambda queue, host: original(*changed(queue, host)))


def _with_policy(monkeypatch, **changes):
    original = Policy

    def evolved(*args, **facts):
        return original(*args, **(facts | changes))

    monkeypatch.setattr("pressure.playing.Policy", evolved)


MUTANTS = (
    (budget_alone, "a browser opens and stays"),
    (no_dwell, "a critical second, every twenty seconds"),
    (no_cooldown, "critical, and one victim is not enough"),
    (largest_first, "a browser opens and stays"),
    (protection_ignored, "all are protected"),
    (unknown_is_critical, "readings fail for ten minutes"),
    (promised_twice, "two big models arrive at once"),
    (loaded_is_full, "a service waits for one that takes less than is reserved"),
    (never_back, "a browser opens and closes"),
    (all_at_once, "several return, the most important one first"),
    (helpless_evictions, "another program eats nearly everything, and ours would not help"),
    (room_for_anybody, "a protected service outlasts a more important one, until it loses its protection"),
    (equals_displaced, "an equally important service arrives"),
    (edits_unheard, "a priority is edited while memory is short"),
    (nothing_measured, "an engine takes more than the budget allows on a host that has it"),
)


@pytest.mark.soak
@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_deliberate_bug_is_caught(mutant, name, monkeypatch):
    """With this bug its timeline has another end, or an invariant breaks."""
    timeline = BY_NAME[name]
    mutant(monkeypatch)
    with reject_broken_mutants():
        host, books = play(timeline)
    assert books.violations or came_of(host) != (timeline.evicted, timeline.displaced, timeline.ends)
