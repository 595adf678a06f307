"""The loop that keeps a host from running out of memory: sample, decide, carry out, repeat.

It samples when the kernel signals a change, when the ledger requests it, and at intervals: short ones while figures
change, otherwise long ones that coincide with the ticks of other tasks.

A separate task measures the memory of each engine: the kernel takes up to two seconds to add up a large process, which
is too long for a host that runs out of memory. A decision uses the latest measurement.

An implausible sample is discarded. For three samples in a row the last good one is used instead; after that the level
is UNKNOWN, at which nothing is admitted and nothing is evicted: a failed read must not stop a model.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.supervisor.host.sample import UNREADABLE, HostMemory, Level, Sample
from llmkube.supervisor.memory.eviction import Decision, Eviction, PressureState, step
from llmkube.supervisor.memory.ledger import Ledger

log = structlog.get_logger(__name__)

MAX_MISSED_SAMPLES: Final = 3
"""Consecutive implausible samples for which the last good one is used."""

IMPLAUSIBLE_FACTOR: Final = 4
"""A total that has changed by more than this factor needs a second reading that agrees: a limit may have been set, but
a half-read file is more likely."""

RELEASE_SECONDS: Final = 0.25
"""Time between two samples while the memory of an exited engine has not been released."""

MOVING_SECONDS: Final = 1.0
"""Time between two samples while memory is short, or engines load or exit."""

AWAITED_SECONDS: Final = 2.0
"""Time between two samples while a service waits for memory."""

CALM_SECONDS: Final = 5.0
"""Time between two samples otherwise."""

MEASURE_SECONDS: Final = 30.0
"""Time between two measurements of all engines while nothing changes: the kernel takes tens of milliseconds to add up a
large process."""

UNCHANGED_SHARE: Final = 0.01
"""Share of the host's memory. A smaller change alone needs no new decision."""

SIGNAL_PAUSE_SECONDS: Final = 0.2
"""Pause after a signal of the kernel, which may repeat it continuously."""


@attrs.frozen
class Readings:
    """The samples of a host so far; begin with `Readings()`."""

    good: Sample | None = None
    """The last plausible sample."""
    missed: int = 0
    """Implausible samples since then."""
    doubted_total_bytes: int = 0
    """The total of the last sample, if that was why it was implausible."""

    @property
    def trusted(self) -> Sample:
        """The sample to decide on; its level is UNKNOWN if there was no plausible one for too long, or ever."""
        if self.good is None:
            return Sample(0, 0, Level.UNKNOWN, why="this machine's memory has not been read yet")
        if self.missed > MAX_MISSED_SAMPLES:
            why = f"none of the last {self.missed} samples was plausible"
            return attrs.evolve(self.good, level=Level.UNKNOWN, why=why)
        return self.good


def update_readings(before: Readings, sample: Sample) -> Readings:
    """Return the readings with one more sample; decide on their `trusted` sample."""
    if not _is_plausible(sample):
        return attrs.evolve(before, missed=before.missed + 1, doubted_total_bytes=0)
    has_jumped = before.good is not None and _differs_too_much(before.good.total_bytes, sample.total_bytes)
    agreed = before.doubted_total_bytes and not _differs_too_much(before.doubted_total_bytes, sample.total_bytes)
    if has_jumped and not agreed:
        return attrs.evolve(before, missed=before.missed + 1, doubted_total_bytes=sample.total_bytes)
    return Readings(sample)


def _is_plausible(sample: Sample) -> bool:
    """Whether a sample is readable and its figures are possible."""
    rates = sample.swap_out_bytes_per_second, sample.compress_bytes_per_second
    figures = sample.total_bytes, sample.available_bytes, *rates, sample.device_limit_bytes or 0
    if sample.level is Level.UNKNOWN or not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        return False
    return 0 < sample.total_bytes >= sample.available_bytes


def _differs_too_much(one: int, other: int) -> bool:
    return max(one, other) > IMPLAUSIBLE_FACTOR * min(one, other)


@attrs.frozen
class _Measurement:
    """The memory of the engines by pid, and the sample of the host at that time."""

    sample: Sample
    footprints: Mapping[int, int]


