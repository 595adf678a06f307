"""Ages read as kubectl writes them."""

import pytest

from llmkube.apiserver.protocol.table import human_duration


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (1500, "25m"),
        (3 * 3600, "3h"),
        (14700, "4h5m"),
        (20 * 3600, "20h"),
        (76 * 3600, "3d4h"),
        (40 * 86400, "40d"),
        (760 * 86400, "2y30d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_read_as_kubectl_writes_them(seconds, shown):
    """Two units while young, one when old."""
    assert human_duration(seconds) == shown
