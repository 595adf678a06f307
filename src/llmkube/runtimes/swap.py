"""Decide which loaded models make room for models that are waiting for memory. Pure.

```
 waiting service      what it may displace                               when
 fits                 nothing                                            at once
 OnRequest            idle ones of lower priority                        at once
                      idle OnRequest ones of its own priority            when that is no thrashing, or after PATIENCE
                      those that are in use: their doors are closed      after PATIENCE; of lower priority at once
                      to new requests, and they are displaced when
                      the requests that they have are answered
 Always               the same of lower priority only
```

Tenants share the swaps: one for which more models were displaced recently than for another tenant waits behind that
one, and for up to SHARE_SECONDS before it displaces a model that the other has used; the other does not wait for its
models.

A set is displaced, or its doors are closed, only if the memory of all its models suffices. That memory is then promised
to the waiting service: a younger one gets the rest. Pinned models and models with requests in use are never displaced.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from llmkube.k8s.resource import Key

Bytes = Mapping[str, int]
"""Bytes by device: the host's budget, each device's memory, and any other limited resource."""

PATIENCE_SECONDS: Final = 60.0
"""Time after which a service is delayed no longer, and doors are closed for it."""

HALF_LIFE_SECONDS: Final = 1800.0
"""Time after which a use or a load has half its weight."""

DRAIN_SECONDS: Final = 120.0
"""Time after which another model is preferred to one whose door is closed and whose requests do not end."""

SHARE_SECONDS: Final = 300.0
"""Time for which a tenant with more swaps leaves another one its models, and the first place among those that wait."""

MORE_SWAPS: Final = 2.0
"""Difference from which on a tenant has more swaps than another one."""

RECENT_SECONDS: Final = 1800.0
"""A model that has been idle for this long is worth half as much as one in use."""

BURST_SECONDS: Final = 60.0
"""Requests that follow one another within this time are one use: one load would have served them all."""


@attrs.frozen
class Cost:
    """Cost of loading a model on this host, and its use.

    Attributes:
        load_seconds: Duration of its last load.
        uses: Number of bursts of requests, the earlier ones with less weight.
        loads: Number of loads, likewise.
        at: Time of the last of them.
    """

    load_seconds: float = 10.0
    uses: float = 0.0
    loads: float = 0.0
    at: float = 0.0

    def used(self, now: float) -> "Cost":
        """Return the cost after another request."""
        after, is_new = self.seen(now), not self.uses or now > self.at + BURST_SECONDS
        return attrs.evolve(after, uses=after.uses + is_new)

    def seen(self, at: float) -> "Cost":
        """Return the cost of a model that worked at `at`."""
        weight = self._weight(at)
        return self if at < self.at else Cost(self.load_seconds, self.uses * weight, self.loads * weight, at)

    def loaded(self, seconds: float, now: float) -> "Cost":
        """Return the cost after another load."""
        weight = self._weight(now)
        return Cost(seconds, self.uses * weight, self.loads * weight + 1, now)

    def value(self, now: float) -> float:
        """Return the expected cost of unloading the model now; only comparable with that of others."""
        return self.load_seconds * (self.uses + self.loads) * self._weight(now) / (RECENT_SECONDS + now - self.at)

    def hysteresis_seconds(self, now: float) -> float:
        """Return how long a model has to be idle before an equal displaces it: two load times if it is loaded often."""
        return 2 * self.load_seconds * min(1.0, max(0.0, self.recent_loads(now) - 1))

    def recent_loads(self, now: float) -> float:
        """Return the number of loads, the earlier ones with less weight."""
        return self.loads * self._weight(now)

    def _weight(self, now: float) -> float:
        return math.exp2((self.at - now) / HALF_LIFE_SECONDS)


UNKNOWN: Final = Cost()


@attrs.frozen
class Resident:
    """A model in memory.

    Attributes:
        bytes: Memory that its exit returns.
        pinned: Whether it is never displaced.
        uses: Requests that wait for its load or run; not those that wait at its closed door.
        closed_at: Time at which its door was closed to new requests; None while it is open.
        exiting: Whether it has been displaced, and its bytes are not free yet.
        loaded_at: When it first answered; None before.
        used_at: When it was last used.
        swaps: Recent swaps of the tenant with the fewest among those that use it, or have until a moment ago; nan if
            there is none.
        peers: Name of a group whose members displace each other, whatever their ranks; empty for none.
    """

    key: Key
    bytes: Bytes
    rank: int
    on_request: bool = True
    pinned: bool = False
    uses: int = 0
    closed_at: float | None = None
    exiting: bool = False
    loaded_at: float | None = None
    used_at: float = 0.0
    swaps: float = math.nan
    peers: str = ""


@attrs.frozen
class Waiting:
    """A service that waits for memory.

    Attributes:
        bytes: Memory that it needs.
        since: When the oldest of its requests arrived.
        requests: Number that wait; 0 for an Always service.
        first: Whether its user started it: it is first among equals, and not delayed.
        displaces: Whether others may make room for it.
        swaps: Recent swaps of the tenant with the fewest among those whose requests wait; nan if there is none.
        patience_seconds: Time after which it is delayed no longer, and doors are closed for it.
        peers: As that of a resident.
        ranked: Whether it displaces peers of lower rank sooner.
    """

    key: Key
    bytes: Bytes
    since: float
    rank: int
    on_request: bool = True
    requests: int = 1
    first: bool = False
    displaces: bool = True
    swaps: float = math.nan
    patience_seconds: float = PATIENCE_SECONDS
    peers: str = ""
    ranked: bool = True


@attrs.frozen
class Outcome:
    """Decision of a step; services that are not mentioned wait.

    Attributes:
        started: Services whose memory is free.
        displaced: Idle residents that are unloaded, and for whom.
        closed: Residents whose doors are closed until the next step, and for whom; all other doors are open.
        delayed: Services that wait for a time, although others could make room: so that nothing thrashes, or until it
            is fair.
    """

    started: tuple[Key, ...] = ()
    displaced: Mapping[Key, Key] = {}
    closed: Mapping[Key, Key] = {}
    delayed: Mapping[Key, float] = {}

    @property
    def next_at(self) -> float | None:
        """Time of the next step if nothing happens before; None if there is none."""
        return min(self.delayed.values(), default=None)


def step(
    residents: Sequence[Resident], waiting: Iterable[Waiting], free: Bytes, costs: Mapping[Key, Cost], now: float
) -> Outcome:
    """Decide for each waiting service, in their order.

    Args:
        residents: All models that hold memory.
        waiting: The services without an engine that want one.
        free: Unreserved bytes; less than 0 if other programs have taken some.
        costs: Those of the residents.
        now: Monotonic time in seconds.
    """
    free, soon = dict(free), dict(free)
    for each in residents:
        if each.exiting:
            _add(soon, each.bytes)
    staying = [each for each in residents if not (each.exiting or each.pinned)]
    started: list[Key] = []
    displaced: dict[Key, Key] = {}
    closed: dict[Key, Key] = {}
    delayed: dict[Key, float] = {}
    for one in in_order(waiting, now):
        lacking = {device: size - soon.get(device, 0) for device, size in one.bytes.items()}
        lacking = {device: size for device, size in lacking.items() if size > 0}
        chosen: tuple[Resident, ...] = ()
        if lacking:
            chosen, at = _choose(one, staying, lacking, costs, now)
            if at is not None:
                delayed[one.key] = at
            if not chosen:
                continue
        in_use = [each for each in chosen if each.uses]
        closed |= dict.fromkeys([each.key for each in in_use], one.key)
        displaced |= {} if in_use else dict.fromkeys([each.key for each in chosen], one.key)
        staying = [each for each in staying if each not in chosen]
        for each in chosen:
            _add(soon, each.bytes)
        _add(soon, one.bytes, -1)
        if all(size <= free.get(device, 0) for device, size in one.bytes.items()):
            _add(free, one.bytes, -1)
            started.append(one.key)
    return Outcome(tuple(started), displaced, closed, delayed)


def in_order(waiting: Iterable[Waiting], now: float) -> list[Waiting]:
    """Return services by priority, then those that users start, then by their tenants' swaps, then by their wait."""
    them = tuple(waiting)
    last = {one.key for one in them if now < one.since + SHARE_SECONDS and any(_has_more(one, each) for each in them)}
    return sorted(them, key=lambda one: (-one.rank, not one.first, one.key in last, one.since, one.key))


