"""The loop that keeps a host from running out of memory: look, decide, carry out, look again.

It looks when the kernel says that something has changed, when the ledger asks for it, and at intervals: short ones
while anything moves, long ones that fall together with everybody else's otherwise.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import structlog
import trio

from llmkube.supervisor.eviction import Decision, Evict, State, step
from llmkube.supervisor.hostmem import HostMemory, Level, Sample
from llmkube.supervisor.ledger import Ledger
from llmkube.supervisor.readings import Readings, steady

log = structlog.get_logger(__name__)

RELEASE_SECONDS: Final = 0.25
"""Between two looks while the memory of an engine that has ended is not back."""

MOVING_SECONDS: Final = 1.0
"""Between two looks while memory is short, or engines load or go."""

AWAITED_SECONDS: Final = 2.0
"""Between two looks while somebody waits for memory."""

CALM_SECONDS: Final = 5.0
"""Between two looks otherwise."""

MEASURE_SECONDS: Final = 30.0
"""Between two measurements of every engine while nothing moves: to add up what a large process holds takes the kernel
tens of milliseconds."""

SIGNAL_PAUSE_SECONDS: Final = 0.2
"""After the kernel has spoken: it may go on without a pause."""


@attrs.define(eq=False)
class Pressure:
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
    _state: State = State()
    _before: Decision | None = None
    _measured_at: float = -math.inf

    async def run(self) -> None:
        """Never return: look and act."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_signals)
            while True:
                self.ledger.look_soon = trio.Event()  # what is asked for during a look is asked for the next one
                await self.look()
                now, pace = trio.current_time(), self._pace()
                with trio.move_on_at((math.floor(now / pace) + 1) * pace):
                    await self.ledger.look_soon.wait()

    async def look(self) -> None:
        """Look once and carry out what follows."""
        self._readings = steady(self._readings, await self.memory.sample())
        sample = self._readings.believed
        self.ledger.observe(sample, await self._measure(sample))
        now = trio.current_time()
        self._state, decision = step(self.ledger.rules.policy, self._state, self.ledger.look(sample), now)
        before, self._before = self._before, decision
        self._count(decision, before)
        self.ledger.decide(decision)
        self.announce(decision, before)

    async def _run_signals(self) -> None:
        while True:
            await self.memory.wait_change()
            self.ledger.look_nowait()
            await trio.sleep(SIGNAL_PAUSE_SECONDS)

    async def _measure(self, sample: Sample) -> Mapping[int, int]:
        """What each engine holds; not at every look, since it is the most expensive part of one."""
        now = trio.current_time()
        pause = MOVING_SECONDS if self._short or self.ledger.moving or sample.level > Level.NORMAL else MEASURE_SECONDS
        pids = self.ledger.pids()
        if not pids or (now - self._measured_at < pause and not self.ledger.unmeasured):
            return {}
        fresh = self._before is None or self._before.level is not Level.CRITICAL
        if sample.level is Level.CRITICAL and fresh and now - self._measured_at < 2 * MEASURE_SECONDS:
            return {}  # every millisecond counts now, and what was measured lately is good enough to choose by
        self._measured_at = now
        return await self.memory.footprint(pids)

    @property
    def _short(self) -> bool:
        return self._state.level is not Level.NORMAL or self._state.pressed

    def _pace(self) -> float:
        if self.ledger.releasing:
            return RELEASE_SECONDS
        if self._short or self.ledger.moving:
            return MOVING_SECONDS
        return AWAITED_SECONDS if self.ledger.awaited else CALM_SECONDS

    def _count(self, decision: Decision, before: Decision | None) -> None:
        if decision.evict is not None:
            self._log("evicting", decision.evict)
        if decision.skip is not None and (before is None or before.skip is not decision.skip):
            self.ledger.skips[decision.skip] += 1
            log.debug("nobody evicted", reason=str(decision.skip), note=decision.note)
        if decision.would is not None and (before is None or before.would is None):
            self._log("would evict", decision.would)

    def _log(self, message: str, evict: Evict) -> None:
        log.warning(message, name=evict.key.name, namespace=evict.key.namespace, cause=str(evict.cause), why=evict.why)
