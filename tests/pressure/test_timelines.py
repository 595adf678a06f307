"""Hours of memory pressure in milliseconds, over the real ledger, policy and loop."""

import pytest

from lengths import sample_rows
from pressure.playing import came_of, play
from pressure.timelines import TIMELINES


@pytest.mark.parametrize("timeline", sample_rows(TIMELINES), ids=lambda timeline: timeline.name.replace(" ", "-"))
def test_a_timeline(timeline):
    """Who is evicted, who makes room and who runs in the end are as the story says, and no invariant is broken."""
    host, books = play(timeline)
    assert not books.violations
    assert came_of(host) == (timeline.evicted, timeline.displaced, timeline.ends)
    for name, words in timeline.says.items():
        assert words in host.waits[name][-1]
