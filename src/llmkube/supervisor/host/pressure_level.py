"""From figures to a level: one rule where the kernel has none (Linux), or says too little (macOS). Pure.

It begins with what is left, because a victim helps only where little is left: programs stall in a container at its own
limit, or while the kernel compacts pages, on a machine with half of its memory free.
"""

from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.supervisor.host.sample import Level

_GIB: Final = 1 << 30


@attrs.frozen
class Thresholds:
    """When memory is short. The defaults are meant for hosts that do little else than serve models."""

    warning_share: float = 0.10
    """WARNING below this share of the total; where earlyoom, which many desktops run, begins to end programs."""
    critical_share: float = 0.05
    """CRITICAL below this share; where earlyoom uses force."""
    warning_cap_bytes: int = 8 * _GIB
    """No host needs to warn while more than this is left: a tenth of 512 GiB would be a large model's place."""
    critical_cap_bytes: int = 4 * _GIB
    """The same for CRITICAL."""
    tight_share: float = 0.25
    """Only below this share do stalls and swapping count: with more left, whatever causes them, it is not a model."""
    some_percent: float = 10.0
    """WARNING when some program has waited for memory for this much of the last 10 s: a token in ten is late."""
    full_percent: float = 20.0
    """CRITICAL when all have at once: a third of systemd-oomd's default (60 % for 30 s), so that we come first."""
    swap_out_bytes_per_second: float = 32.0 * (1 << 20)
    """WARNING when this much is swapped out per second: 2 GB a minute is no tidying up of idle programs."""

    def warning_bytes(self, total_bytes: int) -> int:
        """Below this a host is short of memory."""
        return int(min(self.warning_share * total_bytes, self.warning_cap_bytes))

    def critical_bytes(self, total_bytes: int) -> int:
        """Below this it is about to fail."""
        return int(min(self.critical_share * total_bytes, self.critical_cap_bytes))


DEFAULTS: Final = Thresholds()


@attrs.frozen
class Signals:
    """What a level is made from. The stalls are per cent of the last ten seconds: of some programs, and of all."""

    total_bytes: int
    available_bytes: int
    some_percent: float = 0.0
    full_percent: float = 0.0
    swap_out_bytes_per_second: float = 0.0


def assess_pressure(signals: Signals, thresholds: Thresholds) -> tuple[Level, str]:
    """Return the level, and what makes it for people; "" with NORMAL."""
    total, left = signals.total_bytes, signals.available_bytes
    room = f"{format_bytes(left)} of {format_bytes(total)} left"
    if left < thresholds.critical_bytes(total):
        return Level.CRITICAL, room
    tight = left < thresholds.tight_share * total
    if tight and signals.full_percent >= thresholds.full_percent:
        return Level.CRITICAL, f"all programs waited for memory for {signals.full_percent:.0f} % of 10 s, {room}"
    if left < thresholds.warning_bytes(total):
        return Level.WARNING, room
    if tight and signals.some_percent >= thresholds.some_percent:
        return Level.WARNING, f"programs waited for memory for {signals.some_percent:.0f} % of 10 s, {room}"
    if tight and signals.swap_out_bytes_per_second >= thresholds.swap_out_bytes_per_second:
        return Level.WARNING, f"{format_bytes(signals.swap_out_bytes_per_second)} swapped out per second, {room}"
    return Level.NORMAL, ""


@attrs.frozen
class Reading:
    """A counter at a moment of the monotonic clock."""

    value: int
    at_seconds: float


def per_second(before: Reading | None, now: Reading) -> float:
    """Return the growth between two looks; 0.0 for the first, for two at once, and for a counter that began anew."""
    if before is None or now.at_seconds <= before.at_seconds or now.value < before.value:
        return 0.0
    return (now.value - before.value) / (now.at_seconds - before.at_seconds)
