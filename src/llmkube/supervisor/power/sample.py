"""Samples of a power source: means over some seconds, or the problem why there is none. Pure."""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

STALE_SECONDS: Final = 10.0
"""Age from which a sample is out of date; sources deliver one every two to five seconds."""

COMBINED: Final = "combined"
"""The pseudo-domain for the sum of all domains; it is left out of energy, which would count twice."""

CORES: Final = frozenset({"cpu", "package"})
"""The domains of a chip's cores."""

BUSY_CORES: Final = 0.1
"""Use of cores by all programs, from which they draw more than 1 mW, the resolution of a source."""


@attrs.frozen
class PowerSample:
    """The mean power of each domain over some seconds that end now."""

    watts: Mapping[str, float]
    seconds: float


class PowerProblem(enum.StrEnum):
    """The reason why a source delivers nothing."""

    NOT_PERMITTED = "NotPermitted"  # no line in sudoers, or a file that only root may read
    NOT_FOUND = "NotFound"  # no such program, or no such counter
    KILLED = "Killed"  # by a signal
    ENDED = "Ended"  # by itself
    NOT_UNDERSTOOD = "NotUnderstood"  # it writes, but no sample
    STALLED = "Stalled"  # some of its figures are 0 while the cores compute
    SILENT = "Silent"  # it runs and writes nothing: it is stopped, or hangs


def without_stalled(sample: PowerSample, busy_cores: float) -> PowerSample:
    """Return the sample, without its cores and sum if they are reported as 0 W while cores compute.

    macOS 27 reports 0 mW for the cores of several chips, even by powermetrics as root (exelban/stats issue 3336).

    Args:
        sample: The sample of the source.
        busy_cores: Mean number of cores that all programs used in that time.
    """
    stalled = {domain for domain in CORES if sample.watts.get(domain) == 0.0}
    if not stalled or busy_cores < BUSY_CORES:
        return sample
    left = {domain: watts for domain, watts in sample.watts.items() if domain not in stalled | {COMBINED}}
    return attrs.evolve(sample, watts=left)
