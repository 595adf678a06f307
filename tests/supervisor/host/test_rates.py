"""How fast a counter grows, as a table."""

import pytest

from llmkube.supervisor.host.rates import Count, per_second


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        (None, Count(100, 1.0), 0.0),
        (Count(100, 1.0), Count(300, 3.0), 100.0),
        (Count(100, 1.0), Count(100, 3.0), 0.0),
        (Count(100, 1.0), Count(300, 1.0), 0.0),  # two readings at one moment
        (Count(300, 1.0), Count(100, 3.0), 0.0),  # the counter has begun anew
    ],
)
def test_a_rate_needs_two_readings_of_a_counter_that_grows(before, now, rate):
    """The growth per second; 0 where it cannot be known."""
    assert per_second(before, now) == rate
