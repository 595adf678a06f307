"""Find what blocks the start of a service, the most permanent obstacle first. Pure.

Memory is checked twice. The budget: all reservations together stay within it. The host: the memory that it has now,
minus reservations that are not resident yet, is enough. With the budget alone, a host under pressure would restart what
it has just evicted, over and over.
"""

import enum

import attrs

from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.budget import valid_cap
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.reservation import Need, Request


class Block(enum.StrEnum):
    """The obstacle to a start."""

    UNSIZED = "unsized"  # its need is unknown
    OWN_BUDGET = "own_budget"  # it needs more than its Model allows
    HOST_BUDGET = "host_budget"  # it needs more than all models on this host may use together
    DEVICE = "device"  # it needs more than the whole device
    FULL = "full"  # the budget is reserved by others
    DEVICE_FULL = "device_full"  # the device is reserved by others
    HEADROOM = "headroom"  # the host does not have that much now
    POOL_FULL = "pool_full"  # other members of its ModelPool use the GPUs
    PRESSURE = "pressure"
    DWELL = "dwell"
    TURN = "turn"  # another service comes first
    UNREADABLE = "unreadable"  # the host's memory cannot be read

    @property
    def lacks_memory(self) -> bool:
        """Whether stopping another engine could help."""
        return self in {Block.FULL, Block.DEVICE_FULL, Block.HEADROOM, Block.POOL_FULL}

    @property
    def is_permanent(self) -> bool:
        """Whether neither waiting nor stopping other engines helps."""
        return self in {Block.OWN_BUDGET, Block.HOST_BUDGET, Block.DEVICE}


@attrs.frozen
class Refusal:
    """Why a service has to wait, with figures that a person can act on.

    Attributes:
        fit_bytes: The largest need that would start; None if a smaller one would not start either.
        free_bytes: Free bytes, to detect when the message is out of date.
        until: When other services may be displaced for it; None if that is not delayed.
        awaited: Services that make room for it.
    """

    block: Block
    message: str
    fit_bytes: int | None = None
    free_bytes: int = 0
    until: float | None = None
    awaited: tuple[Key, ...] = ()

    @property
    def is_lasting(self) -> bool:
        """Whether other services have the memory, and none makes room for this one."""
        return self.block.lacks_memory and not self.awaited and self.until is None

    @property
    def reason(self) -> Reason:
        """The reason for the condition `Loaded`."""
        if self.block in {Block.UNSIZED, Block.UNREADABLE}:
            return Reason.MEMORY_CHECK_FAILED
        if self.block is Block.POOL_FULL:
            return Reason.WAITING_FOR_POOL
        return Reason.EXCEEDS_MEMORY if self.block.is_permanent else Reason.INSUFFICIENT_MEMORY


def find_refusal(request: Request, host: Capacity) -> Refusal | None:
    """Return the most permanent obstacle to the start of a service; None if it may start."""
    budget = host.budget.for_model(request.spec.hardware)
    need, host = request.need, attrs.evolve(host, budget=budget)
    if not need.sized and not host.admit_unsized:
        message = f"its memory need is unknown: {need.why}; --memory-check warn starts it with an estimate"
        return Refusal(Block.UNSIZED, message)
    if host.level is Level.UNKNOWN:
        return Refusal(Block.UNREADABLE, "this machine's memory cannot be read; no engine starts until it can be")
    if not need.sized and not need.estimated_bytes:
        return _admission_refusal(request, host) or _pool_refusal(request, host)
    needs = f"needs {format_bytes(need.total_bytes)}"
    cap = valid_cap(request.spec.hardware, budget.total_bytes)
    if cap is not None and need.total_bytes > cap.limit_bytes:
        message = f"{needs}, more than its own budget of {cap}"
        return Refusal(Block.OWN_BUDGET, message, cap.limit_bytes)
    if need.total_bytes > budget.limit_bytes:
        message = f"{needs}, more than all models on this machine may use together: {budget}"
        return Refusal(Block.HOST_BUDGET, message, budget.limit_bytes)
    for name, limit in budget.pools.items():
        if need.pools.get(name, 0) > limit:
            message = f"{_on_device(need, name)}, which holds at most {format_bytes(limit)}"
            return Refusal(Block.DEVICE, message)
    return _admission_refusal(request, host) or _pool_refusal(request, host) or _shortage_refusal(request, host, needs)


