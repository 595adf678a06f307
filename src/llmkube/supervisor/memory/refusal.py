"""What stands in the way of one service's start, the most lasting thing first. Pure.

Two sums have to come out, and each alone is wrong. The budget's: what all engines have been promised is no more than
the budget. The host's: what it has to give now, less what was promised and is not resident yet, is enough. With the
first one alone a host under pressure would start again what it has just evicted, for ever.
"""

import enum

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.budget import own_cap
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.reservation import MemorySpec, Request


class Block(enum.StrEnum):
    """What stands in the way of a start."""

    UNSIZED = "unsized"  # how much it needs is not known
    OWN_BUDGET = "own_budget"  # more than its Model says that it may take
    HOST_BUDGET = "host_budget"  # more than all models of this host together may take
    DEVICE = "device"  # more than the device holds at all
    FULL = "full"  # others have been promised it
    DEVICE_FULL = "device_full"
    HEADROOM = "headroom"  # the host itself does not have it now
    PRESSURE = "pressure"
    DWELL = "dwell"
    TURN = "turn"  # another service comes first
    UNREADABLE = "unreadable"  # the host's memory cannot be read

    @property
    def lacks_memory(self) -> bool:
        """Whether the end of another engine could help."""
        return self in {Block.FULL, Block.DEVICE_FULL, Block.HEADROOM}

    @property
    def is_permanent(self) -> bool:
        """Whether it stays however long the service waits, and whatever ends meanwhile."""
        return self in {Block.OWN_BUDGET, Block.HOST_BUDGET, Block.DEVICE}


@attrs.frozen
class Refusal:
    """Why a service has to wait, with figures that a person can act on.

    Attributes:
        block: What stands in the way.
        message: A sentence.
        fit_bytes: What a smaller need would have to fit into; None when a smaller one would not start either.
        free_bytes: What is free, to see when the sentence is out of date.
    """

    block: Block
    message: str
    fit_bytes: int | None = None
    free_bytes: int = 0

    @property
    def reason(self) -> Reason:
        """The word for the condition `Loaded`."""
        if self.block in {Block.UNSIZED, Block.UNREADABLE}:
            return Reason.MEMORY_CHECK_FAILED
        return Reason.EXCEEDS_MEMORY if self.block.is_permanent else Reason.INSUFFICIENT_MEMORY


def find_refusal(request: Request, host: Capacity) -> Refusal | None:
    """Return what stands in the way of one service, the most lasting thing first; None when nothing does."""
    budget = host.budget.for_model(request.spec.hardware)
    need, host = request.need, attrs.evolve(host, budget=budget)
    if not need.sized and not host.admit_unsized:
        unknown = f"how much memory it needs is not known: {need.why}"
        return Refusal(Block.UNSIZED, f"{unknown}; with --memory-check warn the agent starts it on a guess")
    if host.level is Level.UNKNOWN:
        return Refusal(Block.UNREADABLE, "this host's memory cannot be read: no engine is started until it can")
    if not need.sized:
        return _admission_refusal(request, host)
    needs = f"needs {format_bytes(need.total_bytes)}"
    cap = _cap(request.spec, budget.total_bytes)
    if cap is not None and need.total_bytes > cap[0]:
        message = f"{needs}, more than its own budget of {cap[1]}"
        return Refusal(Block.OWN_BUDGET, message, cap[0])
    if need.total_bytes > budget.limit_bytes:
        message = f"{needs}, more than all models on this host may take together: {budget}"
        return Refusal(Block.HOST_BUDGET, message, budget.limit_bytes)
    on_device = f"needs {format_bytes(need.device_bytes)} on the device"
    limit = budget.device_limit_bytes
    if limit is not None and need.device_bytes > limit:
        message = f"{on_device}, which holds at most {format_bytes(limit)}"
        return Refusal(Block.DEVICE, message)
    return _admission_refusal(request, host) or _shortage_refusal(request, host, needs, on_device)


def _admission_refusal(request: Request, host: Capacity) -> Refusal | None:
    """Whether it is the wrong moment, however small the need."""
    if host.level is Level.CRITICAL:
        return Refusal(
            Block.PRESSURE, "memory is critically short on this host: no engine is started until it is normal again"
        )
    small = request.need.sized and request.need.total_bytes <= host.small_bytes
    if not host.admitting and not small:
        if host.level is Level.NORMAL:
            return Refusal(
                Block.DWELL,
                "memory has been short on this host: engines start again when it has stayed normal for a while",
            )
        return Refusal(Block.PRESSURE, "memory is short on this host: no engine is started until it is normal again")
    if request.returns:
        if host.calm_seconds < request.dwell_seconds:
            message = f"starts again when memory has been normal for {format_age(request.dwell_seconds)}"
            return Refusal(Block.DWELL, message)
        ahead = [each.key for each in host.reservations if each.is_reloading]
        if ahead:
            return Refusal(Block.TURN, f"starts again after `{relative_name(ahead[0], request.key)}`, which is loading")
    return None


def _shortage_refusal(request: Request, host: Capacity, needs: str, on_device: str) -> Refusal | None:
    """Whether there is not enough: promised to others, on the device, or taken by other programs."""
    need, free = request.need, host.free_bytes
    room = host.headroom_bytes - request.margin_bytes
    if need.total_bytes <= host.small_bytes:
        room = host.available_bytes - host.promised_bytes
    if need.total_bytes > free:
        message = f"{needs}, {format_bytes(max(0, free))} free of {host.budget}{_unreturned(host)}"
        return Refusal(Block.FULL, message, max(0, min(free, room)), free)
    device_free = host.device_free_bytes
    if device_free is not None and need.device_bytes > device_free:
        limit = format_bytes(host.budget.device_limit_bytes or 0)
        message = f"{on_device}, {format_bytes(max(0, device_free))} free of {limit}{_unreturned(host)}"
        return Refusal(Block.DEVICE_FULL, message, free_bytes=device_free)
    if need.total_bytes > room:
        message = f"{needs}, but this host has only {format_bytes(max(0, room))} to give: other programs hold the rest"
        return Refusal(Block.HEADROOM, message, max(0, room), room)
    return None


def _unreturned(host: Capacity) -> str:
    return f"; {unreturned_message(host.unreturned_bytes)}" if host.unreturned_bytes else ""


def unreturned_message(size_bytes: int) -> str:
    """Say what it means that so much has stayed wired."""
    return (
        f"macOS has kept {format_bytes(size_bytes)} of wired memory of engines that have ended; restart this Mac to "
        "get it back"
    )


def _cap(spec: MemorySpec, total_bytes: int) -> tuple[int, str] | None:
    try:
        cap = own_cap(spec.hardware, total_bytes)
    except UserError:  # the planner refuses such a spec by its field's name
        return None
    return None if cap is None else (cap.limit_bytes, str(cap))


def relative_name(key: Key, other: Key) -> str:
    """Return a service's name as another one's sentence has it: with the namespace where that differs."""
    return key.name if key.namespace == other.namespace else str(key)
