"""What a host has for a service that comes now."""

import attrs

from llmkube.supervisor.memory.view import room_in
from supervisor.memory.requests import EMPTY, GIB, busy, holds


def test_room_is_the_smaller_of_budget_and_host_and_never_negative():
    """48 GiB are free of the budget of an empty host; other programs, or engines that have grown, leave less."""
    assert room_in(EMPTY, 64 * GIB).free_bytes == 48 * GIB
    assert room_in(attrs.evolve(EMPTY, available_bytes=17 * GIB), 64 * GIB).free_bytes == 10 * GIB
    assert room_in(busy(holds("a", 60)), 64 * GIB).free_bytes == 0
    assert room_in(EMPTY, 64 * GIB).limit_bytes == 48 * GIB
