"""How far the transfers of one job are together, for who waits for it."""

import attrs
import trio

from llmkube.weights.download.progress import OnProgress, Progress, Rate


@attrs.define(eq=False)
class Meter:
    """Turn what the transfers of one job say into the job's progress.

    Attributes:
        progress: Called with each.
        total_bytes: Of all files; 0 while not known.
        finished_bytes: Of the files that are complete.
    """

    progress: OnProgress
    total_bytes: int = 0
    finished_bytes: int = 0
    _rate: Rate = attrs.field(factory=Rate)

    def resolving(self) -> None:
        """The servers are asked which files there are."""
        self.progress(Progress("resolving"))

    def downloading(self, size_bytes: int, part_total_bytes: int | None) -> None:
        """So much of one file is there; of how much, if that is known."""
        done = self.finished_bytes + size_bytes
        total = self.total_bytes or (part_total_bytes or 0)
        self._rate.add(trio.current_time(), done)
        self.progress(Progress("downloading", done, total, self._rate.bytes_per_second, self._rate.seconds_left(total)))

    def verifying(self, done_bytes: int, total_bytes: int) -> None:
        """So much of what came has been read again."""
        self.progress(Progress("verifying", done_bytes, total_bytes))

    def waiting(self, seconds: float, note: str) -> None:
        """Nothing comes for so long, and why."""
        self._rate.reset()
        self.progress(Progress("waiting", seconds_left=seconds or None, note=note))
