"""The energy between two samples of power: known where a sample covers the time, bounded where none does. Pure.

A sample is a mean over its own seconds, so its energy is exact. Samples get lost: a hole between two of them is filled
with the mean of both (the trapezoid) while it is short, and is unknown when it is long. All times are of the monotonic
clock, which stands still while the machine sleeps: a sample never counts for more time than that clock has passed.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.supervisor.power.sample import COMBINED, STALE_SECONDS, PowerSample

LONGEST_HOLE_SECONDS: Final = STALE_SECONDS
"""What a host drew in a longer one is not known."""


@attrs.frozen
class Point:
    """Where the integral has come to: the newest sample, and when it ended."""

    at: float
    watts: Mapping[str, float]


@attrs.frozen
class Interval:
    """What was drawn between two points.

    Attributes:
        joules: By domain, without that of the sum.
        measured_seconds: The time for which they are known.
        lost_seconds: The time for which they are not.
    """

    joules: Mapping[str, float]
    measured_seconds: float
    lost_seconds: float = 0.0


def integrate(before: Point | None, sample: PowerSample, now: float) -> tuple[Point, Interval]:
    """Return the new point and what was drawn since the one before.

    Args:
        before: The point of the last sample; None for the first one.
        sample: A sample that ends now.
        now: Monotonic time in seconds.
    """
    elapsed = min(sample.seconds, LONGEST_HOLE_SECONDS) if before is None else max(0.0, now - before.at)
    covered = min(sample.seconds, elapsed)
    hole = elapsed - covered
    filled = hole if hole <= LONGEST_HOLE_SECONDS else 0.0
    earlier = sample.watts if before is None else before.watts
    joules = {
        domain: watts * covered + (earlier.get(domain, watts) + watts) / 2 * filled
        for domain, watts in sample.watts.items()
        if domain != COMBINED
    }
    return Point(now, sample.watts), Interval(joules, covered + filled, hole - filled)
