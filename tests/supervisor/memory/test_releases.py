"""When memory of an engine that has ended counts as back, as a table."""

import pytest

from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.releases import Releases

GIB = 1 << 30


@pytest.mark.parametrize(
    ("available", "level", "now", "pending"),
    [
        (20, Level.NORMAL, 1.0, 10),  # nothing has come back
        (27, Level.NORMAL, 1.0, 10),  # less than four fifths
        (28, Level.NORMAL, 1.0, 0),
        (28, Level.WARNING, 1.0, 0),
        (28, Level.UNKNOWN, 1.0, 10),  # a reading that failed proves nothing
        (20, Level.NORMAL, 10.0, 0),  # its deadline is over
    ],
)
def test_a_release_is_pending_until_most_of_it_is_seen(available, level, now, pending):
    """10 GiB of an engine that ended with 20 GiB available are back at 28 GiB, or after ten seconds."""
    releases = Releases()
    releases.expect(10 * GIB, 20 * GIB, until=10.0)
    releases.note(Sample(64 * GIB, available * GIB, level), now)
    assert releases.size_bytes == pending * GIB
    assert bool(releases) is (pending > 0)


def test_two_releases_are_seen_together():
    """What two engines give back is compared with the lower of what was available before."""
    releases = Releases()
    releases.expect(10 * GIB, 20 * GIB, until=10.0)
    releases.expect(10 * GIB, 25 * GIB, until=10.0)
    releases.note(Sample(64 * GIB, 35 * GIB, Level.NORMAL), 1.0)
    assert releases.size_bytes == 20 * GIB
    releases.note(Sample(64 * GIB, 36 * GIB, Level.NORMAL), 1.0)
    assert not releases
