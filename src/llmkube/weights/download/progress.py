"""How far a fetch has come, how fast it goes, and when it will be done."""

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
    """How far a fetch has come: `done_bytes` of `total_bytes` within one stage.

    Attributes:
        stage: What happens now. `resolving` asks the server what there is, `waiting` keeps a pause that it asked for
            or that a failure calls for; both have no bytes of their own.
        done_bytes: Bytes so far, over all parts.
        total_bytes: Bytes in all; 0 while not known.
        rate: Bytes per second over the last seconds; None while there is nothing to tell.
        seconds_left: Of this stage; None while there is nothing to tell.
        note: Why it waits, or which of several files comes.
        since: When it began to wait: the last byte came before.
        until: When it tries again; None while there is nothing to tell.
    """

    stage: Stage
    done_bytes: int = 0
    total_bytes: int = 0
    rate: float | None = None
    seconds_left: float | None = None
    note: str = ""
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None

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
        """For what and since when; moments, and no time that is left: the line may stand for long as it is."""
        line = f"waiting since {_format_time(self.since)}" if self.since is not None else "waiting"
        line += f": {self.note}" if self.note else ""
        return f"{line}; next attempt at {_format_time(self.until)}" if self.until is not None else line


def _format_time(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


OnProgress = Callable[[Progress], None]


class Rate:
    """Bytes per second over the last ten seconds; times are given, in seconds of any one clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, done_bytes: int) -> None:
        """Note how many bytes there are now; fewer than before means that the count has begun again."""
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()
        if len(self._samples) >= 2 and now - self._samples[-2][0] < _SAMPLE_SECONDS:
            self._samples.pop()  # the newest sample moves along until it is worth keeping
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _WINDOW_SECONDS:
            self._samples.popleft()

    def reset(self) -> None:
        """Forget everything: after a pause, the time of the pause would count."""
        self._samples.clear()

    @property
    def bytes_per_second(self) -> float | None:
        """The rate; None before two samples."""
        if len(self._samples) < 2:
            return None
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) if end > start else None

    def seconds_left(self, total_bytes: int) -> float | None:
        """How long the rest takes at this rate; None while there is no rate."""
        rate = self.bytes_per_second
        if not rate or not total_bytes:
            return None
        return max(total_bytes - self._samples[-1][1], 0) / rate


@attrs.define(eq=False)
class Meter:
    """Turn what the transfers of one job say into the job's progress.

    Attributes:
        progress: Called with each.
        utcnow: The wall clock, for when a wait began and ends.
        total_bytes: Of all files; 0 while not known.
        finished_bytes: Of the files that are complete.
        chosen: Which of several quantizations comes, for people; empty where there was nothing to choose.
    """

    progress: OnProgress
    utcnow: Callable[[], datetime.datetime]
    total_bytes: int = 0
    finished_bytes: int = 0
    chosen: str = ""
    _rate: Rate = attrs.field(factory=Rate)
    _waiting_since: datetime.datetime | None = None
    _done_bytes: int = 0

    def resolving(self) -> None:
        """The servers are asked which files there are."""
        self.progress(Progress("resolving"))

    def downloading(self, size_bytes: int, part_total_bytes: int | None) -> None:
        """So much of one file is there; of how much, if that is known."""
        done = self.finished_bytes + size_bytes
        total = self.total_bytes or (part_total_bytes or 0)
        if done != self._done_bytes:
            self._waiting_since, self._done_bytes = None, done
        self._rate.add(trio.current_time(), done)
        rate, left = self._rate.bytes_per_second, self._rate.seconds_left(total)
        self.progress(Progress("downloading", done, total, rate, left, self.chosen))

    def verifying(self, done_bytes: int, total_bytes: int) -> None:
        """So much of what came has been read again."""
        self.progress(Progress("verifying", done_bytes, total_bytes))

    def waiting(self, seconds: float, note: str) -> None:
        """Nothing comes for so long, and why; attempts that bring no byte prolong the wait."""
        self._rate.reset()
        now = self.utcnow()
        self._waiting_since = self._waiting_since or now
        until = now + datetime.timedelta(seconds=seconds) if seconds else None
        left = seconds or None
        self.progress(Progress("waiting", seconds_left=left, note=note, since=self._waiting_since, until=until))
