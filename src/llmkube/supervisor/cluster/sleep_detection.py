"""Has this machine slept, or has the agent been stopped? Told by two clocks and a plan. Pure.

The monotonic clock of Linux and macOS stands still while the machine sleeps, the wall clock does not: a jump of one
against the other was a sleep, or the clock was set, which costs nothing to treat alike. An agent that was
itself stopped (SIGSTOP, a paused virtual machine) finds both clocks far beyond the moment at which it wanted to wake.
"""

import datetime
from typing import Final

import attrs

WAKE_SECONDS: Final = 10.0
"""Shorter sleeps are lost in what every connection and every Lease survives anyway."""


@attrs.frozen
class Reading:
    """Both clocks at one moment."""

    wall: datetime.datetime
    monotonic_seconds: float


def slept_seconds(before: Reading, now: Reading, planned_seconds: float) -> float:
    """Return how long the machine slept between two readings; 0.0 for less than `WAKE_SECONDS`.

    Args:
        before: The reading when the agent went to wait.
        now: The reading when it went on.
        planned_seconds: How long it had wanted to wait.
    """
    wall = (now.wall - before.wall).total_seconds()
    monotonic = now.monotonic_seconds - before.monotonic_seconds
    lost = max(wall - monotonic, monotonic - planned_seconds)
    return lost if lost >= WAKE_SECONDS else 0.0
