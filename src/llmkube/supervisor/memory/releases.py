"""Memory of engines that have ended, until it is seen to be back. Pure."""

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
