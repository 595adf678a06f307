"""Compute the memory that is reserved for a launch: the largest figure declared, estimated, reported or measured."""

from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.runtimes.process.host_runtimes import holds_elsewhere
from llmkube.supervisor.memory.learned import Figure
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.values.desired import Launch

GUESS_SHARE: Final = 1.2
GUESS_BYTES: Final = 512 << 20
"""A guess from the file's size: share of the size plus a constant. It is rough, and too low for a long context."""


def need_of(launch: Launch, figure: Figure | None) -> Need:
    """Return the memory that a launch needs: the largest of the estimated, reported and measured figures."""
    return attrs.evolve(_size_of(launch, figure), elsewhere=holds_elsewhere(launch.plan.runtime))


def _size_of(launch: Launch, figure: Figure | None) -> Need:
    estimate, known = launch.estimate, figure or Figure()
    observed_bytes = max(known.measured_bytes, known.reported_bytes)
    if estimate is not None:
        device = max(estimate.device_bytes, known.device_bytes)
        total, is_sized = max(estimate.total_bytes, observed_bytes), not estimate.unlimited
        return Need(total, device, is_sized, estimate.unlimited, estimated_bytes=estimate.total_bytes)
    size, declared_bytes = launch.weights.size_bytes, launch.plan.memory_bytes
    if declared_bytes:
        return Need(max(declared_bytes, observed_bytes, size), known.device_bytes)
    if observed_bytes:
        return Need(observed_bytes, known.device_bytes)
    why = f"neither the header of its file ({format_bytes(size)}) nor its command line states it"
    return Need(int(size * GUESS_SHARE) + GUESS_BYTES, sized=False, why=why)
