"""A thread notices an event loop that stands still, and logs where; how late the loop is stands in `/metrics`.

Trio's instruments could tell the thread of every turn of the loop, at 1 µs each: several per cent of a small request.
So it asks, ten times a second while the process works. While that is idle it only compares the loop's tick, which
comes every ten seconds, with the clock.
"""

import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Final, NoReturn

import attrs
import structlog
import trio
from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from llmkube.base.waiting import wait_tick

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 10.0
"""The period of the loop's tick; hosts renew their Leases in the same moments."""

PROBE_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 0.9
"""Together a second: how long a loop in a working process stands still at most before that is logged."""

BUSY_SHARE: Final = 0.05
"""Of a core. An idle agent with 500 services takes 0.01."""

WINDOW_SECONDS: Final = 5.0
"""Over how long that is measured at least; a Lease that is renewed in 20 ms is no work."""

JOIN_SECONDS: Final = 1.0
_SCHEDULER: Final = "trio._core._run"
_BUCKETS: Final = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 20.0)


@attrs.frozen
class CpuSample:
    """The moment of a look, and the processor time that the process had used by then, both in seconds."""

    at: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> "CpuSample":
        """Look."""
        return cls(time.monotonic(), time.process_time())


def is_busy(previous: CpuSample, now: CpuSample) -> bool:
    """Return whether the process has worked between two looks."""
    return now.cpu_seconds - previous.cpu_seconds > BUSY_SHARE * (now.at - previous.at)


def stack_of(frame: FrameType | None) -> str:
    """Return the calls that lead to a frame from Trio's scheduler on, as `file:line function`; without any values."""
    calls: list[str] = []
    while frame is not None:
        calls.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = None if frame.f_globals.get("__name__") == _SCHEDULER else frame.f_back
    return "\n".join(reversed(calls))


class LoopWatchdog(Collector):
    """What a program's `/metrics` say of its event loop.

    Attributes:
        lag: Seconds by which the loop was late.
        stalls: How often it stood still for a second.
    """

    def __init__(self) -> None:
        self.lag = Histogram(
            "llmkube_event_loop_lag_seconds",
            "How late the event loop ran what was due: every 10 s, every 0.1 s while the program works.",
            buckets=_BUCKETS,
            registry=None,
        )
        self.stalls = Counter(
            "llmkube_event_loop_stalls", "Times that the event loop stood still for a second.", registry=None
        )

    def collect(self) -> Iterable[Metric]:
        """Return both families."""
        yield from self.lag.collect()
        yield from self.stalls.collect()


@asynccontextmanager
async def open_loop_watchdog() -> AsyncIterator[LoopWatchdog]:
    """Watch this event loop for as long as the block; the thread has ended when this returns."""
    watchdog = LoopWatchdog()
    watch = _Watch(watchdog, trio.lowlevel.current_trio_token(), threading.get_ident())
    thread = threading.Thread(target=watch.run, name="loop-watchdog")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run_ticks)
        thread.start()
        try:
            yield watchdog
        finally:
            watch.end()
            thread.join(JOIN_SECONDS)  # it waits for nothing now: microseconds, unless it writes to a full pipe
        nursery.cancel_scope.cancel(reason="the program ends")


@attrs.define(eq=False)
class _Watch:
    """What the thread and the loop share."""

    watchdog: LoopWatchdog
    token: trio.lowlevel.TrioToken
    loop_thread: int
    tick_due: float = attrs.field(factory=lambda: time.monotonic() + TICK_SECONDS)
    answered: threading.Event = attrs.field(factory=threading.Event)
    ended: threading.Event = attrs.field(factory=threading.Event)

    async def run_ticks(self) -> NoReturn:
        """Note how late each tick is. For the loop."""
        while True:
            now = trio.current_time()
            due = (math.floor(now / TICK_SECONDS) + 1) * TICK_SECONDS
            self.tick_due = time.monotonic() + due - now
            if not await wait_tick(TICK_SECONDS):
                self.watchdog.lag.observe(max(0.0, trio.current_time() - due))

    def end(self) -> None:
        """Let the thread end, whatever it waits for. For the loop."""
        self.ended.set()
        self.answered.set()

    def run(self) -> None:
        """Look after the loop until the end. For the thread."""
        previous, busy = CpuSample.now(), True
        while True:
            overdue_in = self._overdue_at - time.monotonic()
            self.ended.wait(PROBE_SECONDS if busy else max(PROBE_SECONDS, overdue_in))
            if self.ended.is_set():
                return
            now = CpuSample.now()
            if now.at - previous.at >= WINDOW_SECONDS:
                busy, previous = is_busy(previous, now), now
            if busy or now.at > self._overdue_at:
                self._probe()

    @property
    def _overdue_at(self) -> float:
        return self.tick_due + ANSWER_SECONDS

    def _probe(self) -> None:
        """Let the loop run a function, and return when it has, however long that takes."""
        self.answered = threading.Event()
        if self.ended.is_set():
            return
        sent_at = time.monotonic()
        try:
            self.token.run_sync_soon(self._answer_probe, self.answered, sent_at)
        except trio.RunFinishedError:
            return
        if self.answered.wait(ANSWER_SECONDS):
            return
        self.watchdog.stalls.inc()
        log.error("the event loop stands still", stack=stack_of(sys._current_frames().get(self.loop_thread)))  # noqa: SLF001
        self.answered.wait()
        if not self.ended.is_set():
            log.warning("the event loop moves again", seconds=round(time.monotonic() - sent_at, 1))

    def _answer_probe(self, answered: threading.Event, sent_at: float) -> None:
        self.watchdog.lag.observe(time.monotonic() - sent_at)
        answered.set()
