"""Detect a stalled event loop from a thread, log the stack that blocks it, and export the loop's lag as a metric.

Trio's instruments would cost 1 µs per turn of the loop, several per cent of a small request. So the thread probes the
loop ten times a second while the process is busy. While it is idle, the thread only checks that the loop's tick, every
ten seconds, comes on time.
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
"""Period of the loop's tick; hosts renew their Leases on the same ticks."""

PROBE_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 0.9
"""Together one second: the time within which a stall in a busy process is logged."""

BUSY_SHARE: Final = 0.05
"""Share of a core above which a process is busy. An idle agent with 500 services uses 0.01."""

WINDOW_SECONDS: Final = 5.0
"""Minimum time over which the share is measured, so that renewing a Lease in 20 ms does not make a process busy."""

JOIN_SECONDS: Final = 1.0
_SCHEDULER: Final = "trio._core._run"
_BUCKETS: Final = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 20.0)


@attrs.frozen
class CpuSample:
    """A point in time, and the processor time that the process had used by then, both in seconds."""

    at: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> "CpuSample":
        """Take a sample."""
        return cls(time.monotonic(), time.process_time())


def is_busy(previous: CpuSample, now: CpuSample) -> bool:
    """Return whether the process was busy between two samples."""
    return now.cpu_seconds - previous.cpu_seconds > BUSY_SHARE * (now.at - previous.at)


def stack_of(frame: FrameType | None) -> str:
    """Return the calls from Trio's scheduler to a frame, one `file:line function` per line, without any values."""
    calls: list[str] = []
    while frame is not None:
        calls.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = None if frame.f_globals.get("__name__") == _SCHEDULER else frame.f_back
    return "\n".join(reversed(calls))


class LoopWatchdog(Collector):
    """Metrics of a program's event loop.

    Attributes:
        lag: Seconds by which the loop was late.
        stalls: Number of stalls of a second or longer.
    """

    def __init__(self) -> None:
        self.lag = Histogram(
            "llmkube_event_loop_lag_seconds",
            "Delay of the event loop, measured every 10 s, and every 0.1 s while the program is busy.",
            buckets=_BUCKETS,
            registry=None,
        )
        self.stalls = Counter(
            "llmkube_event_loop_stalls", "Number of times the event loop was blocked for at least 1 s.", registry=None
        )

    def collect(self) -> Iterable[Metric]:
        """Yield the families of both metrics."""
        yield from self.lag.collect()
        yield from self.stalls.collect()


@asynccontextmanager
async def open_loop_watchdog() -> AsyncIterator[LoopWatchdog]:
    """Watch this event loop during the block; the thread exits with the block."""
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
            thread.join(JOIN_SECONDS)  # microseconds, unless the thread is writing to a full pipe
        nursery.cancel_scope.cancel(reason="loop watchdog closed")


@attrs.define(eq=False)
class _Watch:
    """State shared by the thread and the loop."""

    watchdog: LoopWatchdog
    token: trio.lowlevel.TrioToken
    loop_thread: int
    tick_due: float = attrs.field(factory=lambda: time.monotonic() + TICK_SECONDS)
    answered: threading.Event = attrs.field(factory=threading.Event)
    ended: threading.Event = attrs.field(factory=threading.Event)

    async def run_ticks(self) -> NoReturn:
        """Record the delay of each tick. Runs in the loop."""
        while True:
            now = trio.current_time()
            due = (math.floor(now / TICK_SECONDS) + 1) * TICK_SECONDS
            self.tick_due = time.monotonic() + due - now
            if not await wait_tick(TICK_SECONDS):
                self.watchdog.lag.observe(max(0.0, trio.current_time() - due))

    def end(self) -> None:
        """Make the thread exit, whatever it is waiting for. Called from the loop."""
        self.ended.set()
        self.answered.set()

    def run(self) -> None:
        """Watch the loop until `end` is called. Runs in the thread."""
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
        """Schedule a function in the loop, and return once it has run, however long that takes."""
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
        log.error("event loop stalled", stack=stack_of(sys._current_frames().get(self.loop_thread)))  # noqa: SLF001
        self.answered.wait()
        if not self.ended.is_set():
            log.warning("event loop resumed", seconds=round(time.monotonic() - sent_at, 1))

    def _answer_probe(self, answered: threading.Event, sent_at: float) -> None:
        self.watchdog.lag.observe(time.monotonic() - sent_at)
        answered.set()
