"""How far the transfers of one job are together, for who waits for it."""

import datetime
from collections.abc import Callable

import attrs
import trio

from llmkube.weights.download.progress import OnProgress, Progress, Rate


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
    _waits_since: datetime.datetime | None = None
    _done_bytes: int = 0

    def resolving(self) -> None:
        """The servers are asked which files there are."""
        self.progress(Progress("resolving"))

    def downloading(self, size_bytes: int, part_total_bytes: int | None) -> None:
        """So much of one file is there; of how much, if that is known."""
        done = self.finished_bytes + size_bytes
        total = self.total_bytes or (part_total_bytes or 0)
        if done != self._done_bytes:
            self._waits_since, self._done_bytes = None, done
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
        self._waits_since = self._waits_since or now
        until = now + datetime.timedelta(seconds=seconds) if seconds else None
        left = seconds or None
        self.progress(Progress("waiting", seconds_left=left, note=note, since=self._waits_since, until=until))
