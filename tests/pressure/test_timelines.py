"""Hours of memory pressure in milliseconds, over the real ledger, policy and loop."""

import pytest

from lengths import some
from pressure.playing import play
from pressure.timelines import TIMELINES


@pytest.mark.parametrize("timeline", some(TIMELINES), ids=lambda timeline: timeline.name.replace(" ", "-"))
def test_a_timeline(timeline):
    """Who is evicted, who makes room and who runs in the end are as the story says, and no invariant is broken."""
    host, books = play(timeline)
    assert not books.violations
    assert tuple(mark.name for mark in host.marks if mark.what == "evict") == timeline.evicted
    assert tuple(mark.name for mark in host.marks if mark.what == "displaced") == timeline.displaced
    assert tuple(host.running()) == timeline.ends
    for name, words in timeline.says:
        assert words in host.waits[name][-1]
