"""Two clocks tell whether a machine has slept."""

import datetime

import pytest

from llmkube.supervisor.cluster.sleep_detection import Reading, slept_seconds

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("wall", "monotonic", "slept"),
    [
        (5.0, 5.0, 0.0),
        (5.4, 5.1, 0.0),
        (12.0, 5.0, 0.0),
        (8 * 3600.0 + 5, 5.0, 8 * 3600.0),
        (-3600.0, 5.0, 0.0),
        (600.0, 600.0, 595.0),
        (5.0, 600.0, 595.0),
        (15.0, 5.0, 10.0),
    ],
)
def test_who_slept(wall, monotonic, slept):
    """Each row: what both clocks say after a planned wait of 5 s, and how long nobody was awake."""
    before = Reading(START, 100.0)
    now = Reading(START + datetime.timedelta(seconds=wall), 100.0 + monotonic)
    assert slept_seconds(before, now, 5.0) == pytest.approx(slept)