def cheapest_set(
    candidates: Iterable[Resident], lacking: Bytes, costs: Mapping[Key, Cost], now: float
) -> tuple[Resident, ...]:
    """Return the cheapest set of residents whose memory suffices; none if that of all together does not.

    Residents whose doors are closed come first, so that no door is closed in vain, then the lowest priority, then the
    expected cost: once as it is, once per byte that is lacking. Residents that such a set does not need are left out,
    and the cheaper set is returned.
    """
    rows: list[tuple[tuple[int, int], float, float, Key, Resident]] = []
    for each in candidates:
        share = sum(min(1.0, each.bytes.get(device, 0) / size) for device, size in lacking.items())
        if share > 0:
            value = costs.get(each.key, UNKNOWN).value(now)
            rows.append(((_door(each, now), each.rank), value, value / share, each.key, each))
    if not lacking or not _suffice([row[-1] for row in rows], lacking):
        return ()
    sets = []
    for column in (1, 2):
        ordered = sorted(rows, key=lambda row: (row[0], row[column], row[3]))
        while _suffice([row[-1] for row in ordered[:-1]], lacking):
            ordered.pop()
        for row in ordered[-2::-1]:
            if _suffice([other[-1] for other in ordered if other is not row], lacking):
                ordered.remove(row)
        sets.append((max(row[0] for row in ordered), sum(row[1] for row in ordered), [row[-1] for row in ordered]))
    return tuple(min(sets, key=lambda one: one[:2])[2])


