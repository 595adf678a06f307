"""Hours of memory pressure in milliseconds, with the real ledger, policy and loop."""

import pytest

from lengths import sample_rows
from pressure.playing import came_of, play
from pressure.timelines import TIMELINES


@pytest.mark.parametrize("timeline", sample_rows(TIMELINES), ids=lambda timeline: timeline.name.replace(" ", "-"))
def test_a_timeline(timeline):
    """The evicted, displaced and finally running engines are those of the timeline, and no invariant is broken."""
    host, books = play(timeline)
    assert not books.violations
    assert came_of(host) == (timeline.evicted, timeline.displaced, timeline.ends)
    for name, words in timeline.messages.items():
        assert words in host.waits[name][-1]
