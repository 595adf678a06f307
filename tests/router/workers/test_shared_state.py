"""Two workers and their parent under a clock; see `timelines`."""

import pytest

from router.workers.timelines import ALL


@pytest.mark.parametrize("timeline", ALL, ids=lambda each: each.__name__)
async def test_it_holds_over_two_workers(timeline, autojump_clock):
    """As its sentence says."""
    await timeline()
