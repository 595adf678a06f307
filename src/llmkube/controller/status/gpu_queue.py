"""Who is first in line for a GPU: by priority, then by age. Pure.

The line orders what people are told; which pod gets the next GPU is the scheduler's decision, by the same priorities
(PriorityClass).
"""

from collections.abc import Iterable

import attrs

from llmkube.k8s.resource import Key


@attrs.frozen
class Waiting:
    """A service whose pods find no GPU.

    Attributes:
        key: The service.
        weight: The weight of its priority; more is more important.
        since: When the service was created, as RFC 3339.
        wanted: What it waits for, such as `nvidia.com/gpu: 2`.
    """

    key: Key
    weight: int
    since: str
    wanted: str


@attrs.define(eq=False)
class GpuQueue:
    """The line; its order is worked out once per change, and not once per service that looks."""

    _waiting: dict[Key, Waiting] = attrs.field(factory=dict, init=False)
    _positions: dict[Key, int] = attrs.field(factory=dict, init=False)

    def put(self, key: Key, waiting: Waiting | None) -> frozenset[Key]:
        """Say that a service waits, or does not; return those whose position is another one now, itself left out."""
        if self._waiting.get(key) == waiting:
            return frozenset()
        if waiting is None:
            self._waiting.pop(key)
        else:
            self._waiting[key] = waiting
        before, self._positions = self._positions, positions(self._waiting.values())
        return frozenset(other for other, place in self._positions.items() if before.get(other) != place) - {key}

    def position(self, key: Key) -> int:
        """The place of a service, from 1; 0 for one that does not wait."""
        return self._positions.get(key, 0)

    def __len__(self) -> int:
        return len(self._waiting)


def positions(waiting: Iterable[Waiting]) -> dict[Key, int]:
    """Number those who wait: the most important first, of equals the oldest, of the same second by name."""
    line = sorted(waiting, key=lambda one: (-one.weight, one.since, one.key))
    return {one.key: place for place, one in enumerate(line, 1)}
