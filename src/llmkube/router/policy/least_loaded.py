"""Which permitted backend is asked first: the one that has the prompt's beginning in its cache, else the least loaded.

Pure; it returns what it was given, in another order.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.router.policy.permits import Permit

MOST_AHEAD: Final = 4
"""Requests that a warm backend without known slots may have more than the least loaded one."""


@attrs.frozen
class Warmth:
    """What one backend is believed to have in its cache.

    Attributes:
        size: Bytes of the prompt from its beginning.
        oldest: When the prompt was used that it would give up for this one, counted in answers; 0 while it has room.
    """

    size: int = 0
    oldest: int = 0


_COLD: Final = Warmth()


def least_loaded(chosen: Sequence[Permit], load: Mapping[str, int], warmth: Mapping[str, Warmth]) -> tuple[Permit, ...]:
    """Return the permits, best first.

    A prompt that no backend has goes to the least loaded one; of those with the same load, to the one that has room for
    it, else to the one that would give up what was used longest ago; then the order of the rule holds.

    Args:
        chosen: What may be asked, in the order of the rule.
        load: Requests in flight, by the backend's name.
        warmth: By the backend's name; empty where nothing is known of the prompt.
    """
    if not warmth:
        return tuple(sorted(chosen, key=lambda permit: load.get(permit.backend.name, 0)))

    def cost(permit: Permit) -> tuple[int, int]:
        return load.get(permit.backend.name, 0), warmth.get(permit.backend.name, _COLD).oldest

    by_load = sorted(chosen, key=cost)
    ready = [permit for permit in by_load if not is_overloaded(permit, by_load[0], load)]
    warmest = max(ready, key=lambda permit: warmth.get(permit.backend.name, _COLD).size)
    if not warmth.get(warmest.backend.name, _COLD).size:
        return tuple(by_load)
    return (warmest, *(permit for permit in by_load if permit is not warmest))


def is_overloaded(permit: Permit, least: Permit, load: Mapping[str, int]) -> bool:
    """Whether a request would wait so long at a backend that it goes to the least loaded one and is computed anew.

    With known slots that is where none is free and the other has one, or the other's queue is shorter by as many
    requests as there are slots.
    """
    own, other = load.get(permit.backend.name, 0), load.get(least.backend.name, 0)
    slots = permit.backend.slots
    if not slots:
        return own - other >= MOST_AHEAD
    if own < slots:
        return False
    has_room = other < (least.backend.slots or own)
    return has_room or own - other >= slots
