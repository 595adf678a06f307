"""Invariants of a host, computed from the host itself and not from the ledger."""

import math

import attrs
import trio

from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Cause
from llmkube.supervisor.memory.reservation import rank_of
from pressure.carrier import GIB

RETURN_SECONDS = 60.0
YOYO_SECONDS = 600.0


@attrs.define(eq=False)
class Books:
    """The history of one host, and the violations found in it."""

    overrun: bool = False
    violations: list[str] = attrs.field(factory=list)
    _evictions: int = 0
    _marks: int = 0
    _could_since: dict = attrs.field(factory=dict)
    _others: dict = attrs.field(factory=dict)  # the least that others held since a start, less the total; and when
    _relapsed: set = attrs.field(factory=set)

    def look(self, host, decision):
        """Check all invariants once."""
        now = trio.current_time()
        self._check_ceiling(host, now)
        self._check_evictions(host, now)
        self._check_returns(host, decision, now)

    def _report(self, now, text):
        self.violations.append(f"{now:.1f}: {text}")

    def _check_ceiling(self, host, now):
        if not self.overrun and host.memory.broken is None and host.memory.available_bytes < 0:
            self._report(now, f"the host is out of memory by {-host.memory.available_bytes / GIB:.1f} GiB")
        for mark in host.marks[self._marks :]:
            if mark.what == "start":
                self._check_start(host, mark, now)
                self._check_turn(host, mark, now)
            if mark.what == "start":
                self._others[mark.name] = (math.inf, mark.at)
        self._marks = len(host.marks)
        others = host.memory.other - host.memory.total
        self._others = {name: (min(least, others), at) for name, (least, at) in self._others.items()}

    def _check_start(self, host, mark, now):
        view = host.ledger.book.capacity(now)
        held = sum(each.total_bytes for each in view.reservations)
        if held > view.budget.limit_bytes:
            self._report(now, f"{mark.name} was started above the budget: {held / GIB:.1f} GiB are promised")
        if host.engines[mark.name].needs * GIB > host.policy.small_bytes and view.headroom_bytes < -GIB // 2:
            self._report(now, f"{mark.name} was started into {view.headroom_bytes / GIB:.1f} GiB of headroom")

    def _check_turn(self, host, mark, now):
        """Of the evicted engines, one loads at a time."""
        state, returns = {}, set()
        for each in host.marks:
            state[each.name] = each.what
            if each.what == "evict":
                returns.add(each.name)
            if each.what == "ready" and each.name in returns:
                returns.discard(each.name)
        loading = [name for name in returns if state[name] == "start"]
        if mark.name in loading and len(loading) > 1:
            self._report(now, f"{loading} return at the same time")

    def _check_evictions(self, host, now):
        fresh = [(at, evict) for at, evict in host.evictions if evict.cause is not Cause.DISPLACED]
        for number in range(self._evictions, len(fresh)):
            at, evict = fresh[number]
            victim = host.engines[evict.key.name]
            if victim.protected:
                self._report(at, f"{victim.name} is protected, and was evicted")
            if number and at - fresh[number - 1][0] < host.policy.cooldown_seconds:
                self._report(at, f"{victim.name} was evicted within the cool-down")
            self._check_help(host, victim, evict, at)
            self._check_yoyo(host, victim, at)
        self._evictions = len(fresh)

    def _check_help(self, host, victim, evict, at):
        """An eviction must be able to help, and must not spare a less important engine."""
        alive = [each.engine for each in host.memory.processes if each.ended is None]
        gain = sum(max(e.needs, e.takes or 0, 0) for e in alive if not e.protected) + sum(
            max(0, each.holds(at) / GIB - max(each.engine.needs, each.engine.takes or 0))
            for each in host.memory.processes
            if each.ended is None and not each.engine.protected
        )
        line = host.policy.thresholds.critical_bytes(int(host.memory.total * GIB))
        lacking = line - max(0, host.memory.available_bytes)
        if evict.cause is Cause.CRITICAL and gain * GIB < lacking:
            self._report(at, f"{victim.name} was evicted, and no eviction could have helped")
        if evict.cause is not Cause.IDLE:
            leaving = {each.key.name for _, each in host.evictions}
            spared = [
                e.name
                for e in alive
                if not e.protected
                and rank_of(e.priority) < rank_of(victim.priority)
                and e.name not in leaving
                and e.needs >= 0.2
            ]
            if spared:
                self._report(at, f"{victim.name} was evicted and {spared} spared")

    def _check_yoyo(self, host, victim, at):
        back = self._others.get(victim.name)
        evicted_before = len([1 for mark in host.marks if mark.name == victim.name and mark.what == "evict"]) > 1
        if back is None or not evicted_before or at - back[1] - victim.load_seconds > YOYO_SECONDS:
            return
        forced = host.memory.level is not None or host.forced
        grown = host.memory.other - host.memory.total - back[0] >= 0.5
        if not grown and not forced:
            self._report(at, f"yo-yo: {victim.name} came back at {back[1]:.0f} and was evicted again")
        if not grown:
            self._relapsed.add(victim.name)

    def _check_returns(self, host, decision, now):
        """A service that fits is back within a minute of normal pressure, plus the loads before it."""
        normal = decision.level is Level.NORMAL
        book = host.ledger.book
        view = book.capacity(now)
        loading = any(each.is_reloading for each in view.reservations) or book.records.is_moving
        evicted = {each.key.name: each.key for each in host.engines.values() if book.evicted(each.key)}
        for name in [*self._could_since]:
            if name not in evicted:
                del self._could_since[name]
        for name, key in evicted.items():
            waits = key in {each.key for each in book.records.requests()}
            size = max(host.engines[name].needs * GIB, host.peaks.get(name, 0)) * 1.05
            free = min(view.free_bytes, view.headroom_bytes)
            if host.engines[name].on_device:
                free = min(free, *view.device_pools.values(), free)
            fits = size <= free
            if normal and fits and waits and not loading and name not in self._relapsed:
                since = self._could_since.setdefault(name, now)
                if now - since > RETURN_SECONDS + 5:
                    self._report(now, f"{name} has fitted since {since:.0f} and is not back")
                    self._could_since[name] = now
            else:
                self._could_since.pop(name, None)
