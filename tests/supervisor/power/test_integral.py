"""The energy between samples: exact where they cover the time, bounded where they do not."""

import pytest

from llmkube.supervisor.power.integral import LONGEST_HOLE_SECONDS, Interval, Point, integrate
from llmkube.supervisor.power.sample import PowerSample


def sample(watts, seconds=2.0):
    return PowerSample({"gpu": watts, "combined": 99.0}, seconds)


@pytest.mark.parametrize(
    ("before", "now", "seconds", "expected"),
    [
        (None, 100.0, 2.0, Interval({"gpu": 20.0}, 2.0)),
        (98.0, 100.0, 2.0, Interval({"gpu": 20.0}, 2.0)),
        (96.0, 100.0, 2.0, Interval({"gpu": 20.0 + 2 * (30 + 10) / 2}, 4.0)),
        (40.0, 100.0, 2.0, Interval({"gpu": 20.0}, 2.0, 58.0)),
        (98.0, 100.0, 3600.0, Interval({"gpu": 20.0}, 2.0)),
        (None, 100.0, 3600.0, Interval({"gpu": 10.0 * LONGEST_HOLE_SECONDS}, LONGEST_HOLE_SECONDS)),
        (100.0, 100.0, 2.0, Interval({"gpu": 0.0}, 0.0)),
        (101.0, 100.0, 2.0, Interval({"gpu": 0.0}, 0.0)),
    ],
    ids=["first", "whole", "one lost", "many lost", "a sleep in it", "first after a sleep", "at once", "backwards"],
)
def test_an_interval(before, now, seconds, expected):
    """What a sample of 10 W adds after one of 30 W; the sum of the domains is not counted again."""
    point = None if before is None else Point(before, {"gpu": 30.0})
    after, interval = integrate(point, sample(10.0, seconds), now)
    assert interval == expected
    assert (after.at, after.watts["gpu"]) == (now, 10.0)


def test_a_domain_that_appears_has_no_hole_of_another():
    """What was not measured before counts with its own power."""
    _, interval = integrate(Point(96.0, {"cpu": 5.0}), sample(10.0), 100.0)
    assert interval.joules == {"gpu": 40.0}
