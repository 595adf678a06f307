"""What a source of power tells: means over seconds, or why it tells none. Pure."""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

STALE_SECONDS: Final = 10.0
"""A figure that is older says nothing about now; sources tell one every two to five seconds."""

COMBINED: Final = "combined"
"""What a source gives for its domains together; the energy of the domains is not counted twice for it."""


CORES: Final = frozenset({"cpu", "package"})
"""The domains of a chip's cores."""

BUSY_CORES: Final = 0.1
"""Cores that compute so much, all programs together, draw more than the milliwatt that a source tells."""


@attrs.frozen
class PowerSample:
    """The mean power of each domain over some seconds that end now."""

    watts: Mapping[str, float]
    seconds: float


class PowerProblem(enum.StrEnum):
    """Why a source tells nothing."""

    NOT_PERMITTED = "NotPermitted"  # no line in sudoers, or a file that only root may read
    NOT_FOUND = "NotFound"  # no such program, or no such counter
    KILLED = "Killed"  # by a signal
    ENDED = "Ended"  # by itself
    NOT_UNDERSTOOD = "NotUnderstood"  # it writes, but no sample
    STALLED = "Stalled"  # a part of what it tells stands still while the cores compute
    SILENT = "Silent"  # it runs and writes nothing: it is stopped, or hangs


def without_stalled(sample: PowerSample, busy_cores: float) -> PowerSample:
    """Return a sample without cores that draw nothing while they compute, and then without the sum; else the sample.

    macOS 27 tells 0 mW of the cores of several chips, also by powermetrics as root (exelban/stats issue 3336).

    Args:
        sample: What the source has told.
        busy_cores: How many cores all programs together have used meanwhile.
    """
    stalled = {domain for domain in CORES if sample.watts.get(domain) == 0.0}
    if not stalled or busy_cores < BUSY_CORES:
        return sample
    left = {domain: watts for domain, watts in sample.watts.items() if domain not in stalled | {COMBINED}}
    return attrs.evolve(sample, watts=left)
