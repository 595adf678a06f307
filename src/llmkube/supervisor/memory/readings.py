"""How long an unreadable host is still believed, and which readings are. Pure.

A reading that cannot be true is no reading. For three samples in a row the last good one stands in for it; after that
the level is UNKNOWN, under which nothing is admitted and nothing is evicted: a model must not die of a failed read.
"""

import math
from typing import Final

import attrs

from llmkube.supervisor.host.sample import Level, Sample

HELD_SAMPLES: Final = 3
"""For so many samples in a row the last good one is held."""

WILD_FACTOR: Final = 4
"""A total that has changed by more than this factor needs a second reading that agrees: a limit may have been set, but
a half-read file is likelier."""


@attrs.frozen
class Readings:
    """What is known of a host from the samples so far; begin with `Readings()`."""

    good: Sample | None = None
    missed: int = 0
    """Samples in a row that could not be believed."""
    doubted_total_bytes: int = 0
    """The total that the last sample claimed, if that was why it was not believed."""

    @property
    def believed(self) -> Sample:
        """The sample to decide by; its level is UNKNOWN when there has been no good one for too long, or none ever."""
        if self.good is None:
            return Sample(0, 0, Level.UNKNOWN, why="this host's memory could not be read yet")
        if self.missed > HELD_SAMPLES:
            return attrs.evolve(
                self.good, level=Level.UNKNOWN, why=f"none of the last {self.missed} samples could be believed"
            )
        return self.good


def steady(before: Readings, sample: Sample) -> Readings:
    """Take in one sample; decide by `believed` of what is returned."""
    if not _possible(sample):
        return attrs.evolve(before, missed=before.missed + 1, doubted_total_bytes=0)
    wild = before.good is not None and _wild(before.good.total_bytes, sample.total_bytes)
    agreed = before.doubted_total_bytes and not _wild(before.doubted_total_bytes, sample.total_bytes)
    if wild and not agreed:
        return attrs.evolve(before, missed=before.missed + 1, doubted_total_bytes=sample.total_bytes)
    return Readings(sample)


def _possible(sample: Sample) -> bool:
    """Whether a sample's figures can be true, and are known."""
    figures = (
        sample.total_bytes,
        sample.available_bytes,
        sample.swap_out_bytes_per_second,
        sample.compress_bytes_per_second,
        sample.device_limit_bytes or 0,
    )
    if sample.level is Level.UNKNOWN or not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        return False
    return 0 < sample.total_bytes >= sample.available_bytes


def _wild(one: int, other: int) -> bool:
    return max(one, other) > WILD_FACTOR * min(one, other)
