"""The progress of a fetch: bytes, rate and remaining time."""

import datetime
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import attrs
import trio

from llmkube.base.units import format_bytes, format_duration

Stage = Literal["copying", "verifying", "resolving", "waiting", "downloading"]

_WINDOW_SECONDS: Final = 10.0
_SAMPLE_SECONDS: Final = 0.25


@attrs.frozen
class Progress:
    """The progress of a fetch: `done_bytes` of `total_bytes` within one stage.

    Attributes:
        stage: The current stage. `resolving` queries the server for the files; `waiting` is a pause that the server
            requested or that follows a failure. Neither has bytes.
        done_bytes: Bytes so far, over all parts.
        total_bytes: Bytes in total; 0 while unknown.
        rate: Bytes per second over the last seconds; None while unknown.
        seconds_left: Of this stage; None while unknown.
        note: Why it waits, or which of several files was chosen.
        since: The start of the wait, during which no byte has arrived.
        until: The time of the next attempt; None while unknown, and during an attempt.
        reason: The reason of the failure after which it waits; "" if there was none.
    """

    stage: Stage
    done_bytes: int = 0
    total_bytes: int = 0
    rate: float | None = None
    seconds_left: float | None = None
    note: str = ""
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.stage == "waiting":
            return self._wait_text
        parts: list[str] = [self.stage]
        if self.total_bytes:
            percent = 100 * self.done_bytes // self.total_bytes
            parts.append(f"{format_bytes(self.done_bytes)} of {format_bytes(self.total_bytes)} ({percent} %)")
        elif self.done_bytes:
            parts.append(format_bytes(self.done_bytes))
        line = ": ".join(parts)
        if self.rate is not None:
            line += f", {format_bytes(self.rate)}/s"
        if self.seconds_left is not None:
            line += f", {format_duration(self.seconds_left)} left"
        return f"{line} ({self.note})" if self.note else line

    @property
    def _wait_text(self) -> str:
        """The line for a wait; with absolute times, since it may be displayed for long."""
        line = f"waiting since {_format_time(self.since)}" if self.since is not None else "waiting"
        line += f": {self.note}" if self.note else ""
        return f"{line}; next attempt at {_format_time(self.until)}" if self.until is not None else line


def _format_time(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


OnProgress = Callable[[Progress], None]


class Rate:
    """Bytes per second over the last ten seconds; callers pass times, in seconds of one clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, done_bytes: int) -> None:
        """Record the current number of bytes; a lower number than before restarts the measurement."""
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()
        if len(self._samples) >= 2 and now - self._samples[-2][0] < _SAMPLE_SECONDS:
            self._samples.pop()  # replace the newest sample until enough time has passed to keep it
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW_SECONDS:
            self._samples.popleft()

    def reset(self) -> None:
        """Forget all samples, so that a pause does not lower the rate."""
        self._samples.clear()

    @property
    def bytes_per_second(self) -> float | None:
        """The rate; None before two samples."""
        if len(self._samples) < 2:
            return None
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) if end > start else None

    def seconds_left(self, total_bytes: int) -> float | None:
        """Return the seconds for the rest at this rate; None without a rate."""
        rate = self.bytes_per_second
        if not rate or not total_bytes:
            return None
        return max(total_bytes - self._samples[-1][1], 0) / rate


@attrs.define(eq=False)
class Meter:
    """Combines the progress of a job's transfers into the job's progress.

    Attributes:
        progress: Called with each progress.
        utcnow: The wall clock, for the start and end of a wait.
        total_bytes: Of all files; 0 while unknown.
        finished_bytes: Of the complete files.
        chosen: The chosen quantization, for people; empty if there was no choice.
        projector: The projector of the chosen model in its repository; empty if there is none.
    """

    progress: OnProgress
    utcnow: Callable[[], datetime.datetime]
    total_bytes: int = 0
    finished_bytes: int = 0
    chosen: str = ""
    projector: str = ""
    _rate: Rate = attrs.field(factory=Rate)
    _waiting_since: datetime.datetime | None = None
    _done_bytes: int = 0

    def downloading(self, size_bytes: int, part_total_bytes: int | None) -> None:
        """Report the bytes of one file so far, and its total size if known."""
        done = self.finished_bytes + size_bytes
        total = self.total_bytes or (part_total_bytes or 0)
        if done != self._done_bytes:
            self._waiting_since, self._done_bytes = None, done
        self._rate.add(trio.current_time(), done)
        rate, left = self._rate.bytes_per_second, self._rate.seconds_left(total)
        self.progress(Progress("downloading", done, total, rate, left, self.chosen))

    def waiting(self, seconds: float, note: str, reason: str = "") -> None:
        """Report a pause and its cause; attempts that receive no byte do not reset the start of the wait."""
        self._rate.reset()
        now = self.utcnow()
        self._waiting_since = self._waiting_since or now
        until = now + datetime.timedelta(seconds=seconds) if seconds else None
        left = seconds or None
        since = self._waiting_since
        self.progress(Progress("waiting", seconds_left=left, note=note, since=since, until=until, reason=reason))
