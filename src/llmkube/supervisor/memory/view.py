"""A host's memory as people and metrics see it. Pure."""

from collections.abc import Mapping

import attrs

from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.eviction import Cause, Skip
from llmkube.supervisor.memory.reservation import Request, Reservation


@attrs.frozen
class Room:
    """What a host has for engines.

    Attributes:
        total_bytes: Its memory.
        limit_bytes: What engines may take of it.
        free_bytes: What a service that comes now could take: of that limit, and of what the host has.
    """

    total_bytes: int
    limit_bytes: int
    free_bytes: int


def room_in(host: Capacity, total_bytes: int) -> Room:
    """Return what a host has for engines."""
    free_bytes = max(0, min(host.free_bytes, host.headroom_bytes))
    return Room(total_bytes, host.budget.limit_bytes, free_bytes)


@attrs.frozen
class MemoryView:
    """A host's memory at one moment, for people and metrics.

    Attributes:
        level: How short it is.
        sample: The last good look.
        budget: What engines may take.
        free_bytes: What a service that comes now could take: of the budget, and of what the host has.
        reservations: What every engine has been promised.
        requests: Which services wait for memory.
        evictions: How many engines were evicted since the agent started, by the cause.
        skips: How often no engine was evicted although memory was short, by the reason.
        unreturned_bytes: What macOS keeps of engines that have ended.
    """

    level: Level
    sample: Sample
    budget: Budget
    free_bytes: int
    reservations: tuple[Reservation, ...]
    requests: tuple[Request, ...]
    evictions: Mapping[Cause, int]
    skips: Mapping[Skip, int]
    unreturned_bytes: int = 0
