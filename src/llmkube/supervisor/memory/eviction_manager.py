"""The loop that keeps a host from running out of memory: look, decide, carry out, look again.

It looks when the kernel says that something has changed, when the ledger asks for it, and at intervals: short ones
while anything moves, long ones that fall together with those of other tasks otherwise.

What each engine holds is measured beside that, by a task of its own: to add up a large process takes the kernel up to
two seconds, and a host that runs out of memory has not got them. A look decides on what was measured last.

A reading that cannot be true is no reading. For three samples in a row the last good one stands in for it; after that
the level is UNKNOWN, under which nothing is admitted and nothing is evicted: a model must not die of a failed read.
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
"""For so many samples in a row the last good one is held."""

IMPLAUSIBLE_FACTOR: Final = 4
"""A total that has changed by more than this factor needs a second reading that agrees: a limit may have been set, but
a half-read file is likelier."""


RELEASE_SECONDS: Final = 0.25
"""Between two looks while the memory of an engine that has ended is not back."""

MOVING_SECONDS: Final = 1.0
"""Between two looks while memory is short, or engines load or go."""

AWAITED_SECONDS: Final = 2.0
"""Between two looks while a service waits for memory."""

CALM_SECONDS: Final = 5.0
"""Between two looks otherwise."""

MEASURE_SECONDS: Final = 30.0
"""Between two measurements of every engine while nothing moves: to add up what a large process holds takes the kernel
tens of milliseconds."""

UNCHANGED_SHARE: Final = 0.01
"""Of the host's memory. While less than this comes or goes, and nothing else happens, there is nothing to decide."""

SIGNAL_PAUSE_SECONDS: Final = 0.2
"""After the kernel has spoken: it may go on without a pause."""


@attrs.frozen
class Readings:
    """What is known of a host from the samples so far; begin with `Readings()`."""

    good: Sample | None = None
    missed: int = 0
    """Samples in a row that could not be believed."""
    doubted_total_bytes: int = 0
    """The total that the last sample claimed, if that was why it was not believed."""

    @property
    def trusted(self) -> Sample:
        """The sample to decide by; its level is UNKNOWN when there has been no good one for too long, or none ever."""
        if self.good is None:
            return Sample(0, 0, Level.UNKNOWN, why="this host's memory could not be read yet")
        if self.missed > MAX_MISSED_SAMPLES:
            return attrs.evolve(
                self.good, level=Level.UNKNOWN, why=f"none of the last {self.missed} samples could be believed"
            )
        return self.good


def update_readings(before: Readings, sample: Sample) -> Readings:
    """Take in one sample; decide by `trusted` of what is returned."""
    if not _is_plausible(sample):
        return attrs.evolve(before, missed=before.missed + 1, doubted_total_bytes=0)
    implausible = before.good is not None and _is_implausible(before.good.total_bytes, sample.total_bytes)
    agreed = before.doubted_total_bytes and not _is_implausible(before.doubted_total_bytes, sample.total_bytes)
    if implausible and not agreed:
        return attrs.evolve(before, missed=before.missed + 1, doubted_total_bytes=sample.total_bytes)
    return Readings(sample)


def _is_plausible(sample: Sample) -> bool:
    """Whether a sample's figures can be true, and are known."""
    figures = (
        sample.total_bytes,
        sample.available_bytes,
        sample.swap_out_bytes_per_second,
        sample.compress_bytes_per_second,
        sample.device_limit_bytes or 0,
    )
    if sample.level is Level.UNKNOWN or not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        return False
    return 0 < sample.total_bytes >= sample.available_bytes


def _is_implausible(one: int, other: int) -> bool:
    return max(one, other) > IMPLAUSIBLE_FACTOR * min(one, other)


@attrs.frozen
class _Measurement:
    """What engines held, and what the host had left then."""

    sample: Sample
    footprints: Mapping[int, int]


@attrs.define(eq=False)
class EvictionManager:
    """Keep one host within its memory.

    Attributes:
        memory: The host's.
        ledger: Who has been promised what of it.
        announce: Called with what was decided, and with what had been decided before.
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
    _measurement: _Measurement | None = None  # and not taken in yet
    _measuring: bool = False
    _measure_requests: Mailbox[Sample] = attrs.field(factory=lambda: Mailbox(UNREADABLE))

    async def run(self) -> None:
        """Never return: look and act."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_signals)
            nursery.start_soon(self._run_measurements)
            while True:
                self.ledger.sample_requested = trio.Event()  # what is asked for during a look is asked for the next one
                await self.assess()
                now, pace = trio.current_time(), self._interval()
                with trio.move_on_at((math.floor(now / pace) + 1) * pace):
                    await self.ledger.sample_requested.wait()

    async def assess(self) -> None:
        """Look once and carry out what follows."""
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
        """Whether a decision would be the last one again: to go through hundreds of engines for it costs something."""
        last, book = self._decided_on, self.ledger.book
        if now - self._decided_at >= MEASURE_SECONDS or self._measurement is not None or self._is_short:
            return False
        if book.records.is_moving or book.records.is_awaited or book.is_releasing or book.records.is_unmeasured:
            return False
        alike = abs(sample.available_bytes - last.available_bytes) < UNCHANGED_SHARE * sample.total_bytes
        return sample.level is Level.NORMAL is last.level and sample.total_bytes == last.total_bytes and alike

    def _apply_measurement(self) -> None:
        """Footprints count together with what the host had left then: since then an engine may have ended."""
        if self._measurement is None:
            return
        awaited = self.ledger.book.records.is_unmeasured
        self.ledger.observe(self._measurement.sample, self._measurement.footprints)
        self._measurement = None
        if awaited and not self.ledger.book.records.is_unmeasured:
            self._measured_at = -math.inf  # an engine has loaded since this began, and may have held less then

    def _should_measure(self, sample: Sample, now: float) -> bool:
        """Not at every look, since it is the most expensive part of one; never while the last one is under way."""
        fresh = self._last_decision is None or self._last_decision.level is not Level.CRITICAL
        book = self.ledger.book
        if self._measuring or not book.records.pids() or (sample.level is Level.CRITICAL and fresh):
            return False  # at the first sign of CRITICAL the processor has something better to do
        pause = (
            MOVING_SECONDS
            if self._is_short or book.records.is_moving or sample.level > Level.NORMAL
            else MEASURE_SECONDS
        )
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
            self._log("evicting", decision.evict)
        if decision.skip is not None and (before is None or before.skip is not decision.skip):
            self.ledger.book.skips[decision.skip] += 1
            log.debug("no service evicted", reason=str(decision.skip), note=decision.note)
        if decision.dry_run_evict is not None and (before is None or before.dry_run_evict is None):
            self._log("would evict", decision.dry_run_evict)

    def _log(self, message: str, evict: Eviction) -> None:
        log.warning(message, name=evict.key.name, namespace=evict.key.namespace, cause=str(evict.cause), why=evict.why)