def _on_device(need: Need, name: str) -> str:
    return f"needs {format_bytes(need.pools[name])} on {'the device' if name == 'device' else name}"


def _admission_refusal(request: Request, host: Capacity) -> Refusal | None:
    """Return the refusal if it is the wrong moment to start, regardless of free memory."""
    if host.level is Level.CRITICAL:
        return Refusal(Block.PRESSURE, "memory is critically low on this machine; engines start once it is normal")
    small = request.need.sized and request.need.total_bytes <= host.small_bytes
    if not host.admitting and not small:
        if host.level is Level.NORMAL:
            message = "memory was short on this machine; engines start once it has been normal for a while"
            return Refusal(Block.DWELL, message)
        return Refusal(Block.PRESSURE, "memory is short on this machine; engines start once it is normal again")
    if request.returns:
        if host.calm_seconds < request.dwell_seconds:
            message = f"starts again once memory has been normal for {format_age(request.dwell_seconds)}"
            return Refusal(Block.DWELL, message)
        ahead = [each.key for each in host.reservations if each.is_reloading]
        if ahead:
            return Refusal(Block.TURN, f"starts again after `{relative_name(ahead[0], request.key)}`, which is loading")
    return None


def _pool_refusal(request: Request, host: Capacity) -> Refusal | None:
    """Return the refusal if other members of the service's ModelPool use its GPUs."""
    pool = request.spec.pool
    if pool is None or pool.gpus <= host.free_gpus(request):
        return None
    names = ", ".join(f"`{relative_name(key, request.key)}`" for key in sorted(host.pool_users(request)))
    return Refusal(Block.POOL_FULL, f"{pool.name}: its GPUs are used by {names}")


def _shortage_refusal(request: Request, host: Capacity, needs: str) -> Refusal | None:
    """Return the refusal if memory is short: in the budget, on the device, or on the host."""
    need, free = request.need, host.free_bytes
    headroom = host.headroom_bytes - request.margin_bytes
    if need.total_bytes <= host.small_bytes:
        headroom = host.available_bytes - host.unused_bytes
    if need.total_bytes > free:
        message = f"{needs}, {format_bytes(max(0, free))} free of {host.budget}{_unreturned(host)}"
        return Refusal(Block.FULL, message, max(0, min(free, headroom)), free)
    for name, device_free in host.device_pools.items():
        if need.pools.get(name, 0) > max(0, device_free):
            limit, kept = format_bytes(host.budget.pools[name]), _unreturned(host) if name == "device" else ""
            message = f"{_on_device(need, name)}, {format_bytes(max(0, device_free))} free of {limit}{kept}"
            return Refusal(Block.DEVICE_FULL, message, free_bytes=device_free)
    if need.total_bytes > headroom:
        available = format_bytes(max(0, headroom))
        message = f"{needs}, but this machine has only {available} available; other programs use the rest"
        return Refusal(Block.HEADROOM, message, max(0, headroom), headroom)
    return None


def needed_bytes(request: Request, host: Capacity) -> dict[str, int]:
    """Return what a service needs: bytes of each of the host's pools, and GPUs of its ModelPool.

    Its own limits may differ from the host's.
    """
    need, own = request.need, host.budget.for_model(request.spec.hardware)
    gpus = {request.spec.pool.name: request.spec.pool.gpus} if request.spec.pool is not None else {}
    if not need.sized and not need.estimated_bytes:
        return gpus
    budget = need.total_bytes + host.budget.limit_bytes - own.limit_bytes
    is_small, headroom = need.total_bytes <= host.small_bytes, need.total_bytes + request.margin_bytes
    headroom = max(0, need.total_bytes - host.floor_bytes) if is_small else headroom
    needed = {"budget": budget, "headroom": headroom, **need.pools}
    limited = {"budget", "headroom", *(name for name, size in need.pools.items() if size)}
    return {pool: needed[pool] for pool in host.pools if pool in limited} | gpus


def _unreturned(host: Capacity) -> str:
    return f"; {unreturned_message(host.unreturned_bytes)}" if host.unreturned_bytes else ""


def unreturned_message(size_bytes: int) -> str:
    """Explain to the user that memory has stayed wired."""
    kept = f"macOS still holds {format_bytes(size_bytes)} of wired memory of engines that have exited"
    return f"{kept}; restart this Mac to free it"


def relative_name(key: Key, other: Key) -> str:
    """Return a service's name for a message about another one: with the namespace where that differs."""
    return key.name if key.namespace == other.namespace else str(key)