@attrs.define(eq=False)
class EvictionManager:
    """Keep one host within its memory.

    Attributes:
        announce: Called with each decision and the one before it.
    """

    memory: HostMemory
    ledger: Ledger
    announce: Callable[[Decision, Decision | None], None] = lambda *_: None
    _readings: Readings = Readings()
    _state: PressureState = PressureState()
    _last_decision: Decision | None = None
    _decided_on: Sample = UNREADABLE
    _decided_at: float = -math.inf
    _measured_at: float = -math.inf
    _measurement: _Measurement | None = None  # not applied yet
    _measuring: bool = False
    _measure_requests: Mailbox[Sample] = attrs.field(factory=lambda: Mailbox(UNREADABLE))

    async def run(self) -> None:
        """Sample and act, forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_signals)
            nursery.start_soon(self._run_measurements)
            while True:
                self.ledger.sample_requested = trio.Event()  # a request from now on is one for the next sample
                await self.assess()
                now, pace = trio.current_time(), self._interval()
                with trio.move_on_at(min((math.floor(now / pace) + 1) * pace, self.ledger.book.next_at)):
                    await self.ledger.sample_requested.wait()

    async def assess(self) -> None:
        """Take one sample, decide, and carry out the decision."""
        self._readings = update_readings(self._readings, await self.memory.sample())
        sample, now = self._readings.trusted, trio.current_time()
        if self._is_unchanged(sample, now):
            return
        self._decided_on, self._decided_at = sample, now
        self._apply_measurement()
        self.ledger.observe(sample, {})
        if self._should_measure(sample, now):
            self._measuring, self._measured_at = True, now
            self._measure_requests.put_nowait(sample)
        self._state, decision = step(self.ledger.book.rules.policy, self._state, self.ledger.book.assess(sample), now)
        before, self._last_decision = self._last_decision, decision
        self._report_decision(decision, before)
        self.ledger.decide(decision)
        self.announce(decision, before)

    async def _run_signals(self) -> None:
        while True:
            await self.memory.wait_change()
            self.ledger.request_sample()
            await trio.sleep(SIGNAL_PAUSE_SECONDS)

    async def _run_measurements(self) -> None:
        done = 0
        while True:
            sample = await self._measure_requests.wait_newer(done)
            self._measurement = _Measurement(sample, await self.memory.footprint(self.ledger.book.records.pids()))
            self._measuring, done = False, self._measure_requests.version
            self.ledger.request_sample()

    def _is_unchanged(self, sample: Sample, now: float) -> bool:
        """Whether the decision would be the same again; deciding costs something with hundreds of engines."""
        last, book = self._decided_on, self.ledger.book
        if now - self._decided_at >= MEASURE_SECONDS or self._measurement is not None or self._is_short:
            return False
        if book.records.is_moving or book.records.is_awaited or book.is_releasing or book.records.is_unmeasured:
            return False
        alike = abs(sample.available_bytes - last.available_bytes) < UNCHANGED_SHARE * sample.total_bytes
        return sample.level is Level.NORMAL is last.level and sample.total_bytes == last.total_bytes and alike

    def _apply_measurement(self) -> None:
        """Record the pending measurement with its own sample: an engine may have exited since."""
        if self._measurement is None:
            return
        awaited = self.ledger.book.records.is_unmeasured
        self.ledger.observe(self._measurement.sample, self._measurement.footprints)
        self._measurement = None
        if awaited and not self.ledger.book.records.is_unmeasured:
            self._measured_at = -math.inf  # an engine has loaded since it began, and may have held less then

    def _should_measure(self, sample: Sample, now: float) -> bool:
        """Whether to measure now: not with every sample, since it is expensive, and one measurement at a time."""
        fresh = self._last_decision is None or self._last_decision.level is not Level.CRITICAL
        book = self.ledger.book
        if self._measuring or not book.records.pids() or (sample.level is Level.CRITICAL and fresh):
            return False  # at the first sign of CRITICAL, evicting comes first
        is_changing = self._is_short or book.records.is_moving or sample.level > Level.NORMAL
        pause = MOVING_SECONDS if is_changing else MEASURE_SECONDS
        if book.records.is_unmeasured:
            pause = RELEASE_SECONDS
        return now - self._measured_at >= pause

    @property
    def _is_short(self) -> bool:
        return self._state.level is not Level.NORMAL or self._state.under_pressure

    def _interval(self) -> float:
        if self.ledger.book.is_releasing:
            return RELEASE_SECONDS
        if self._is_short or self.ledger.book.records.is_moving or self.ledger.book.records.is_unmeasured:
            return MOVING_SECONDS
        return AWAITED_SECONDS if self.ledger.book.records.is_awaited else CALM_SECONDS

    def _report_decision(self, decision: Decision, before: Decision | None) -> None:
        if decision.evict is not None:
            self._log("service evicted", decision.evict)
        if decision.skip is not None and (before is None or before.skip is not decision.skip):
            self.ledger.book.skips[decision.skip] += 1
            log.debug("eviction skipped", reason=str(decision.skip), note=decision.note)
        if decision.dry_run_evict is not None and (before is None or before.dry_run_evict is None):
            self._log("eviction simulated", decision.dry_run_evict)

    def _log(self, message: str, evict: Eviction) -> None:
        log.warning(message, name=evict.key.name, namespace=evict.key.namespace, cause=str(evict.cause), why=evict.why)
