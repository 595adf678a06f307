"""Memory of a host for engines: available, reserved, and as it will be once some engines have exited. Pure."""

from collections.abc import Iterable, Mapping

import attrs

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import Cost
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.eviction import Cause, Skip
from llmkube.supervisor.memory.reservation import PoolShare, Request, Reservation


@attrs.frozen
class Door:
    """A door that is closed to new requests, so that the memory of its service goes to `winner`."""

    winner: Key
    since: float


@attrs.frozen
class Capacity:
    """Memory of a host at one moment.

    Attributes:
        available_bytes: Bytes that programs could still allocate.
        devices: The same of devices with memory of their own, by name, where it is known.
        floor_bytes: The part of them that is reserved for other programs.
        small_bytes: Needs up to this may use the floor.
        admitting: Whether memory is normal, and has been for long enough.
        calm_seconds: Seconds for which memory has been normal.
        reservations: Those of all engines.
        releasing_bytes: Memory of exited engines whose release has not been measured yet.
        unreturned_bytes: Memory of exited engines that stays wired for no process.
        admit_unsized: Whether an engine with an unknown need is admitted.
        costs: Costs of loading services, where they are known.
        swaps: Displacements by tenant; `Cost.loads` is their number.
        closed: Doors of services that are closed to new requests.
        now: Monotonic time in seconds.
    """

    budget: Budget
    available_bytes: int
    floor_bytes: int = 0
    small_bytes: int = 0
    level: Level = Level.NORMAL
    admitting: bool = True
    calm_seconds: float = 0.0
    reservations: tuple[Reservation, ...] = ()
    releasing_bytes: int = 0
    unreturned_bytes: int = 0
    admit_unsized: bool = False
    costs: Mapping[Key, Cost] = {}
    swaps: Mapping[str, Cost] = {}
    closed: Mapping[Key, Door] = {}
    now: float = 0.0
    devices: Mapping[str, int] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes of the budget that are not reserved; below 0 when an engine has grown."""
        gone_bytes = self.releasing_bytes + self.unreturned_bytes
        return self.budget.limit_bytes - gone_bytes - sum(each.total_bytes for each in self.reservations)

    @property
    def device_pools(self) -> dict[str, int]:
        """Unreserved bytes of each device whose limit is known, and not more than programs could allocate there."""
        free = {}
        for name, limit in self.budget.pools.items():
            reserved = [each.need.pools.get(name, 0) for each in self.reservations]
            free[name] = limit - sum(reserved) - (self.unreturned_bytes if name == "device" else 0)
            if name in self.devices:
                loading = sum(each.need.pools.get(name, 0) for each in self.reservations if each.loaded_at is None)
                free[name] = min(free[name], self.devices[name] - loading)
        return free

    @property
    def unused_bytes(self) -> int:
        """Reserved bytes that are not resident yet: samples still show them as available."""
        return sum(each.unused_bytes(self.now) for each in self.reservations)

    @property
    def headroom_bytes(self) -> int:
        """Bytes that the host can give now without touching the floor."""
        return self.available_bytes - self.floor_bytes - self.unused_bytes

    @property
    def pools(self) -> dict[str, int]:
        """Bytes that a service can take: of the budget, of the memory that the host has, and of each device."""
        return {"budget": self.free_bytes, "headroom": self.headroom_bytes, **self.device_pools}

    def pools_for(self, requests: Iterable[Request]) -> dict[str, int]:
        """Return `pools` with the unused GPUs of each ModelPool in which one of these services takes turns."""
        shares = {each.spec.pool.name: each for each in requests if each.spec.pool is not None}
        return self.pools | {name: self.free_gpus(each) for name, each in shares.items()}

    def free_gpus(self, request: Request) -> int:
        """Return the GPUs of a service's ModelPool that other members do not use; 0 if it is in none."""
        limit = request.spec.pool.limit if request.spec.pool is not None else 0
        return limit - sum(each.gpus for each in self.pool_users(request).values())

    def pool_users(self, request: Request) -> dict[Key, PoolShare]:
        """Return the other members of a service's ModelPool that have an engine."""
        own = request.spec.pool
        pools = {each.key: each.spec.pool for each in self.reservations if each.key != request.key}
        return {key: pool for key, pool in pools.items() if pool and own and pool.name == own.name}

    @property
    def exiting(self) -> tuple[Reservation, ...]:
        """The engines that are exiting and have not passed their deadline."""
        return tuple(each for each in self.reservations if each.exits_in_time(self.now))

    def without(self, keys: Iterable[Key]) -> "Capacity":
        """Return the capacity once the engines of these services have exited and their memory is released."""
        gone = frozenset(keys)
        return self._after_exit_of([each for each in self.reservations if each.key in gone])

    def after_exits(self) -> "Capacity":
        """Return the capacity once all exiting engines are gone and all pending memory is released."""
        soon = self._after_exit_of(self.exiting)
        return attrs.evolve(soon, available_bytes=soon.available_bytes + self.releasing_bytes, releasing_bytes=0)

    def _after_exit_of(self, ended: Iterable[Reservation]) -> "Capacity":
        gone = {id(each) for each in ended}
        back = sum(each.total_bytes - each.unused_bytes(self.now) for each in self.reservations if id(each) in gone)
        stay = tuple(each for each in self.reservations if id(each) not in gone)
        loaded = [each for each in self.reservations if id(each) in gone and each.loaded_at is not None]
        devices = {
            name: free + sum(each.need.devices.get(name, 0) for each in loaded) for name, free in self.devices.items()
        }
        return attrs.evolve(self, reservations=stay, available_bytes=self.available_bytes + back, devices=devices)

    def with_reservation(self, request: Request) -> "Capacity":
        """Return the capacity once this service has been admitted."""
        admitted = Reservation(0, request.key, request.need, request.spec, returns=request.returns)
        return attrs.evolve(self, reservations=(*self.reservations, admitted))


@attrs.frozen
class CapacitySummary:
    """Memory of a host for engines.

    Attributes:
        total_bytes: The host's memory.
        limit_bytes: The part of it that engines may use.
        free_bytes: Bytes that a new service could reserve, within that limit and the host's headroom.
    """

    total_bytes: int
    limit_bytes: int
    free_bytes: int


def summarize_capacity(host: Capacity, total_bytes: int) -> CapacitySummary:
    """Return the memory of a host for engines."""
    free_bytes = max(0, min(host.free_bytes, host.headroom_bytes))
    return CapacitySummary(total_bytes, host.budget.limit_bytes, free_bytes)


@attrs.frozen
class MemoryView:
    """A host's memory at one moment, for people and metrics.

    Attributes:
        sample: The last credible one.
        free_bytes: Bytes that a new service could reserve, within the budget and the host's headroom.
        requests: Those of the services that wait for memory.
        evictions: Evictions since the agent started, by cause.
        skips: Number of times memory was short but no engine was evicted, by reason.
        unreturned_bytes: Memory that macOS has kept after engines exited.
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
