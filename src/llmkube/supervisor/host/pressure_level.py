"""Assess the pressure level from figures, where the kernel reports none (Linux) or too little (macOS). Pure.

Free memory comes first, because an eviction helps only if little is left: programs also stall in a container at its own
limit, or while the kernel compacts pages, on a machine with half of its memory free.
"""

from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.supervisor.host.sample import Level

_GIB: Final = 1 << 30


@attrs.frozen
class Thresholds:
    """Thresholds for a shortage of memory; the defaults suit hosts that mainly serve models."""

    warning_share: float = 0.10
    """WARNING below this share of the total; here earlyoom, which many desktops run, starts to terminate programs."""
    critical_share: float = 0.05
    """CRITICAL below this share; here earlyoom sends KILL."""
    warning_cap_bytes: int = 8 * _GIB
    """No WARNING while at least this much is left: a tenth of 512 GiB would hold a large model."""
    critical_cap_bytes: int = 4 * _GIB
    """The same for CRITICAL."""
    tight_share: float = 0.25
    """Stalls and swapping are considered only below this share: with more left, a model is not the cause."""
    some_percent: float = 10.0
    """WARNING when some program has stalled for this share of the last 10 s: one token in ten is late."""
    full_percent: float = 20.0
    """CRITICAL when all programs have: a third of systemd-oomd's default (60 % for 30 s), so that we act first."""
    swap_out_bytes_per_second: float = 32.0 * (1 << 20)
    """WARNING at this rate: 2 GB a minute is more than swapping out idle programs."""

    def warning_bytes(self, total_bytes: int) -> int:
        """Return the available bytes below which a host is short of memory."""
        return int(min(self.warning_share * total_bytes, self.warning_cap_bytes))

    def critical_bytes(self, total_bytes: int) -> int:
        """Return the available bytes below which a host is about to run out of memory."""
        return int(min(self.critical_share * total_bytes, self.critical_cap_bytes))


DEFAULTS: Final = Thresholds()


@attrs.frozen
class Signals:
    """The input of an assessment. Stalls are in per cent of the last ten seconds: of some program, and of all."""

    total_bytes: int
    available_bytes: int
    some_percent: float = 0.0
    full_percent: float = 0.0
    swap_out_bytes_per_second: float = 0.0


def assess_pressure(signals: Signals, thresholds: Thresholds) -> tuple[Level, str]:
    """Return the level and its reason for people; "" for NORMAL."""
    total, left = signals.total_bytes, signals.available_bytes
    rest = f"{format_bytes(left)} of {format_bytes(total)} left"
    if left < thresholds.critical_bytes(total):
        return Level.CRITICAL, rest
    tight = left < thresholds.tight_share * total
    if tight and signals.full_percent >= thresholds.full_percent:
        return Level.CRITICAL, f"all programs stalled on memory {signals.full_percent:.0f} % of the last 10 s, {rest}"
    if left < thresholds.warning_bytes(total):
        return Level.WARNING, rest
    if tight and signals.some_percent >= thresholds.some_percent:
        return Level.WARNING, f"programs stalled on memory {signals.some_percent:.0f} % of the last 10 s, {rest}"
    if tight and signals.swap_out_bytes_per_second >= thresholds.swap_out_bytes_per_second:
        return Level.WARNING, f"{format_bytes(signals.swap_out_bytes_per_second)} swapped out per second, {rest}"
    return Level.NORMAL, ""


@attrs.frozen
class Reading:
    """A counter at a moment of the monotonic clock."""

    value: int
    at_seconds: float


def per_second(before: Reading | None, now: Reading) -> float:
    """Return the rate between two readings; 0.0 for the first, for two at once, and for a counter that was reset."""
    if before is None or now.at_seconds <= before.at_seconds or now.value < before.value:
        return 0.0
    return (now.value - before.value) / (now.at_seconds - before.at_seconds)
