"""Wired memory of engines that have ended, and that the kernel has not given back. Pure.

macOS may keep what the GPU had wired for a process that was killed until the next boot (oMLX issue 2184). No process
has it then, so that only a sum tells: what is wired, less what engines have on the device.
"""

import attrs


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
