"""The growth rate of a counter, as a table."""

import pytest

from llmkube.supervisor.host.pressure_level import Reading, Signals, Thresholds, assess_pressure, per_second
from llmkube.supervisor.host.sample import Level

GIB = 1 << 30
NORMAL, WARNING, CRITICAL = Level.NORMAL, Level.WARNING, Level.CRITICAL


@pytest.mark.parametrize(
    ("total", "left", "signs", "level", "says"),
    [
        (64, 32, {}, NORMAL, ""),
        (64, 6.5, {}, NORMAL, ""),
        (64, 6.3, {}, WARNING, "6.3 GiB of 64.0 GiB left"),
        (64, 3.3, {}, WARNING, "left"),
        (64, 3.1, {}, CRITICAL, "3.1 GiB of 64.0 GiB left"),
        (64, 0, {}, CRITICAL, "0 B of 64.0 GiB left"),
        # a large host warns by bytes and not by share
        (512, 9, {}, NORMAL, ""),
        (512, 7, {}, WARNING, "left"),
        (512, 3.9, {}, CRITICAL, "left"),
        # stalls and swapping are used only when little memory is available
        (64, 32, {"some_percent": 90, "full_percent": 80}, NORMAL, ""),
        (64, 15, {"some_percent": 9.9, "full_percent": 9.9}, NORMAL, ""),
        (64, 15, {"some_percent": 14.2}, WARNING, "programs stalled on memory 14 % of the last 10 s, 15.0 GiB"),
        (64, 15, {"some_percent": 40, "full_percent": 20}, CRITICAL, "all programs stalled on memory 20 %"),
        (64, 5, {"some_percent": 40, "full_percent": 20}, CRITICAL, "all programs"),
        (64, 15, {"swap_out_bytes_per_second": 31e6}, NORMAL, ""),
        (64, 15, {"swap_out_bytes_per_second": 40 << 20}, WARNING, "40.0 MiB swapped out per second"),
        (64, 17, {"swap_out_bytes_per_second": 40 << 20}, NORMAL, ""),
    ],
)
def test_a_level_comes_from_available_memory_and_then_from_stalls(total, left, signs, level, says):
    """Each threshold acts on its own side only, and the level names the one that was crossed."""
    found, why = assess_pressure(Signals(total * GIB, int(left * GIB), **signs), Thresholds())
    assert (found, says in why, bool(why)) == (level, True, level is not NORMAL)


def test_thresholds_can_be_moved():
    """A host with lower thresholds acts later."""
    late = Thresholds(warning_share=0.02, critical_share=0.01)
    assert assess_pressure(Signals(64 * GIB, 2 * GIB), late) == (NORMAL, "")


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        (None, Reading(1000, 5.0), 0.0),
        (Reading(1000, 5.0), Reading(3000, 9.0), 500.0),
        (Reading(1000, 5.0), Reading(1000, 9.0), 0.0),
        (Reading(1000, 5.0), Reading(2000, 5.0), 0.0),
        (Reading(1000, 5.0), Reading(10, 9.0), 0.0),
        (Reading(1000, 9.0), Reading(2000, 5.0), 0.0),
    ],
)
def test_a_rate_needs_two_samples(before, now, rate):
    """Growth is per second between two samples, and none if they cannot be compared."""
    assert per_second(before, now) == rate
