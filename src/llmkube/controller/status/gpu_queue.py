"""Who is first in line for a GPU: by priority, then by age. Pure.

The queue orders what people see; which pod gets the next GPU is the scheduler's decision, by the PriorityClasses that
there are. The chart's own are in the order of these priorities.
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
    """Those that wait, each with its position, from 1; the order is worked out once per change, not once per look."""

    _line: dict[Key, tuple[Waiting, int]] = attrs.field(factory=dict, init=False)

    def put(self, key: Key, waiting: Waiting | None) -> frozenset[Key]:
        """Say that a service waits, or does not; return those whose position is another one now, itself left out."""
        before = self._line
        if (before[key][0] if key in before else None) == waiting:
            return frozenset()
        others = [one for one, _ in before.values() if one.key != key]
        self._line = line(others if waiting is None else [*others, waiting])
        return frozenset(one.key for one in others if before[one.key] != self._line[one.key])

    def position(self, key: Key) -> int:
        """The position of a service, from 1; 0 for one that does not wait."""
        return self._line[key][1] if key in self._line else 0

    def __len__(self) -> int:
        return len(self._line)


def line(waiting: Iterable[Waiting]) -> dict[Key, tuple[Waiting, int]]:
    """Number those that wait: the most important first, of equals the oldest, of the same second by name."""
    ordered = sorted(waiting, key=lambda one: (-one.weight, one.since, one.key))
    return {one.key: (one, position) for position, one in enumerate(ordered, 1)}
