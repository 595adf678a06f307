import datetime

import pytest

from llmkube.weights.download.progress import Meter, Progress, Rate

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress("resolving"), "resolving"),
        (Progress("verifying", 1, 4), "verifying: 1 B of 4 B (25 %)"),
        (Progress("downloading", 3 << 20), "downloading: 3.0 MiB"),
        (
            Progress("downloading", 1 << 20, 4 << 20, 2.0**20, 3.0),
            "downloading: 1.0 MiB of 4.0 MiB (25 %), 1.0 MiB/s, 3.00 s left",
        ),
        (
            Progress("waiting", seconds_left=52.0, note="x requested a pause", since=NOON, until=NOON + MINUTE),
            "waiting since 2026-01-01T12:00:00Z: x requested a pause; next attempt at 2026-01-01T12:01:00Z",
        ),
        (
            Progress("waiting", note="another download of the same file is under way", since=NOON),
            "waiting since 2026-01-01T12:00:00Z: another download of the same file is under way",
        ),
    ],
)
def test_progress_reads_as_a_line(progress, line):
    """A line says what is known, and nothing else."""
    assert str(progress) == line


def test_a_rate_is_that_of_the_last_ten_seconds():
    """A fast start is forgotten, and the time left follows the present rate."""
    rate = Rate()
    assert rate.bytes_per_second is None
    assert rate.seconds_left(100) is None
    for second in range(5):
        rate.add(second, second * 1000)
    assert rate.bytes_per_second == pytest.approx(1000)
    for second in range(5, 30):
        rate.add(second, 4000 + (second - 4) * 10)
    assert rate.bytes_per_second == pytest.approx(10)
    assert rate.seconds_left(4250 + 100) == pytest.approx(10)


def test_many_samples_are_no_more_than_the_window():
    """A thousand chunks a second leave a few dozen samples, and the right rate."""
    rate = Rate()
    for tick in range(20_000):
        rate.add(tick / 1000, tick * 500)
    assert len(rate._samples) < 60
    assert rate.bytes_per_second == pytest.approx(500_000, rel=0.01)


def test_a_new_beginning_forgets_the_old_one():
    """When bytes are dropped, and after a pause, the rate starts again."""
    rate = Rate()
    rate.add(0, 1000)
    rate.add(1, 2000)
    rate.add(2, 0)
    assert rate.bytes_per_second is None
    rate.add(3, 5)
    assert rate.bytes_per_second == 5
    rate.reset()
    assert rate.bytes_per_second is None


async def test_a_wait_began_when_the_last_byte_had_come():  # noqa: ASYNC124 - the meter reads Trio's clock
    """Attempts that bring nothing leave the beginning as it is; a new byte ends the wait."""
    now, seen = NOON, []
    meter = Meter(seen.append, lambda: now)
    meter.downloading(5, 10)
    meter.waiting(60, "refused")
    now += MINUTE
    meter.downloading(5, 10)
    meter.waiting(60, "refused")
    assert (seen[-1].since, seen[-1].until) == (NOON, NOON + 2 * MINUTE)
    meter.downloading(6, 10)
    meter.waiting(60, "refused")
    assert seen[-1].since == NOON + MINUTE
