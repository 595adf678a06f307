"""When memory of an engine that has ended counts as back, as a table.

When wired memory of an engine that has ended counts as kept, as tables.
"""

import pytest

from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.book import Releases, Unreturned

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


def kept(*looks, suspected=40):
    """What is kept after looks at what others have wired, in GiB; the engine's 40 GiB are suspected after the first."""
    seen = Unreturned(GIB)
    for number, (others, settled) in enumerate(looks):
        if number == 1:
            seen.suspect(suspected * GIB)
        seen.note(int(others * GIB), settled=settled)
    return seen.size_bytes / GIB


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        ([(3, True), (3, True)], 0),  # it came back, and other programs have taken what was free
        ([(3, True), (43, True)], 40),
        ([(3, True), (23, True)], 20),
        ([(3, True), (3.5, True)], 0),  # not worth telling
        ([(3, True), (90, True)], 40),  # never more than the engine had
        ([(3, True), (43, True), (13, True)], 10),
        ([(3, True), (43, True), (13, True), (43, True)], 10),  # what others wire later is theirs
        ([(3, True), (43, True), (3, True), (43, True)], 0),
        ([(3, True), (43, False), (13, False)], 40),  # an engine loads, and has not wired yet what it was promised
        ([(3, True), (-7, False), (43, True)], 40),
        ([(43, True), (43, True)], 0),
    ],
)
def test_what_is_wired_for_nobody(looks, wanted):
    """It is what others have wired more than before, up to what the engine had, and it only becomes less."""
    assert kept(*looks) == wanted


def test_without_a_look_before_nothing_is_known():
    """An agent that starts on a Mac which keeps memory has nothing to compare with."""
    seen = Unreturned(GIB)
    seen.suspect(40 * GIB)
    seen.note(43 * GIB, settled=True)
    assert seen.size_bytes == 0
