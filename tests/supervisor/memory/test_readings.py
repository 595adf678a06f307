import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.supervisor.host.sample import UNREADABLE, Level, Sample
from llmkube.supervisor.memory.readings import HELD_SAMPLES, Readings, steady

GIB = 1 << 30
GOOD = Sample(64 * GIB, 32 * GIB, Level.NORMAL)
SHORT = Sample(64 * GIB, 2 * GIB, Level.CRITICAL, why="2.0 GiB of 64.0 GiB left")
NAN = float("nan")

ABSURD = [
    UNREADABLE,
    attrs.evolve(GOOD, level=Level.UNKNOWN),
    attrs.evolve(GOOD, total_bytes=0, available_bytes=0),
    attrs.evolve(GOOD, total_bytes=-1),
    attrs.evolve(GOOD, available_bytes=-1),
    attrs.evolve(GOOD, available_bytes=65 * GIB),
    attrs.evolve(GOOD, total_bytes=NAN),
    attrs.evolve(GOOD, available_bytes=NAN),
    attrs.evolve(GOOD, total_bytes=float("inf")),
    attrs.evolve(GOOD, swap_out_bytes_per_second=NAN),
    attrs.evolve(GOOD, compress_bytes_per_second=-1.0),
    attrs.evolve(GOOD, device_limit_bytes=-1),
]


def after(*samples):
    readings = Readings()
    for sample in samples:
        readings = steady(readings, sample)
    return readings.believed


@pytest.mark.parametrize("absurd", ABSURD)
def test_the_last_good_reading_is_held_for_three_samples(absurd):
    """What cannot be true is replaced by the last good reading three times, and by UNKNOWN from the fourth on."""
    assert HELD_SAMPLES == 3
    assert after(SHORT, *[absurd] * 3) == SHORT
    assert after(SHORT, *[absurd] * 4).level is Level.UNKNOWN
    assert after(SHORT, *[absurd] * 40).why == "none of the last 40 samples could be believed"


@pytest.mark.parametrize("absurd", ABSURD)
def test_nothing_is_known_before_the_first_good_reading(absurd):
    """Without any good reading the level is UNKNOWN at once."""
    assert after().level is Level.UNKNOWN
    assert after(absurd).level is Level.UNKNOWN


def test_one_good_reading_begins_the_count_anew():
    """Three bad readings, a good one and three bad ones never lead to UNKNOWN."""
    assert after(GOOD, *[UNREADABLE] * 3, SHORT, *[UNREADABLE] * 3) == SHORT
    assert after(GOOD, *[UNREADABLE] * 9, SHORT) == SHORT


@pytest.mark.parametrize("total", [16 * GIB, 48 * GIB, 128 * GIB, 256 * GIB])
def test_a_host_that_grows_or_shrinks_is_believed_at_once(total):
    """A total up to four times as large or as small counts in the sample that shows it."""
    changed = Sample(total, GIB, Level.WARNING)
    assert after(GOOD, changed) == changed


@pytest.mark.parametrize("total", [15 * GIB, 257 * GIB, 1 << 20])
def test_a_wild_change_needs_a_second_reading(total):
    """A total that jumps further is believed when a second reading in a row agrees, and not before."""
    wild = Sample(total, 1 << 19, Level.WARNING)
    assert after(GOOD, wild) == GOOD
    assert after(GOOD, wild, wild) == wild
    assert after(GOOD, wild, GOOD, wild) == GOOD
    assert after(GOOD, wild, UNREADABLE, wild) == GOOD


def test_numbers_that_jump_about_are_never_believed():
    """Totals that agree neither with the last good one nor with each other lead to UNKNOWN."""
    jumps = [Sample(GIB << (5 * (number % 3 + 2)), GIB, Level.NORMAL) for number in range(4)]
    assert after(Sample(GIB, GIB, Level.NORMAL), *jumps).level is Level.UNKNOWN


SAMPLES = st.builds(
    Sample,
    st.sampled_from([0, -5, 16 * GIB, 64 * GIB, 512 * GIB, NAN]),
    st.sampled_from([-5, 0, GIB, 600 * GIB, NAN]),
    st.sampled_from(list(Level)),
)


@given(st.lists(SAMPLES, max_size=30))
def test_only_possible_figures_are_ever_decided_by(samples):
    """Whatever is read, a believed sample with a level has figures that can be true."""
    believed = after(*samples)
    if believed.level is not Level.UNKNOWN:
        assert 0 <= believed.available_bytes <= believed.total_bytes
        assert believed.total_bytes > 0
