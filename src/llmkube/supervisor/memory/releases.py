"""Memory of engines that have ended, until it is seen to be back. Pure.

macOS may keep what the GPU had wired for a process that was killed until the next boot (oMLX issue 2184). No process
has it then, so that only a sum tells: what is wired, less what engines have on the device.
"""

from typing import Final

import attrs

from llmkube.supervisor.host.sample import Level, Sample

SEEN_SHARE: Final = 0.8
"""Memory is back when so much of it is seen; other programs may have taken the rest meanwhile."""


@attrs.frozen
class _Release:
    size_bytes: int
    before_bytes: int
    until: float
    device_bytes: int


@attrs.define(eq=False)
class Releases:
    """Memory of engines that have ended, as long as it is not seen to be back, or its deadline is over."""

    _open: list[_Release] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        """Whether any is expected."""
        return bool(self._open)

    @property
    def size_bytes(self) -> int:
        """How much is expected."""
        return sum(each.size_bytes for each in self._open)

    def expect(self, size_bytes: int, before_bytes: int, until: float, device_bytes: int = 0) -> None:
        """So much more should be seen than was available before, by then; so much of it was the device's."""
        self._open.append(_Release(size_bytes, before_bytes, until, min(size_bytes, device_bytes)))

    def note(self, sample: Sample, now: float) -> int:
        """Take in a look at the host; returns what of the device's was not seen and is not waited for any more."""
        before = min((each.before_bytes for each in self._open), default=0)
        if sample.level is not Level.UNKNOWN and sample.available_bytes >= before + SEEN_SHARE * self.size_bytes:
            self._open.clear()
        overdue = sum(each.device_bytes for each in self._open if now >= each.until)
        self._open = [each for each in self._open if now < each.until]
        return overdue


@attrs.define(eq=False)
class Unreturned:
    """What is wired for no process since engines have ended.

    Attributes:
        size_bytes: How much that is.
        least_bytes: Less than this is not told: other programs wire memory, too.
    """

    least_bytes: int
    size_bytes: int = 0
    _most_bytes: int = 0
    _usual_bytes: int | None = None  # what others than engines have wired while all is well

    def suspect(self, size_bytes: int) -> None:
        """So much of an engine that has ended was not seen to be back in time."""
        self._most_bytes += size_bytes

    def note(self, others_bytes: int, *, settled: bool) -> None:
        """Take in a look at the host.

        Args:
            others_bytes: What is wired, less what engines have been promised on the device.
            settled: Whether no engine loads or ends: else the difference may be too small, and only its growth counts.
        """
        if self._usual_bytes is None or (settled and not self._most_bytes):
            self._usual_bytes, self._most_bytes = others_bytes, 0
            return
        seen = min(self._most_bytes, max(0, others_bytes - self._usual_bytes))
        seen = seen if seen >= self.least_bytes else 0
        if settled:  # it can only become less, as no other engine has ended
            self.size_bytes = self._most_bytes = seen
        else:
            self.size_bytes = max(self.size_bytes, seen)
