"""Reference policies: they load the first request's model at once, and unload by LRU, LFU or GreedyDual-Size-Frequency.

They share everything but the order of the victims: within a priority the longest wait is served first; a request waits
while all that could make room is in use, and after `PATIENCE_SECONDS` new requests to those models wait.
"""

from collections.abc import Sequence

import attrs

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import PATIENCE_SECONDS, Bytes, Outcome, Resident, Waiting
from swap.workloads import MIB, Workload


@attrs.define(eq=False)
class Reference:
    """A policy that unloads the models with the smallest value first."""

    workload: Workload
    values: dict[Key, float] = attrs.field(factory=dict)

    def used(self, key: Key, now: float) -> None:
        """Record a request."""

    def loaded(self, key: Key, seconds: float, now: float) -> None:
        """Record a load."""

    def removed(self, key: Key) -> None:
        """Record that a model is unloaded."""

    def unload(self, residents: Sequence[Resident], lacking: Bytes, now: float) -> list[Resident]:
        """Return the first ones that are enough, or all."""
        chosen = self._first(residents, lacking) or list(residents)
        for each in chosen:
            self.removed(each.key)
        return chosen

    def step(self, residents: Sequence[Resident], waiting: Sequence[Waiting], free: Bytes, now: float) -> Outcome:
        """Start what fits; else unload, in order, what makes room for it; else close doors."""
        free, soon = dict(free), dict(free)
        for each in residents:
            if each.exiting:
                _add(soon, each.bytes, 1)
        staying = {each.key: each for each in residents if not each.exiting}
        started, displaced, closed, delayed = [], {}, {}, {}
        for one in sorted(waiting, key=lambda one: (-one.rank, one.since, one.key)):
            lacking = {device: size - soon[device] for device, size in one.bytes.items() if size > soon[device]}
            allowed = [each for each in staying.values() if _allowed(one, each)]
            chosen, in_use = self._room(one, allowed, lacking, now) if lacking else ([], False)
            if lacking and not chosen:
                delayed |= {one.key: one.since + PATIENCE_SECONDS} if now < one.since + PATIENCE_SECONDS else {}
                continue
            if in_use:
                closed |= {each.key: one.key for each in chosen if each.uses}
            else:
                displaced |= {each.key: one.key for each in chosen}
            for each in chosen:
                _add(soon, each.bytes, 1)
                del staying[each.key]
            _add(soon, one.bytes, -1)
            if all(size <= free[device] for device, size in one.bytes.items()):
                _add(free, one.bytes, -1)
                started.append(one.key)
        return Outcome(tuple(started), displaced, closed, delayed)

    def _room(
        self, one: Waiting, allowed: Sequence[Resident], lacking: Bytes, now: float
    ) -> tuple[list[Resident], bool]:
        """Return the residents that make room, and whether some of them are in use."""
        if chosen := self._first([each for each in allowed if not each.uses], lacking):
            for each in chosen:
                self.removed(each.key)
            return chosen, False
        loaded = [each for each in allowed if each.loaded_at is not None and now >= one.since + PATIENCE_SECONDS]
        return self._first(loaded, lacking), True

    def _first(self, candidates: Sequence[Resident], lacking: Bytes) -> list[Resident]:
        chosen, lacking = [], dict(lacking)
        for each in sorted(
            candidates, key=lambda one: (one.closed_at is None, one.rank, self.values.get(one.key, 0.0), one.key)
        ):
            if any(lacking[device] > 0 and each.bytes.get(device, 0) for device in lacking):
                chosen.append(each)
                for device in lacking:
                    lacking[device] -= each.bytes.get(device, 0)
            if all(size <= 0 for size in lacking.values()):
                return chosen
        return []


class Lru(Reference):
    """The value is the time of the last use."""

    def used(self, key: Key, now: float) -> None:
        """Record a request."""
        self.values[key] = now


class Lfu(Reference):
    """The value is the number of uses since the model was loaded."""

    def used(self, key: Key, now: float) -> None:
        """Record a request."""
        self.values[key] = self.values.get(key, 0.0) + 1

    def removed(self, key: Key) -> None:
        """Record that a model is unloaded."""
        self.values.pop(key, None)


@attrs.define(eq=False)
class Gdsf(Reference):
    """The value is L + uses * load time / size; L is that of the last model that was unloaded."""

    uses: dict[Key, int] = attrs.field(factory=dict)
    seconds: dict[Key, float] = attrs.field(factory=dict)
    age: float = 0.0

    def used(self, key: Key, now: float) -> None:
        """Record a request."""
        self.uses[key] = self.uses.get(key, 0) + 1
        model = self.workload.models[int(key.name[1:])]
        size = sum(model.bytes.values()) / MIB
        self.values[key] = self.age + self.uses[key] * self.seconds.get(key, model.load_seconds) / size

    def loaded(self, key: Key, seconds: float, now: float) -> None:
        """Record a load."""
        self.seconds[key] = seconds

    def removed(self, key: Key) -> None:
        """Record that a model is unloaded."""
        self.age = max(self.age, self.values.pop(key, 0.0))
        self.uses.pop(key, None)


REFERENCES = (Lru, Lfu, Gdsf)


def _allowed(one: Waiting, each: Resident) -> bool:
    equal = each.rank == one.rank and each.on_request and one.on_request
    return not each.pinned and each.key != one.key and (each.rank < one.rank or equal)


def _add(free: dict[str, int], size: Bytes, sign: int) -> None:
    for device, count in size.items():
        free[device] += sign * count