def _choose(
    one: Waiting, staying: Sequence[Resident], lacking: Bytes, costs: Mapping[Key, Cost], now: float
) -> tuple[tuple[Resident, ...], float | None]:
    """Return the residents that make room for a service, or from when some would."""
    allowed = [each for each in staying if _may_displace(one, each)]
    if not _suffice(allowed, lacking):
        return (), None
    times = [(_allowed_at(one, each, costs.get(each.key, UNKNOWN), now), each.key, each) for each in allowed]
    ready = [each for at, _, each in times if at <= now]
    idle = [each for each in ready if not each.uses]
    if chosen := cheapest_set(idle, lacking, costs, now) or cheapest_set(ready, lacking, costs, now):
        return chosen, None
    ordered = sorted(times)
    while _suffice([each for _, _, each in ordered[:-1]], lacking):
        ordered.pop()
    return (), ordered[-1][0] if ordered[-1][0] < float("inf") else None


def _may_displace(one: Waiting, each: Resident) -> bool:
    equal = (each.rank == one.rank or _are_peers(one, each)) and each.on_request and one.on_request
    return one.displaces and each.key != one.key and (_is_lower(each, one) or equal)


def _are_peers(one: Waiting, each: Resident) -> bool:
    return bool(one.peers) and one.peers == each.peers


def _is_lower(each: Resident, one: Waiting) -> bool:
    return each.rank < one.rank and (one.ranked or not _are_peers(one, each))


def _allowed_at(one: Waiting, each: Resident, cost: Cost, now: float) -> float:
    """Return from when a resident is displaced for a service, or has its door closed for it if it is in use."""
    patient, idle_seconds = one.since + one.patience_seconds, cost.hysteresis_seconds(now) / max(1, one.requests)
    if _has_more(one, each):
        patient, idle_seconds = one.since + SHARE_SECONDS, SHARE_SECONDS
    elif _has_more(each, one):
        patient = one.since
    if each.uses:
        if each.loaded_at is None:
            return float("inf")
        return one.since if _is_lower(each, one) else max(patient, each.loaded_at + cost.load_seconds)
    if one.first or _is_lower(each, one):
        return one.since
    return min(patient, each.used_at + idle_seconds)


def _has_more(one: Waiting | Resident, each: Waiting | Resident) -> bool:
    return one.swaps >= each.swaps + MORE_SWAPS  # not if either is not known


def _door(each: Resident, now: float) -> int:
    """Return 0 for a closed door, 1 for an open one, 2 for one that has been closed for too long."""
    if each.closed_at is None:
        return 1
    return 0 if now < each.closed_at + DRAIN_SECONDS or not each.uses else 2


def _suffice(chosen: Sequence[Resident], lacking: Bytes) -> bool:
    return all(sum(each.bytes.get(device, 0) for each in chosen) >= size for device, size in lacking.items())


def _add(free: dict[str, int], size: Bytes, sign: int = 1) -> None:
    for device, count in size.items():
        free[device] = free.get(device, 0) + sign * count
