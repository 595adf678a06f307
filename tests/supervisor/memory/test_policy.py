"""The dwell times and thresholds of a policy, as tables."""

import pytest

from llmkube.supervisor.memory.policy import Policy

GIB = 1 << 30


@pytest.mark.parametrize(("relapses", "seconds"), [(0, 30), (1, 600), (2, 1200), (50, 3600)])
def test_a_service_that_relapses_waits_longer(relapses, seconds):
    """A return that caused pressure makes the next one wait ten minutes, then twice that, up to an hour."""
    assert Policy().dwell_seconds(relapses) == seconds


def test_thresholds_are_capped_on_large_hosts():
    """A host with 512 GiB keeps 8 and not 51 GiB free for other programs."""
    assert Policy().thresholds.warning_bytes(512 * GIB) == 8 * GIB
    assert Policy().floor_bytes(16 * GIB) == int(1.6 * GIB) + int(0.48 * GIB)
