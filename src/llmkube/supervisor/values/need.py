"""Compute the memory that is reserved for a launch: the largest figure declared, estimated, reported or measured."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.runtimes.devices import Device, shares_of, with_own_memory
from llmkube.runtimes.process.host_runtimes import holds_elsewhere
from llmkube.supervisor.memory.learned import Figure
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.values.desired import Launch
from llmkube.weights.estimate.demand import Estimate, Location

GUESS_SHARE: Final = 1.2
GUESS_BYTES: Final = 512 << 20
"""A guess from the file's size: share of the size plus a constant. It is rough, and too low for a long context."""


CONTEXT_BYTES: Final = 512 << 20
"""Memory that a driver takes on a device for a process, besides llama.cpp's buffers: 0.2 to 0.5 GiB in public reports
of CUDA; not measured here."""


def need_of(launch: Launch, figure: Figure | None, devices: Sequence[Device] = ()) -> Need:
    """Return the memory that a launch needs: the largest of the estimated, reported and measured figures.

    Args:
        launch: Its plan, weights and estimate.
        figure: Memory that was reported and measured before; None if nothing was.
        devices: The devices that the engine computes on.
    """
    need = attrs.evolve(_size_of(launch, figure), elsewhere=holds_elsewhere(launch.plan.runtime))
    own, demand = with_own_memory(devices), launch.plan.demand
    if not own or demand is None or launch.estimate is None or not need.device_bytes:
        return need
    return _on_own_memory(need, launch.estimate, figure or Figure(), shares_of(demand, own))


def _on_own_memory(need: Need, estimate: Estimate, known: Figure, shares: Mapping[str, float]) -> Need:
    """Return the need with the bytes of devices at these, and the rest in the machine's memory."""
    if not shares:
        return attrs.evolve(need, device_bytes=0)
    on_each = sum(
        each.size_bytes
        for each in estimate.components
        if each.place is Location.DEVICE and each.name == "compute buffer"  # every device has one
    )
    layers = max(0, need.device_bytes - on_each)
    devices = {name: int(layers * share) + on_each + CONTEXT_BYTES for name, share in shares.items()}
    host = estimate.bytes_in(Location.HOST)
    total = max(host, known.measured_bytes, known.reported_bytes - known.device_bytes)
    return attrs.evolve(need, total_bytes=total, device_bytes=0, estimated_bytes=host, devices=devices)


def _size_of(launch: Launch, figure: Figure | None) -> Need:
    estimate, known = launch.estimate, figure or Figure()
    observed_bytes = max(known.measured_bytes, known.reported_bytes)
    if estimate is not None:
        device = max(estimate.bytes_in(Location.DEVICE), known.device_bytes)
        total, is_sized = max(estimate.total_bytes, observed_bytes), not estimate.unlimited
        return Need(total, device, is_sized, estimate.unlimited, estimated_bytes=estimate.total_bytes)
    size, declared_bytes = launch.weights.size_bytes, launch.plan.memory_bytes
    if declared_bytes:
        return Need(max(declared_bytes, observed_bytes, size), known.device_bytes)
    if observed_bytes:
        return Need(observed_bytes, known.device_bytes)
    why = f"neither the header of its file ({format_bytes(size)}) nor its command line states it"
    return Need(int(size * GUESS_SHARE) + GUESS_BYTES, sized=False, why=why)
